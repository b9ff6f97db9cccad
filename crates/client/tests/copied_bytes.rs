//! Copies in user space. These tests have their own process, and run one after another, because the counter of copied
//! bytes is process-wide.

#![allow(clippy::unwrap_used)] // Test helpers, not input from a peer.
#![allow(dead_code)] // The helpers have other users.

#[path = "client/common.rs"]
mod common;

use std::{net::SocketAddr, sync::Mutex, time::Duration};

use millrace_client::{Options, Proto, Url, Version, handles::blocking::Client, ops::StableHow};
use millrace_rdma_providers::ProviderChoice;
use millrace_server::{Config, Server};

use common::{VERSIONS, rdma_at, url};

const LEN: usize = 1 << 20;

/// Locked by each test.
static COUNTER: Mutex<()> = Mutex::new(());

#[test]
fn neither_end_copies_the_data_of_large_reads_and_writes_over_rdma() {
    let _counter = COUNTER.lock();
    let (at, provider) = rdma_at();
    let config = Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap()],
        listen_rdma: vec![SocketAddr::new(at, 0)],
        provider,
        shards: Some(1),
        ..Config::default()
    };
    let server = Server::start(config).unwrap();
    let port = server.rdma_addr().unwrap().port();
    let url = Url { port: Some(port), proto: Some(Proto::Rdma), ..Url::new(at.to_string(), "/data") };
    let client = Client::connect(&url, Options::default().vers(Some(Version::V3))).unwrap();
    let file = client.create_file("f", 0o600).unwrap().handle();
    let mut data = client.arena().alloc(LEN).unwrap();
    data.iter_mut().enumerate().for_each(|(i, b)| *b = (i >> 3) as u8);
    let data = data.freeze();

    let before = millrace_buffer::copied::total();
    for n in 0..8 {
        let at = n * LEN as u64;
        let w = client.write_from(file, at, data.clone().into(), StableHow::FileSync).unwrap();
        assert_eq!(w.count, LEN);
    }
    let mut buffer = client.arena().alloc(LEN).unwrap();
    for n in 0..8 {
        let address = buffer.address();
        let r = client.read_into(file, n * LEN as u64, buffer).unwrap();
        assert_eq!(r.buffer.address(), address);
        assert!(r.count == LEN && r.buffer[..] == data[..]);
        buffer = r.buffer;
    }
    assert_eq!(millrace_buffer::copied::total() - before, 0);

    let stats = client.stats();
    assert_eq!((stats.bytes_read, stats.bytes_written), (8 << 20, 8 << 20));
    let queue_pair = stats.connections[0].queue_pair.unwrap();
    // Adapters do not report the RDMA operations of the peer.
    if provider == ProviderChoice::Iwarp {
        assert_eq!((queue_pair.peer_writes, queue_pair.peer_reads), (8, 8), "the server starts them all");
        assert!(queue_pair.placed_directly > 7 << 20);
    }
    drop(client);
    server.stop_blocking(Duration::from_secs(1));
}

/// Over TCP the file system keeps the memory in which the server has received the data of a large WRITE, except bytes that
/// the server receives with the preceding call.
#[test]
fn large_writes_over_tcp_are_not_copied() {
    const WRITES: u64 = 8;
    let _counter = COUNTER.lock();
    let server = Server::start(tcp_config()).unwrap();
    for version in VERSIONS {
        let url: Url = url(&server, Proto::Tcp, "data").parse().unwrap();
        let client = Client::connect(&url, Options::default().vers(Some(version))).unwrap();
        let file = client.create_file("w", 0o600).unwrap().handle();
        let mut data = client.arena().alloc(LEN).unwrap();
        for pass in 0..2 {
            data.iter_mut().enumerate().for_each(|(i, b)| *b = ((i >> 3) as u8).wrapping_add(pass));
            let sent = data.freeze();
            let before = millrace_buffer::copied::total();
            for n in 0..WRITES {
                let w = client
                    .write_from(file, n * LEN as u64, sent.clone().into(), StableHow::FileSync)
                    .unwrap();
                assert_eq!(w.count, LEN, "NFSv{version}");
            }
            // Of each call at most 16 KiB arrive before its length is decoded.
            let copied = millrace_buffer::copied::total() - before;
            assert!(copied <= WRITES * (17 << 10), "NFSv{version}, pass {pass}: {copied} bytes copied");
            let mut last = vec![0; LEN];
            client.read(file, (WRITES - 1) * LEN as u64, &mut last).unwrap();
            assert!(last[..] == sent[..]);
            data = client.arena().alloc(LEN).unwrap();
        }
    }
    server.stop_blocking(Duration::from_secs(1));
}

/// Over TCP the client receives the data of a large READ in the caller's memory, except bytes that it receives with the
/// preceding reply.
#[test]
fn large_reads_over_tcp_are_received_in_the_memory_of_the_caller() {
    const READS: u64 = 8;
    let _counter = COUNTER.lock();
    let server = Server::start(tcp_config()).unwrap();
    for version in VERSIONS {
        let url: Url = url(&server, Proto::Tcp, "data").parse().unwrap();
        let client = Client::connect(&url, Options::default().vers(Some(version))).unwrap();
        let file = client.create_file("f", 0o600).unwrap().handle();
        let data: Vec<u8> = (0..LEN).map(|i| (i >> 3) as u8).collect();
        for n in 0..READS {
            client.write(file, n * LEN as u64, &data, StableHow::FileSync).unwrap();
        }
        let mut buffer = client.arena().alloc(LEN).unwrap();
        let before = millrace_buffer::copied::total();
        for n in 0..READS {
            client.getattr(file).unwrap();
            let address = buffer.address();
            let r = client.read_into(file, n * LEN as u64, buffer).unwrap();
            assert_eq!(r.buffer.address(), address, "NFSv{version}");
            assert!(r.count == LEN && r.buffer[..] == data[..]);
            buffer = r.buffer;
        }
        // The client copies what it has read before it knew the length of the reply, at most 16 KiB also after a small
        // reply, and the headers.
        let copied = millrace_buffer::copied::total() - before;
        assert!(copied <= READS * (17 << 10), "{copied} bytes copied");
    }
    server.stop_blocking(Duration::from_secs(1));
}

/// A memory export over TCP.
fn tcp_config() -> Config {
    Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        ..Config::default()
    }
}
