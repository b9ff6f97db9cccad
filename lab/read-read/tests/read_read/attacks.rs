//! Attacks on servers of the Read-Read design, which exposes their memory.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_client::{Options, Proto, Url, Version, handles::blocking::Client, rpcrdma::ProtocolRef};
use millrace_hostile::{Files, Peer, READ_READ, Source, attack};
use millrace_rdma_iwarp::Iwarp;
use millrace_read_read::{Design, ExposureLimits, ReadRead};
use millrace_server::{Config, Running, Server};

const SECRET: u8 = 0x5e;
/// Content of the file that the attacker opens itself.
const PUBLIC: u8 = 0x11;

fn config(protocol: ReadRead) -> Config {
    Config {
        exports: vec!["/x=memory:64MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        provider: "iwarp".parse().unwrap(),
        rdma_protocol: ProtocolRef::new(protocol),
        shards: Some(1),
        ..Config::default()
    }
}

fn start(exposure: ExposureLimits) -> (Running, SocketAddr) {
    let server = Server::start(config(ReadRead { exposure, ..ReadRead::default() })).unwrap();
    let addr = server.rdma_addr().unwrap();
    (server, addr)
}

/// A server whose connections share one table of consecutive tags.
fn start_weak() -> (Running, SocketAddr) {
    let weak = Arc::new(Iwarp::insecure_with_predictable_shared_tags());
    let server = Server::start_over(config(ReadRead::default()), weak).unwrap();
    let addr = server.rdma_addr().unwrap();
    (server, addr)
}

/// An honest client with a file of 1 MiB.
fn honest(addr: SocketAddr) -> Client {
    let url = Url { port: Some(addr.port()), proto: Some(Proto::Rdma), ..Url::new("127.0.0.1", "/x") };
    let client = Client::connect(
        &url,
        Options::default().vers(Some(Version::V3)).rdma_protocol(Design::ReadRead.protocol()),
    )
    .unwrap();
    for (name, fill) in [("secret", SECRET), ("public", PUBLIC)] {
        let file = client.create_file(name, 0o600).unwrap().handle();
        client.write(file, 0, &vec![fill; 1 << 20], millrace_client::ops::StableHow::FileSync).unwrap();
    }
    client
}

/// A client that has read the secret without acknowledging it, and the exposed memory of the server.
fn reading(addr: SocketAddr) -> (Files, Source) {
    let mut victim = Files::new(Peer::connect(addr, READ_READ).unwrap());
    let root = victim.mount("/x").unwrap();
    let file = victim.lookup(&root, "secret").unwrap();
    let source = victim.read(&file, 0, 64 << 10).unwrap().unwrap();
    (victim, source)
}

fn check(client: &Client) {
    let (file, _) = client.resolve("secret").unwrap();
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(client.read(file, 0, &mut bytes).unwrap(), 1 << 20);
    assert!(bytes.iter().all(|b| *b == SECRET));
}

#[test]
fn guessed_tags_are_rejected() {
    let (server, addr) = start(ExposureLimits::default());
    let client = honest(addr);
    let reads = attack::guess_reads(addr, READ_READ, 100, 1).unwrap();
    let writes = attack::guess_writes(addr, READ_READ, 100, 2).unwrap();
    for tries in [reads, writes] {
        assert_eq!((tries.tried, tries.refused, tries.bytes), (100, 100, 0));
    }
    check(&client);
    drop(client);
    server.stop_blocking(Duration::from_secs(1));
}

#[test]
fn a_known_tag_is_invalid_on_another_connection() {
    let (server, addr) = start(ExposureLimits::default());
    let client = honest(addr);
    let (mut victim, source) = reading(addr);
    let tries = attack::read_of_another(addr, READ_READ, source).unwrap();
    assert_eq!((tries.refused, tries.bytes), (tries.tried, 0));
    // Meanwhile the memory was readable on its own connection.
    assert_eq!(victim.steal(source).unwrap(), Some(vec![SECRET; 64 << 10]));
    check(&client);
    drop((client, victim));
    server.stop_blocking(Duration::from_secs(1));
}

/// The vulnerability of the first servers (TR06), reproduced with a provider for tests and the demonstration
/// only.
#[test]
fn only_predictable_tags_in_a_shared_table_can_be_guessed() {
    let tries = |addr| {
        let own = attack::own_tag(addr, READ_READ, "/x", "public").unwrap();
        attack::guess_near(addr, READ_READ, own.tag, 100).unwrap()
    };
    // The attacker opens only its own file, and gets no other tag.
    let weak = (start_weak(), (1, 0, Some(vec![SECRET; 4096])));
    let usual = (start(ExposureLimits::default()), (100, 100, None));
    for ((server, addr), expected) in [weak, usual] {
        let client = honest(addr);
        let (victim, _) = reading(addr);
        let (tries, stolen) = tries(addr);
        assert_eq!((tries.tried, tries.refused, stolen), expected);
        check(&client);
        drop((client, victim));
        server.stop_blocking(Duration::from_secs(1));
    }
}

#[test]
fn a_tag_is_invalid_after_its_acknowledgement_and_beyond_its_bounds() {
    let (server, addr) = start(ExposureLimits::default());
    let client = honest(addr);
    let tries = attack::reuse(addr, READ_READ, "/x", "secret").unwrap();
    assert_eq!((tries.tried, tries.refused, tries.bytes), (2, 2, 0));
    check(&client);
    drop(client);
    server.stop_blocking(Duration::from_secs(1));
}

#[test]
fn a_client_that_does_not_acknowledge_is_limited_in_bytes_and_time() {
    let exposure =
        ExposureLimits { regions: 16, done_timeout: Duration::from_secs(1), ..ExposureLimits::default() };
    let (server, addr) = start(exposure);
    let client = honest(addr);
    let begun = Instant::now();
    let hoard = attack::hoard(addr, READ_READ, "/x", "secret", 40).unwrap();
    let made_in = begun.elapsed().as_secs_f64();
    assert_eq!((hoard.replies, hoard.bytes), (16, 16 << 20));
    assert_eq!(server.stats().operations.exposure.bytes, 16 << 20);
    check(&client);
    hoard.wait().unwrap();
    check(&client);
    drop(client);
    let stats = server.stop_blocking(Duration::from_secs(1));
    let exposure = stats.operations.exposure;
    assert_eq!((exposure.regions, exposure.bytes), (0, 0));
    // Each region was exposed during the attack, and the connection ended a second after the first exposure.
    let least = f64::from(16 << 20) * (1.0 - made_in);
    assert!(exposure.byte_seconds() >= least, "{exposure:?}, made in {made_in} s");
    assert_eq!(stats.rdma.failed, 1);
}
