//! The Read-Read design end to end, its encoding, and attacks of either end. The peers and services are those of the tests
//! of RFC 8166.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.

mod agreement;
mod attacks;
mod client;
mod echo;
mod hostile_requester;
mod hostile_responder;
#[path = "../../../../testing/crashtest/tests/simulated/idle.rs"]
mod idle;
#[path = "../../../../testing/crashtest/tests/simulated/mixed.rs"]
mod mixed;
mod simulated;
#[allow(dead_code)] // Of RFC 8166 alone.
#[path = "../../../../crates/rpcrdma/tests/rpcrdma/support/mod.rs"]
mod support;

use std::sync::Arc;

use millrace_buffer::Arena;
use millrace_client::rpcrdma::ProtocolRef;
use millrace_oncrpc::Transport;
use millrace_rdma::{ConnectParams, ConnectionError, QueuePair};
use millrace_read_read::{Design, ReadRead, Requester, Responder};
use millrace_rpcrdma::{PrivateData, Protocol, RequesterConfig, ResponderConfig, ResponderStats};

use support::{Echo, Link, Server, accepted, queue_pairs, rt};

/// The protocol of clients and servers.
fn protocol() -> ProtocolRef {
    Design::ReadRead.protocol()
}

/// Connection parameters of a bare queue pair of this design.
fn params() -> ConnectParams {
    let (remote_invalidate, size) = (false, 4096);
    let config = RequesterConfig { remote_invalidate, inline_size: size, ..RequesterConfig::default() };
    ReadRead::default().connect_params(&config)
}

/// Connection parameters of a bare queue pair of RFC 8166.
fn params_of_rfc() -> ConnectParams {
    let data = PrivateData { remote_invalidate: false, send_size: 4096, receive_size: 4096 };
    ConnectParams { private_data: data.encode().to_vec(), ..ConnectParams::default() }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect()
}

/// A responder with the echo service.
fn serve(
    qp: Box<dyn QueuePair>,
    arena: &Arena,
    config: ResponderConfig,
    protocol: ReadRead,
) -> Result<Server, ConnectionError> {
    let (service, stats) = (Arc::new(Echo::default()), Arc::new(ResponderStats::default()));
    let connection = accepted(qp, service.clone(), arena);
    let task = tokio::spawn(Responder::new(connection, config, protocol, Arc::clone(&stats))?.run());
    Ok(Server { service, stats, task })
}

/// Both ends of a connection, which share their counters.
async fn connected(
    link: Link,
    arena: &Arena,
    client: RequesterConfig,
    server: ResponderConfig,
    protocol: &ReadRead,
) -> (Arc<Requester>, Server) {
    let mut client = client;
    client.remote_invalidate &= link.can_be_invalidated(); // As `connect` does.
    let accept = protocol.accept_params(&server, ConnectParams::default());
    let (c, s) = queue_pairs(link, arena, protocol.connect_params(&client), accept).await;
    let server = serve(s, arena, server, protocol.clone()).unwrap();
    (Requester::from_queue_pair(c, rt(), arena.clone(), client, protocol.clone()).unwrap(), server)
}

/// Ends both sides and checks that all resources are released, and all exposed results were acknowledged.
async fn finish(client: Arc<Requester>, server: Server, arena: &Arena, protocol: &ReadRead) {
    assert_eq!(client.exposed(), (0, 0));
    client.close();
    drop(client);
    server.ended(arena).await;
    assert_eq!(protocol.counts.done_received.get(), protocol.counts.done_sent.get());
}
