//! Memory of the server for idle connections. This test has its own process, because it counts the allocations of all
//! threads.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Test helpers, not input from a peer.
#![allow(dead_code)] // The helpers have other users.

#[path = "server/common/mod.rs"]
mod common;

use std::time::Duration;

use common::{Caller, Proto, config, run};
use millrace_counting_allocator::{held_bytes, held_bytes_of_all_threads};
use millrace_nfs::v3::{FileHandle, StableHow};
use millrace_server::{Config, Running, Server};

/// Connections before those that are counted, and connections that are counted.
const CONNECTIONS: [usize; 2] = [40, 64];
const READS: usize = 4;

/// Bytes of the heap that the server's threads hold, and bytes of buffers in use, as soon as they do not change: the server
/// releases the memory of the last calls after it has replied.
async fn held(server: &Running) -> [i64; 2] {
    let now = || [held_bytes_of_all_threads() - held_bytes(), server.stats().memory.in_use as i64];
    let (mut last, mut same) = (now(), 0);
    for _ in 0..500 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let current = now();
        same = if current == last { same + 1 } else { 0 };
        last = current;
        if same == 5 {
            break;
        }
    }
    last
}

/// Connections that have called the server and are idle.
async fn connect(server: &Running, proto: Proto, file: FileHandle, count: usize) -> Vec<Caller> {
    let mut callers = Vec::new();
    for _ in 0..count {
        let caller = Caller::connect(server, proto).await;
        for _ in 0..READS {
            assert_eq!(caller.read(file, 0, 4096).await.unwrap().0.len(), 4096);
        }
        callers.push(caller);
    }
    callers
}

/// Bytes of heap and of buffers for an idle connection.
async fn held_for_each(proto: Proto) -> [i64; 2] {
    let exports = config(&["/x=memory:16MiB,squash=none"]);
    let server = Server::start(Config { shards: Some(1), float_shards: false, ..exports }).unwrap();
    let caller = Caller::connect(&server, proto).await;
    let root = caller.mount("/x").await.unwrap();
    let file = caller.create(root, "f").await;
    caller.write(file, 0, &[7; 4096], StableHow::Unstable).await.unwrap();
    let others = connect(&server, proto, file, CONNECTIONS[0]).await;
    let before = held(&server).await;
    let callers = connect(&server, proto, file, CONNECTIONS[1]).await;
    let after = held(&server).await;
    drop((caller, others, callers));
    server.stop(Duration::from_secs(5)).await;
    [0, 1].map(|n| (after[n] - before[n]) / CONNECTIONS[1] as i64)
}

#[test]
fn an_idle_connection_holds_little_memory() {
    run(async {
        for (proto, heap, buffers) in [(Proto::Tcp, 5300, 512), (Proto::Rdma, 10300, 512)] {
            let held = held_for_each(proto).await;
            println!(
                "{proto:?}: {} bytes of heap and {} bytes of buffers for an idle connection",
                held[0], held[1]
            );
            assert!(held[0] <= heap && held[1] <= buffers, "{proto:?}: {held:?}");
        }
    });
}
