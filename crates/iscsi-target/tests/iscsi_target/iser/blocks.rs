//! Writes to a file in memory, which takes received blocks of 64 KiB without a copy.

use std::{
    future::poll_fn,
    ops::Range,
    pin::pin,
    task::{Context, Poll, Waker},
};

use millrace_buffer::BLOCK_BYTES;
use millrace_iscsi::{
    negotiation::Settings,
    session::{Direction, Outcome},
};
use millrace_iscsi_target::ConnectionLimits;
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use super::common::{BLOCKS, Bench, Client, pattern, run, run_alone, rw10};

/// Blocks of the disk in a block of the file.
const IN_BLOCK: usize = BLOCK_BYTES / 512;

/// A session with or without immediate data, which has 8 KiB.
async fn session(bench: &Bench, immediate_data: bool) -> Client {
    let mut client = bench.connect().await;
    client.settings = Settings { immediate_data, ..client.settings };
    client.log_in(1).await.unwrap();
    client.clear_attention().await;
    client
}

#[test]
fn whole_blocks_are_stored_without_copies() {
    run_alone(&ConnectionLimits::default(), async |bench| {
        for (immediate_data, immediate) in [(true, 8192), (false, 0)] {
            let mut client = session(&bench, immediate_data).await;
            for (lba, length) in [(0, 1 << 20), (3, 1 << 20), (IN_BLOCK - 1, 512 << 10), (77, 4 << 20)] {
                let data = pattern(length, lba + immediate);
                let before = millrace_buffer::copied::total();
                client.write(lba as u32, &data).await;
                let copied = millrace_buffer::copied::total() - before;
                let (start, end) = (lba * 512, lba * 512 + length);
                let whole = end / BLOCK_BYTES - (start + immediate).div_ceil(BLOCK_BYTES);
                let parts = length - whole * BLOCK_BYTES;
                // The initiator and the target copy immediate data, and the initiator its messages.
                let most = (parts + 2 * immediate + 4096) as u64;
                assert!(
                    copied <= most,
                    "{copied} bytes of {length} at {start} were copied, immediate: {immediate}"
                );
                assert!(client.read(lba as u32, (length / 512) as u16).await == data);
            }
            client.log_out().await;
        }
        bench.expect_idle().await;
    });
}

/// Lets the client poll its queue pair, and the target run, `times` times.
async fn advance(client: &mut Client, times: usize) {
    for _ in 0..times {
        if let Poll::Ready(step) = pin!(client.step()).poll(&mut Context::from_waker(Waker::noop())) {
            step.unwrap();
        }
        let mut yielded = false;
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[test]
fn writes_store_what_a_reference_stores() {
    run(&ConnectionLimits::default(), async |bench| {
        let mut reference = vec![0; (BLOCKS * 512) as usize];
        for seed in 1..=4_u64 {
            println!("seed {seed}");
            let mut generator = SplitMix64::seed_from_u64(seed);
            let mut random = |below: usize| (generator.next_u64() % below as u64) as usize;
            let mut client = session(&bench, random(2) == 0).await;
            for round in 0..10 {
                // Writes of one round are concurrent, each in its own quarter of the disk.
                let quarter = BLOCKS as usize / 4;
                let mut writes: Vec<(u32, Range<usize>, Vec<u8>)> = Vec::new();
                for n in 0..1 + random(4) {
                    let most = [17, 2 * IN_BLOCK, 40 * IN_BLOCK][random(3)];
                    let blocks = 1 + random(most);
                    let at = [random(quarter - blocks), random((quarter - blocks) / IN_BLOCK) * IN_BLOCK];
                    let at = n * quarter + at[random(2)];
                    let data = pattern(blocks * 512, random(1 << 16));
                    let cdb = rw10(0x2a, at as u32, blocks as u16);
                    let itt = client.submit(&cdb, Direction::Write, data.clone());
                    writes.push((itt, at * 512..(at + blocks) * 512, data));
                }
                client.flush();
                let aborted = writes[random(writes.len())].0;
                if random(3) == 0 {
                    advance(&mut client, random(60)).await;
                    if let Some(itt) = client.session().abort(aborted).unwrap() {
                        client.managed(itt).await.unwrap();
                    }
                }
                for (itt, range, data) in writes {
                    let outcome = client.outcome(itt).await.unwrap();
                    let (lba, blocks) = ((range.start / 512) as u32, (range.len() / 512) as u16);
                    let stored = client.read(lba, blocks).await;
                    match outcome {
                        Outcome::Completed { status: 0, .. } => assert!(stored == data, "round {round}"),
                        Outcome::Aborted if itt == aborted => {
                            assert!(stored == data || stored == reference[range.clone()], "round {round}");
                        }
                        other => panic!("round {round}: {other:?}"),
                    }
                    reference[range].copy_from_slice(&stored);
                }
                assert_eq!(client.exposed(), (0, 0));
            }
            for lba in (0..BLOCKS as usize).step_by(8192) {
                let stored = client.read(lba as u32, 8192).await;
                assert!(stored == reference[lba * 512..][..8192 * 512]);
            }
            client.log_out().await;
            bench.expect_idle().await;
        }
    });
}
