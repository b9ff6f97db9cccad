//! Which blocks have storage (`base:allocation`).

use millrace_scsi::BlockSize;
use proptest::{
    prelude::*,
    test_runner::{Config as Cases, TestRunner},
};

use crate::{
    client::{Client, EINVAL, REQ_ONE, TRIM, WRITE_ZEROES},
    lab::{Config, Lab},
};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
/// HOLE and ZERO.
const FREE: u32 = 3;

#[test]
fn ranges_are_reported_with_their_state() {
    let lab = Lab::with(Config::new(1 << 20, BlockSize::B512));
    let mut client = Client::with_allocation(&lab.path());
    assert_eq!(client.status(0, 0, 1 << 20), Ok(vec![(1 << 20, FREE)]));
    client.write(8192, &[1; 8192]).unwrap();
    assert_eq!(client.status(0, 0, 1 << 20), Ok(vec![(8192, FREE), (8192, 0), (1_032_192, FREE)]));
    assert_eq!(client.status(REQ_ONE, 0, 1 << 20), Ok(vec![(8192, FREE)]));
    assert_eq!(client.status(0, 8704, 512), Ok(vec![(512, 0)]), "within the range");
    client.call(0, TRIM, 8192, 4096, &[]).unwrap();
    assert_eq!(client.status(0, 0, 16384), Ok(vec![(12288, FREE), (4096, 0)]));
    for (offset, length) in [(0, 0), (256, 512), (512, 100), (1 << 20, 512), (1 << 19, 1 << 20)] {
        assert_eq!(client.status(0, offset, length), Err(EINVAL), "{length} bytes at {offset}");
    }
    // Clients that have not selected the context.
    for structured in [false, true] {
        let mut client = Client::connect(&lab.path(), structured);
        assert_eq!(client.status(0, 0, 512), Err(EINVAL));
        client.read(0, 512).unwrap();
    }
}

/// Writes, trims and zeros on random blocks; a model has the blocks with data. The file system may report blocks between
/// them as stored, but a client that skips holes must not lose data.
#[test]
fn no_data_is_reported_as_a_hole() {
    let lab = Lab::with(Config::new((BLOCKS * BLOCK) as u64, BlockSize::B4096));
    let step = (0..4_usize, 0..BLOCKS, 1..12_usize);
    let steps = prop::collection::vec(step, 1..20);
    let mut runner = TestRunner::new(Cases::with_cases(100));
    let run = runner.run(&steps, |steps| {
        // All cases have one disk.
        let (client, stored) = (&mut Client::with_allocation(&lab.path()), &mut [false; BLOCKS]);
        client.call(0, TRIM, 0, (BLOCKS * BLOCK) as u32, &[]).unwrap();
        for (kind, first, count) in steps {
            let last = (first + count).min(BLOCKS);
            let (offset, length) = ((first * BLOCK) as u64, ((last - first) * BLOCK) as u32);
            match kind {
                0 | 1 => drop(client.write(offset, &vec![kind as u8 + 1; length as usize]).unwrap()),
                2 => drop(client.call(0, TRIM, offset, length, &[]).unwrap()),
                _ => drop(client.call(0, WRITE_ZEROES, offset, length, &[]).unwrap()),
            }
            stored[first..last].fill(kind < 2);
            let reported = report(client, first);
            prop_assert!(
                reported.iter().zip(&stored[first..]).all(|(reported, stored)| *reported || !stored)
            );
        }
        client.call(0, TRIM, 0, (BLOCKS * BLOCK) as u32, &[]).unwrap();
        prop_assert_eq!(report(client, 0), [false; BLOCKS]);
        Ok(())
    });
    run.unwrap();
}

/// Which blocks from `first` on have storage, as the server reports it.
fn report(client: &mut Client, first: usize) -> Vec<bool> {
    let mut found = Vec::new();
    while first + found.len() < BLOCKS {
        let at = first + found.len();
        let ranges = client.status(0, (at * BLOCK) as u64, ((BLOCKS - at) * BLOCK) as u32).unwrap();
        assert!(!ranges.is_empty());
        for (length, flags) in ranges {
            assert!((length as usize).is_multiple_of(BLOCK) && matches!(flags, 0 | FREE));
            found.extend(vec![flags == 0; length as usize / BLOCK]);
        }
    }
    found
}
