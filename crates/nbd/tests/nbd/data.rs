//! Random requests, compared with a model of the disk.

use std::{collections::HashMap, ops::Range};

use millrace_scsi::BlockSize;
use proptest::{
    prelude::*,
    test_runner::{Config as Runs, TestRunner},
};

use crate::{
    client::{Answer, Client, FLUSH, FUA, READ, TRIM, WRITE, WRITE_ZEROES},
    lab::{Config, Lab},
};

/// Size of the disk in blocks.
const BLOCKS: usize = 2048;

/// A request: client, command, flags, first block, number of blocks, content.
type Step = (usize, u16, u16, usize, usize, u8);

fn step() -> impl Strategy<Value = Step> {
    let command = prop_oneof![
        4 => Just(READ),
        4 => Just(WRITE),
        1 => Just(FLUSH),
        1 => Just(TRIM),
        2 => Just(WRITE_ZEROES)
    ];
    let length = prop_oneof![3 => 1..16_usize, 1 => 16..1024_usize];
    (0..3_usize, command, prop_oneof![3 => Just(0), 1 => Just(FUA)], 0..BLOCKS, length, 1..=255_u8)
}

fn pattern(range: &Range<usize>, seed: u8) -> Vec<u8> {
    range.clone().map(|i| (i / 512) as u8 ^ (i % 251) as u8 ^ seed).collect()
}

/// Requests without an answer, and the data that reads must return.
type Pending = HashMap<(usize, u64), (Range<usize>, Option<Vec<u8>>)>;

/// Receives an answer of a client that has requests in progress.
fn check(clients: &mut [Client], client: usize, pending: &mut Pending) {
    let (cookie, answer): (u64, Answer) = clients[client].answer();
    let (range, expected) = pending.remove(&(client, cookie)).expect("an answer to a request");
    let data = answer.unwrap_or_else(|e| panic!("error {e} at {range:?}"));
    assert!(data == expected.unwrap_or_default(), "wrong data at {range:?}");
}

fn run(clients: &mut [Client], model: &mut [u8], block: usize, steps: &[Step]) {
    let mut pending = Pending::new();
    for (client, command, flags, first, count, seed) in steps {
        let last = (first + count).min(BLOCKS);
        let range = if *command == FLUSH { 0..0 } else { first * block..last * block };
        // The order of requests in progress on the same blocks is undefined.
        while let Some(busy) = pending.iter().find(|(_, (r, _))| r.start < range.end && range.start < r.end) {
            let client = busy.0.0;
            check(clients, client, &mut pending);
        }
        // The server may not receive further requests from a client that receives no answers.
        while pending.values().map(|(range, _)| range.len()).sum::<usize>() > 8 << 20 {
            let client = pending.keys().next().unwrap().0;
            check(clients, client, &mut pending);
        }
        let (mut data, mut expected) = (Vec::new(), None);
        match *command {
            READ => expected = Some(model[range.clone()].to_vec()),
            WRITE => {
                data = pattern(&range, *seed);
                model[range.clone()].copy_from_slice(&data);
            }
            // Discarded blocks of this target read as zeros.
            TRIM | WRITE_ZEROES => model[range.clone()].fill(0),
            _ => {}
        }
        let length = range.len() as u32;
        let cookie = clients[*client].send(*flags, *command, range.start as u64, length, &data);
        pending.insert((*client, cookie), (range, expected));
    }
    while let Some((client, _)) = pending.keys().next().copied() {
        check(clients, client, &mut pending);
    }
}

fn random_requests(block_size: BlockSize, block: usize) {
    let lab = Lab::with(Config::new((BLOCKS * block) as u64, block_size));
    assert!(lab.device.info().discard_reads_zeroes);
    let mut runner = TestRunner::new(Runs { failure_persistence: None, ..Runs::with_cases(30) });
    let cases = runner.run(&proptest::collection::vec(step(), 1..60), |steps| {
        let mut clients = [true, false, true].map(|structured| Client::connect(&lab.path(), structured));
        let mut model = vec![0; BLOCKS * block];
        let length = model.len() as u32;
        clients[0].call(0, WRITE_ZEROES, 0, length, &[]).unwrap();
        run(&mut clients, &mut model, block, &steps);
        assert!(clients[0].read(0, length).unwrap() == model);
        Ok(())
    });
    cases.unwrap();
}

#[test]
fn random_requests_agree_with_a_model_of_512_byte_blocks() {
    random_requests(BlockSize::B512, 512);
}

#[test]
fn random_requests_agree_with_a_model_of_4096_byte_blocks() {
    random_requests(BlockSize::B4096, 4096);
}
