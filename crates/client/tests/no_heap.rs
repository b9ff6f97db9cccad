//! Alone in its process, because it replaces the allocator.

#![allow(clippy::unwrap_used)] // Test helpers, not input from a peer.
#![allow(unsafe_code)] // A global allocator has no safe form.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Duration,
};

use client::{Client, Options, Proto, Url};
use nfs::v3::StableHow;
use runtime::tokio_rt::TokioRuntime;
use server::{Config, Server};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more.
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System.alloc` with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LEN: usize = 64 << 10;
const CALLS: u64 = 1000;

#[test]
fn reads_and_writes_over_rdma_do_not_allocate_from_the_heap_in_steady_state() {
    let config = Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    let server = Server::start(config).unwrap();
    let port = server.rdma_addr().unwrap().port();
    let url = Url { port: Some(port), proto: Some(Proto::Rdma), ..Url::new("127.0.0.1", "/data") };
    // One thread: everything that the client does is counted here, its connection's driver too.
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = Client::connect(TokioRuntime::current(), &url, Options::default()).await.unwrap();
        let file = client.create_file("f", 0o600).await.unwrap().handle();
        let data = client.buffer(LEN).unwrap().freeze();
        let mut buffer = client.buffer(LEN).unwrap();
        let mut count = [0; 2];
        for counted in &mut count {
            let before = ALLOCATIONS.get();
            for _ in 0..CALLS {
                client.write_from(file, 0, data.clone().into(), StableHow::Unstable).await.unwrap();
                buffer = client.read_into(file, 0, buffer).await.unwrap().buffer;
            }
            *counted = ALLOCATIONS.get() - before;
        }
        println!("allocations: {count:?}");
        // Timers that are made once in a while, and nothing per call.
        assert!(count[1] < CALLS / 50, "{} allocations in {} calls", count[1], 2 * CALLS);
    });
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
}
