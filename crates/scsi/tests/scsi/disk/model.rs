//! Random commands compared with a model of the blocks.

use millrace_scsi::{Aborted, BlockSize, Response, Status};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use super::common::Bench;

const BLOCKS: u64 = 300;

/// Kind of command, LBA, number of blocks, content.
type Step = (u8, u64, u8, u8);

fn step() -> impl Strategy<Value = Step> {
    (any::<u8>(), 0..BLOCKS, any::<u8>(), any::<u8>())
}

fn sixteen(opcode: u8, flags: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// The CDB and the data of a step; applies it to the model.
fn apply(model: &mut [u8], (kind, lba, count, fill): Step) -> (Vec<u8>, Vec<u8>, Option<u64>) {
    let count = u64::from(count).min(BLOCKS - lba).max(1);
    let len = count as usize * 512;
    let old = &mut model[lba as usize * 512..][..len];
    let data: Vec<u8> = (0..len).map(|n| fill ^ (n / 512) as u8).collect();
    let n = count as u32;
    match kind % 8 {
        0 | 1 => old.copy_from_slice(&data),
        2 => old.fill(fill),
        3 | 4 => old.fill(0),
        5 => old.iter_mut().zip(&data).for_each(|(old, new)| *old |= new),
        _ => {}
    }
    let (cdb, out, miscompare) = match kind % 8 {
        0 => (sixteen(0x8a, fill & 8, lba, n), data, None),
        1 => (sixteen(0x8e, 2, lba, n), data, None),
        2 => (sixteen(0x93, 0, lba, n), vec![fill; 512], None),
        3 => (sixteen(0x93, 9, lba, n), Vec::new(), None),
        4 => {
            let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
            list.extend(lba.to_be_bytes());
            list.extend(n.to_be_bytes());
            list.extend([0; 4]);
            (
                vec![0x42, fill & 1, 0, 0, 0, 0, 0, 0, 24, 0].try_into().map_or([0; 16], |c: [u8; 10]| {
                    let mut cdb = [0; 16];
                    cdb[..10].copy_from_slice(&c);
                    cdb
                }),
                list,
                None,
            )
        }
        5 => (sixteen(0x8b, 0, lba, n), data, None),
        6 => {
            let mut cdb = sixteen(0x89, 0, lba, 0);
            cdb[13] = count as u8;
            let mut both = old.to_vec();
            let wrong = (fill & 1 == 1).then_some(len as u64 - 1);
            if wrong.is_some() {
                both[len - 1] ^= 1
            } else {
                old.copy_from_slice(&data)
            }
            (cdb, [both, data].concat(), wrong)
        }
        _ => (sixteen(0x8f, 2, lba, n), old.to_vec(), None),
    };
    (cdb.to_vec(), out, miscompare)
}

fn outcome(result: Result<Response, Aborted>, miscompare: Option<u64>) {
    let response = result.unwrap();
    assert_eq!(response.sense.and_then(|s| s.information), miscompare, "{:?}", response.sense);
    assert_eq!(response.status == Status::Good, miscompare.is_none(), "{:?}", response.sense);
}

/// Executes a step, and compares the whole disk with the model.
fn execute(bench: &Bench, model: &mut [u8], step: Step) {
    let (cdb, data, miscompare) = apply(model, step);
    outcome(bench.try_execute(&bench.nexus, &cdb, &data), miscompare);
    let read = bench.good(&sixteen(0x88, 0, 0, BLOCKS as u32), &[]);
    assert!(read == model, "{step:?}");
}

#[test]
#[ignore = "takes minutes"]
fn a_million_random_commands_match_the_model() {
    let bench = Bench::new(BlockSize::B512, BLOCKS);
    let mut model = vec![0; BLOCKS as usize * 512];
    let mut runner = TestRunner::deterministic();
    for _ in 0..1_000_000 {
        let step = step().new_tree(&mut runner).unwrap().current();
        execute(&bench, &mut model, step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn blocks_are_those_of_the_model(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let bench = Bench::new(BlockSize::B512, BLOCKS);
        let mut model = vec![0; BLOCKS as usize * 512];
        for step in steps {
            execute(&bench, &mut model, step);
        }
    }

    /// Concurrent commands that set bits or replace the data of one range with one value: each block has the result
    /// of some order of the exclusive commands.
    #[test]
    fn concurrent_or_writes_lose_no_bit(order in Just((0..8_u8).collect::<Vec<_>>()).prop_shuffle()) {
        let bench = Bench::new(BlockSize::B512, BLOCKS);
        let mut pending: Vec<_> = (0..8_u8).map(|bit| {
            let data = vec![1_u8 << bit; 64 * 512];
            let request = bench.request(&bench.nexus, &sixteen(0x8b, 0, u64::from(bit), 64), &data);
            bench.target.execute(request).into_future()
        }).collect();
        // Tasks later in the queue wait for earlier ones, so that polling in any order completes all.
        let mut left: Vec<u8> = order;
        while !left.is_empty() {
            left.retain(|n| {
                let task = std::pin::Pin::new(&mut pending[usize::from(*n)]);
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                match task.poll(&mut context) {
                    std::task::Poll::Ready(result) => {
                        outcome(result, None);
                        false
                    }
                    std::task::Poll::Pending => true,
                }
            });
        }
        let read = bench.good(&sixteen(0x88, 0, 8, 1), &[]);
        prop_assert_eq!(read, vec![0xff; 512]);

    }
}
