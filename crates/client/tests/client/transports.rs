//! The choice of the transport.

use std::{net::SocketAddr, time::Duration};

use millrace_client::{
    Error, Options, Proto, ProviderChoice, RetryPolicy, Url, handles::blocking::Client, ops::Status,
};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{Config, Running, Server};

fn start(rdma: Option<SocketAddr>, tcp: Option<SocketAddr>) -> Running {
    let config = Config {
        exports: vec!["/data=memory:16MiB".parse().unwrap()],
        listen_rdma: rdma.into_iter().collect(),
        provider: ProviderChoice::Iwarp,
        listen_tcp: tcp.into_iter().collect(),
        shards: Some(1),
        ..Config::default()
    };
    Server::start(config).unwrap()
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn at(addr: SocketAddr) -> Url {
    Url { port: Some(addr.port()), ..Url::new(addr.ip().to_string(), "/data") }
}

fn options() -> Options {
    let retry = RetryPolicy { max_elapsed: Duration::from_secs(20), ..RetryPolicy::default() };
    Options::default().nconnect(2).retry(retry)
}

/// The transport of the client's connections.
fn used(client: &Client) -> Proto {
    let connections = client.stats().connections;
    let over_rdma = connections.iter().filter(|c| c.provider.is_some()).count();
    assert!(over_rdma == 0 || over_rdma == connections.len(), "{connections:?}");
    if over_rdma == 0 { Proto::Tcp } else { Proto::Rdma }
}

#[test]
fn the_order_depends_on_url_and_options() {
    use Proto::{Rdma, Tcp};
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let of = |url: &str, options: &Options| {
        let url = url.parse().unwrap();
        tokio.block_on(async {
            millrace_client::transports(TokioRuntime::current(), &url, options).await.unwrap()
        })
    };
    let (default, over_tcp) = (Options::default(), Options::default().proto(Some(Tcp)));
    // 127.0.0.1 belongs to no RDMA device.
    for (url, options, expected) in [
        ("nfs://127.0.0.1/x", &default, vec![(Tcp, 2049), (Rdma, 20049)]),
        ("nfs://127.0.0.1:2049/x", &default, vec![(Tcp, 2049), (Rdma, 2049)]),
        ("nfs://127.0.0.1:7/x", &default, vec![(Rdma, 7), (Tcp, 7)]),
        ("nfs://127.0.0.1/x?proto=rdma", &default, vec![(Rdma, 20049)]),
        ("nfs+tcp://127.0.0.1:7/x", &default, vec![(Tcp, 7)]),
        ("nfs://127.0.0.1/x?provider=iwarp", &default, vec![(Rdma, 20049)]),
        ("nfs://127.0.0.1/x", &over_tcp, vec![(Tcp, 2049)]),
        ("nfs://127.0.0.1/x?provider=iwarp", &over_tcp, vec![(Tcp, 2049)]),
        ("nfs+rdma://127.0.0.1/x", &over_tcp, vec![(Rdma, 20049)]),
    ] {
        assert_eq!(of(url, options), expected, "{url}");
    }
}

#[test]
fn the_transport_is_that_which_answers_at_the_port() {
    let server = start(Some(any()), Some(any()));
    for (addr, expected) in [(server.rdma_addr(), Proto::Rdma), (server.tcp_addr(), Proto::Tcp)] {
        let client = Client::connect(&at(addr.unwrap()), options()).unwrap();
        // One call on each connection.
        client.getattr(client.root()).unwrap();
        client.getattr(client.root()).unwrap();
        assert_eq!(used(&client), expected);
        client.close();
    }
    server.stop_blocking(Duration::from_secs(1));
}

#[test]
fn a_client_keeps_its_transport() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        let start = |proto, addr| match proto {
            Proto::Rdma => start(Some(addr), None),
            Proto::Tcp => start(None, Some(addr)),
        };
        // Not at 127.0.0.1, where another connection may get the free port as its local one.
        let first = start(proto, "127.0.0.2:0".parse().unwrap());
        let addr = first.rdma_addr().or(first.tcp_addr()).unwrap();
        let client = Client::connect(&at(addr), options()).unwrap();
        client.getattr(client.root()).unwrap();
        first.stop_blocking(Duration::from_secs(1));
        let again = start(proto, addr);
        // The restarted server has another memory export.
        let e = client.getattr(client.root()).unwrap_err();
        assert_eq!(e.status(), Some(Status::Stale));
        assert_eq!(used(&client), proto);
        client.close();
        again.stop_blocking(Duration::from_secs(1));
    }
}

#[test]
fn the_error_names_all_transports() {
    let listener = std::net::TcpListener::bind(any()).unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let e = Client::connect(&at(addr), options()).map(drop).unwrap_err();
    let Error::NoTransport { failures, .. } = &e else { panic!("{e}") };
    assert_eq!(
        (failures.len(), e.kind(), e.is_unreachable()),
        (2, std::io::ErrorKind::ConnectionRefused, true)
    );
    let (port, text) = (addr.port(), e.to_string());
    for part in [format!("rdma at port {port}: "), format!("tcp at port {port}: "), "proto=tcp".to_owned()] {
        assert!(text.contains(&part), "{text}");
    }
}
