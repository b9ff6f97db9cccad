//! Heap allocations per call. This test has its own process, because it counts the allocations of all threads.

#![allow(clippy::unwrap_used)] // Test helpers, not input from a peer.

use std::time::Duration;

use millrace_client::{Options, Proto, Url, Version, handles::Client, ops::StableHow};
use millrace_counting_allocator::{allocations, allocations_of_all_threads};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{Config, Server};

/// Transfer sizes: small, the block size of a memory export, and the usual maximum.
const LENGTHS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const ROUNDS: u64 = 500;
/// Calls per round.
const CALLS: u64 = 4;

#[test]
fn reads_and_writes_over_rdma_do_not_allocate_from_the_heap_in_steady_state() {
    let config = Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        // Fill the duplicate request cache first: a cached reply keeps its gather list until it is replaced.
        limits: millrace_server::Limits { replies_kept: 64, ..millrace_server::Limits::default() },
        ..Config::default()
    };
    let server = Server::start(config).unwrap();
    let port = server.rdma_addr().unwrap().port();
    let url = Url { port: Some(port), proto: Some(Proto::Rdma), ..Url::new("127.0.0.1", "/data") };
    // A single-threaded runtime, so that the client's thread counter includes its connection. The
    // process-wide counter includes the server.
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client =
            Client::connect(TokioRuntime::current(), &url, Options::default().vers(Some(Version::V3)))
                .await
                .unwrap();
        let file = client.create_file("f", 0o600).await.unwrap().handle();
        for len in LENGTHS {
            let data = client.buffer(len).unwrap().freeze();
            let mut buffers = [client.buffer(len).unwrap(), client.buffer(len).unwrap()];
            let mut counts = [(0, 0); 2];
            for counted in &mut counts {
                let before = (allocations(), allocations_of_all_threads());
                for _ in 0..ROUNDS {
                    let write = |at| client.write_from(file, at, data.clone().into(), StableHow::Unstable);
                    let [a, b] = buffers;
                    let (x, y, a, b) = futures::join!(
                        write(0),
                        write(len as u64),
                        client.read_into(file, 0, a),
                        client.read_into(file, len as u64, b),
                    );
                    x.unwrap();
                    y.unwrap();
                    buffers = [a.unwrap().buffer, b.unwrap().buffer];
                    buffers.iter_mut().for_each(|b| b.set_len(len)); // The first reads may have been shorter.
                }
                let after = (allocations(), allocations_of_all_threads());
                *counted = (after.0 - before.0, after.1 - before.1);
            }
            println!("calls of {len} bytes: allocations (client, all) {counts:?}");
            // Occasional timers allocate; calls do not.
            let (ours, all) = counts[1];
            let most = ROUNDS * CALLS / 50;
            assert!(ours < most, "client: {ours} allocations in {} calls of {len} bytes", ROUNDS * CALLS);
            assert!(all < most, "both ends: {all} allocations in {} calls of {len} bytes", ROUNDS * CALLS);
        }
    });
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
}
