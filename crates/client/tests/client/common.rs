//! A server in the test's process, for the tests of the path-level API, and the choice of the RDMA device.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use millrace_client::{Client, Proto, Version};
use millrace_rdma_providers::ProviderChoice;
use millrace_server::{Config, Running, Server};

/// Address and provider of the RDMA tests: an RDMA device if the environment contains its address.
pub(crate) fn rdma_at() -> (IpAddr, ProviderChoice) {
    match std::env::var("MILLRACE_TEST_VERBS") {
        Ok(address) => (address.parse().unwrap(), ProviderChoice::Verbs),
        Err(_) => (Ipv4Addr::LOCALHOST.into(), ProviderChoice::Iwarp),
    }
}

/// A server with a memory export of 256 MiB, and a small one of 1 MiB.
pub(crate) fn server() -> Running {
    let config = Config {
        exports: vec!["/data=memory:256MiB".parse().unwrap(), "/small=memory:1MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    Server::start(config).unwrap()
}

/// The versions of NFS that the tests run on.
pub(crate) const VERSIONS: [Version; 2] = [Version::V3, Version::V4_2];

/// The URL of an export over a transport.
pub(crate) fn url(server: &Running, proto: Proto, export: &str) -> String {
    let address = match proto {
        Proto::Rdma => server.rdma_addr().unwrap(),
        Proto::Tcp => server.tcp_addr().unwrap(),
    };
    format!("nfs://{address}/{export}?proto={proto}")
}

/// Runs `test` on an executor with a thread for each core.
pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(test);
}

/// Runs `test` over TCP and over RDMA with each version, each with a new server, with a function from an export's name
/// to a URL.
pub(crate) fn on_all<F: Future<Output = ()>>(test: impl Fn(Box<dyn Fn(&str) -> String>) -> F) {
    for (proto, version) in [Proto::Tcp, Proto::Rdma].into_iter().flat_map(|p| VERSIONS.map(|v| (p, v))) {
        let server = std::sync::Arc::new(server());
        let tokio =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let at = std::sync::Arc::clone(&server);
        tokio.block_on(test(Box::new(move |export| format!("{}&vers={version}", url(&at, proto, export)))));
        drop(tokio);
        let server = std::sync::Arc::into_inner(server).unwrap();
        server.stop_blocking(Duration::from_secs(1));
    }
}

/// A client of the large export.
pub(crate) async fn connect(url: &dyn Fn(&str) -> String) -> Client {
    Client::connect(url("data")).await.unwrap()
}
