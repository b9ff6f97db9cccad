//! The locks that a READ takes at both ends. This test has its own process, because it reads process-wide counters.

#![allow(clippy::unwrap_used)] // Test helpers, not input from a peer.

use std::{sync::atomic::Ordering, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use millrace_buffer::call_counts::ARENA_LOCKS;
use millrace_client::{
    Options, Proto, Url, Version,
    handles::Client,
    ops::{FileHandle, StableHow},
};
use millrace_runtime::{
    call_counts::{Locks, count_locks, locks},
    tokio_rt::TokioRuntime,
};
use millrace_server::{Config, Server};

const BYTES: usize = 4 << 10;
const ROUNDS: u64 = 500;

/// Locks of 100 READs: the type of the protected data, and the maximum number with 1 and with 16 in flight.
type Permitted = [(&'static str, [u64; 2])];

/// Those of the server that all shards share. There is no lock of the arena, of the export table, of the duplicate
/// request cache, of the memory of calls and of the statistics.
const SERVER: &Permitted = &[
    ("millrace_vfs::memory::inode::InodeState", [100, 100]), // Of the file, shared.
    ("millrace_vfs::memory::table::Shard", [100, 100]),      // Of a part of the table of inodes, shared.
    SAMPLES,
];
/// Those of the client: of the call, of its connection, and of the connection's slot in the pool.
const CLIENT: &Permitted = &[
    ("core::option::Option<millrace_client::connect::Connection>", [100, 100]),
    ("millrace_oncrpc::calling::call::CallState", [400, 400]),
    ("millrace_oncrpc::calling::connection::DriverSlot<millrace_oncrpc::tcp::client::Driver>", [200, 100]),
    (
        "millrace_oncrpc::calling::connection::DriverSlot<millrace_rpcrdma::requester::driver::Driver>",
        [200, 100],
    ),
    ("millrace_rdma::stag::table::StagTable", [300, 300]),
    SAMPLES,
];
/// One call in 64 is sampled, and locks the spare samples twice.
const SAMPLES: (&str, [u64; 2]) =
    ("alloc::vec::Vec<alloc::sync::Arc<millrace_oncrpc::stages::sampler::Sample>>", [4, 4]);
/// Locks of timers, whose number does not depend on that of READs.
const OCCASIONAL: u64 = 10;

/// Fails if a thread of `threads` has taken more locks between `before` and `after` than `calls` READs may take.
fn check(
    before: &Locks,
    after: &Locks,
    threads: impl Fn(&str) -> bool,
    permitted: &Permitted,
    calls: u64,
    column: usize,
) {
    for (thread, taken) in after.iter().filter(|(name, _)| threads(name)) {
        for (protected, count) in taken {
            let count = count - before.get(thread).and_then(|taken| taken.get(protected)).unwrap_or(&0);
            let most =
                permitted.iter().find(|(name, _)| name == protected).map_or(0, |(_, most)| most[column]);
            let what = format!("{count} locks of {protected} by {thread} in {calls} READs");
            assert!(count <= most * calls / 100 + OCCASIONAL, "{what}, permitted for 100: {most}");
        }
    }
}

/// Reads `in_flight` times `ROUNDS` blocks.
async fn read(client: &Client, file: FileHandle, in_flight: u64) {
    // `join_all` would poll all sequences at each wake-up, and each poll of a call takes its lock.
    let sequences: FuturesUnordered<_> = (0..in_flight)
        .map(|_| async {
            let mut buffer = client.buffer(BYTES).unwrap();
            for _ in 0..ROUNDS {
                buffer = client.read_into(file, 0, buffer).await.unwrap().buffer;
            }
        })
        .collect();
    sequences.count().await;
}

#[test]
fn a_read_takes_no_lock_of_the_arena_and_no_other_than_permitted() {
    let config = Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    let server = Server::start(config).unwrap();
    let ports = [(Proto::Tcp, server.tcp_addr()), (Proto::Rdma, server.rdma_addr())];
    count_locks();
    // The client runs on this thread.
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (proto, addr) in ports {
        let port = Some(addr.unwrap().port());
        let url = Url { port, proto: Some(proto), ..Url::new("127.0.0.1", "/data") };
        tokio.block_on(async {
            let client =
                Client::connect(TokioRuntime::current(), &url, Options::default().vers(Some(Version::V3)))
                    .await
                    .unwrap();
            let file = client.create_file("f", 0o600).await.unwrap().handle();
            let data = client.buffer(BYTES).unwrap().freeze();
            client.write_from(file, 0, data.into(), StableHow::Unstable).await.unwrap();
            for (column, in_flight) in [1, 16].into_iter().enumerate() {
                read(&client, file, in_flight).await; // Fills the caches of free slots.
                let (before, arena) = (locks(), ARENA_LOCKS.load(Ordering::Relaxed));
                read(&client, file, in_flight).await;
                let (after, arena) = (locks(), ARENA_LOCKS.load(Ordering::Relaxed) - arena);
                let calls = ROUNDS * in_flight;
                assert!(arena <= OCCASIONAL, "{arena} locks of arenas in {calls} READs, {proto}");
                let shard = |name: &str| name.starts_with("millrace-shard");
                check(&before, &after, shard, SERVER, calls, column);
                check(&before, &after, |name| !shard(name), CLIENT, calls, column);
            }
        });
    }
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
}
