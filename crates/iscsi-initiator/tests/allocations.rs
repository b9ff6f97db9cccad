//! Heap allocations of reads and writes, of the initiator and of the target, over TCP and with iSER. This test has its
//! own process, because it counts the allocations of all threads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.

use millrace_counting_allocator::{allocations, allocations_of_all_threads};
use millrace_iscsi_initiator::{BlockDevice, Options, Url};
use millrace_runtime::tokio_rt::run_shard;
use millrace_server::{Config, Server, TargetSettings, target_name};

/// Offsets and lengths of operations, of which the last one is divided into several commands, which begin and end within
/// blocks of the file; and the number that is counted of each.
const OPERATIONS: [(u64, usize, u64); 3] = [(0, 4096, 2000), (0, 512 << 10, 1000), (4096, 4 << 20, 200)];

/// Allocations of the initiator and of the target.
fn now() -> [u64; 2] {
    let initiator = allocations();
    [initiator, allocations_of_all_threads() - initiator]
}

/// Allocations of both ends while `operation` runs `times` times, after it has run half as often.
async fn count(times: u64, mut operation: impl AsyncFnMut()) -> [u64; 2] {
    for _ in 0..times / 2 {
        operation().await;
    }
    let before = now();
    for _ in 0..times {
        operation().await;
    }
    let after = now();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn reads_and_writes_do_not_allocate_in_the_steady_state() {
    let name = target_name("disk").unwrap();
    let luns = vec!["/data/disk,size=8MiB,block=4096".parse().unwrap()];
    let config = Config {
        exports: vec!["/data=memory:16MiB".parse().unwrap()],
        targets: vec![TargetSettings::new(name.clone(), luns)],
        listen_iscsi: Some("127.0.0.1:0".parse().unwrap()),
        listen_iser: Some("127.0.0.1:0".parse().unwrap()),
        shards: Some(1),
        ..Config::default()
    };
    let server = Server::start(config).unwrap();
    let addresses = [("iscsi", server.iscsi_addr().unwrap()), ("iser", server.iser_addr().unwrap())];
    let mut found = Vec::new();
    run_shard(async {
        for (scheme, address) in addresses {
            let url: Url = format!("{scheme}://{address}/{name}/0").parse().unwrap();
            let disk = BlockDevice::connect(&url, &Options::default()).await.unwrap();
            for (offset, length, times) in OPERATIONS {
                let mut buffer = Some(disk.buffer(length).unwrap());
                let read = count(times, async || {
                    let filled = disk.read_at_into(offset, buffer.take().unwrap()).await.unwrap();
                    buffer = Some(filled);
                });
                let read = read.await;
                let data = buffer.unwrap().freeze();
                let write = async || disk.write_at_from(offset, data.clone().into()).await.unwrap();
                let written = count(times, write).await;
                for (kind, [initiator, target]) in [("READ", read), ("WRITE", written)] {
                    println!(
                        "{times} {kind}s of {length} by {scheme}: {initiator} initiator, {target} target"
                    );
                    found.push((scheme, kind, length, times, initiator + target));
                }
            }
            disk.close().await;
        }
    })
    .unwrap();
    server.stop_blocking(std::time::Duration::from_secs(1));
    // Timers and growing queues allocate now and then; an operation does not.
    assert!(found.iter().all(|(.., times, allocations)| *allocations < times / 10), "{found:?}");
}
