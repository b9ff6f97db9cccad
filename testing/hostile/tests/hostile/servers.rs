//! Attacks on servers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use millrace_client::{Options, Proto, Url, Version, handles::blocking::Client};
use millrace_hostile::{READ_READ, READ_WRITE, attack};
use millrace_rdma_iwarp::Iwarp;
use millrace_server::{Config, Running, Server};

const SECRET: u8 = 0x5e;
/// Content of the file that the attacker opens itself.
const PUBLIC: u8 = 0x11;

fn config() -> Config {
    Config {
        exports: vec!["/x=memory:64MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        provider: "iwarp".parse().unwrap(),
        shards: Some(1),
        ..Config::default()
    }
}

fn start() -> (Running, SocketAddr) {
    let server = Server::start(config()).unwrap();
    let addr = server.rdma_addr().unwrap();
    (server, addr)
}

/// A server whose connections share one table of consecutive tags.
fn start_weak() -> (Running, SocketAddr) {
    let weak = Arc::new(Iwarp::insecure_with_predictable_shared_tags());
    let server = Server::start_over(config(), weak).unwrap();
    let addr = server.rdma_addr().unwrap();
    (server, addr)
}

/// An honest client with a file of 1 MiB.
fn honest(addr: SocketAddr) -> Client {
    let url = Url { port: Some(addr.port()), proto: Some(Proto::Rdma), ..Url::new("127.0.0.1", "/x") };
    let client = Client::connect(&url, Options::default().vers(Some(Version::V3))).unwrap();
    for (name, fill) in [("secret", SECRET), ("public", PUBLIC)] {
        let file = client.create_file(name, 0o600).unwrap().handle();
        client.write(file, 0, &vec![fill; 1 << 20], millrace_client::ops::StableHow::FileSync).unwrap();
    }
    client
}

fn check(client: &Client) {
    let (file, _) = client.resolve("secret").unwrap();
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(client.read(file, 0, &mut bytes).unwrap(), 1 << 20);
    assert!(bytes.iter().all(|b| *b == SECRET));
}

#[test]
fn guessed_tags_are_rejected() {
    let (server, addr) = start();
    let client = honest(addr);
    let reads = attack::guess_reads(addr, READ_WRITE, 100, 1).unwrap();
    let writes = attack::guess_writes(addr, READ_WRITE, 100, 2).unwrap();
    for tries in [reads, writes] {
        assert_eq!((tries.tried, tries.refused, tries.bytes), (100, 100, 0));
    }
    check(&client);
    drop(client);
    server.stop_blocking(Duration::from_secs(1));
}

#[test]
fn a_server_exposes_no_memory() {
    let (server, addr) = start();
    let client = honest(addr);
    attack::guess_reads(addr, READ_WRITE, 10, 3).unwrap();
    // Each call of a client of the other design is rejected.
    assert!(attack::hoard(addr, READ_READ, "/x", "secret", 10).is_err());
    check(&client);
    drop(client);
    let stats = server.stop_blocking(Duration::from_secs(1));
    let exposure = stats.operations.exposure;
    assert_eq!((exposure.peak_regions, exposure.peak_bytes, exposure.byte_nanoseconds), (0, 0, 0));
}

#[test]
fn a_server_resists_even_with_predictable_shared_tags() {
    let (server, addr) = start_weak();
    let client = honest(addr);
    let (tries, stolen) = attack::guess_near(addr, READ_WRITE, 0, 200).unwrap();
    assert_eq!((tries.tried, tries.refused, stolen), (200, 200, None));
    check(&client);
    drop(client);
    server.stop_blocking(Duration::from_secs(1));
}
