//! The client against the real server, in one process.

use std::{net::SocketAddr, time::Duration};

use millrace_client::{
    Options, Proto, ProviderChoice, RetryPolicy, Url, Version, handles::blocking::Client, ops::StableHow,
    rpcrdma::ProtocolRef,
};
use millrace_read_read::{Design, ReadRead};
use millrace_server::{Config, Running, Server};

const LEN: usize = 1 << 20;

fn start(protocol: ProtocolRef) -> Running {
    Server::start(Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap()],
        listen_rdma: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        provider: ProviderChoice::Iwarp,
        shards: Some(1),
        rdma_protocol: protocol,
        ..Config::default()
    })
    .unwrap()
}

fn url(server: &Running) -> Url {
    let port = server.rdma_addr().map(|addr| addr.port());
    Url { port, proto: Some(Proto::Rdma), ..Url::new("127.0.0.1", "/data") }
}

fn options(protocol: ProtocolRef) -> Options {
    let retry = RetryPolicy { max_elapsed: Duration::from_secs(20), ..RetryPolicy::default() };
    Options::default().vers(Some(Version::V3)).rdma_protocol(protocol).retry(retry)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn a_server_of_the_other_design_is_rejected_at_connect_with_the_reason() {
    let server = start(ProtocolRef::default());
    let error = Client::connect(&url(&server), options(crate::protocol())).err().unwrap().to_string();
    assert!(error.contains("use the design read-write"), "{error}");
    server.stop_blocking(Duration::from_secs(1));
}

/// A client of RFC 8166 ignores the design; its first call is refused.
#[test]
fn a_client_of_the_other_design_gets_an_error() {
    let server = start(crate::protocol());
    let options = options(ProtocolRef::default()).retry(RetryPolicy::NONE);
    let error = Client::connect(&url(&server), options).err().unwrap().to_string();
    assert!(error.contains("ERR_CHUNK"), "{error}");
    server.stop_blocking(Duration::from_secs(1));
}

/// The data of an inline WRITE is aligned in the server's receive buffer, and what is stored has no pad
/// bytes.
#[test]
fn small_writes_are_padded_if_configured() {
    let server = start(crate::protocol());
    let padding = Some("512:1024".parse().unwrap());
    let data = pattern(2000);
    for (protocol, expected) in [(ReadRead { padding, ..ReadRead::default() }, 2), (ReadRead::default(), 0)] {
        let options = options(ProtocolRef::new(protocol.clone()));
        let client = Client::connect(&url(&server), options).unwrap();
        let file = client.create_file("padded", 0o600).unwrap().handle();
        // Below the threshold, at it, above it, and too large for a message.
        for (len, offset) in [(1023, 0), (1024, 5000), (2000, 10_000), (100_000, 20_000)] {
            let data: Vec<u8> = data.iter().copied().cycle().take(len).collect();
            client.write(file, offset, &data, StableHow::FileSync).unwrap();
            let mut back = vec![0; len];
            assert_eq!(client.read(file, offset, &mut back).unwrap(), len);
            assert_eq!(back, data);
        }
        assert_eq!(protocol.counts.padded_calls.get(), expected);
    }
    server.stop_blocking(Duration::from_secs(1));
}

#[test]
fn the_server_starts_only_the_rdma_reads_and_the_client_reads_in_place() {
    let server = start(crate::protocol());
    let client = Client::connect(&url(&server), options(Design::ReadRead.protocol())).unwrap();
    let file = client.create_file("f", 0o600).unwrap().handle();
    let data = pattern(LEN);
    let mut buffer = client.arena().alloc(LEN).unwrap();
    for n in 0..8 {
        let at = n * LEN as u64;
        client.write(file, at, &data, StableHow::FileSync).unwrap();
        let address = buffer.address();
        let r = client.read_into(file, at, buffer).unwrap();
        assert!(r.count == LEN && r.buffer[..] == data[..] && r.buffer.address() == address);
        buffer = r.buffer;
    }
    let queue_pair = client.stats().connections[0].queue_pair.unwrap();
    assert_eq!((queue_pair.peer_writes, queue_pair.peer_reads), (0, 8));
    drop((client, buffer));
    server.stop_blocking(Duration::from_secs(1));
}
