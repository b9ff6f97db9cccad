//! Whole connections in virtual time: a server on one simulated host, and on others a peer that executes the
//! input's operations, and a correct client.
//!
//! RDMA is iWARP over the simulated TCP, because the simulated fabric exchanges no bytes that could be
//! mutated.

mod calls;
mod getattr;
mod honest;
mod iwarp_over;
pub(super) mod nfs4_server;
mod raw_peer;
pub(super) mod rdma_client;
pub(super) mod rdma_server_messages;
mod scene;
pub(super) mod tcp_client;
mod wire;

pub(super) use getattr::GetattrServer;
pub(super) use raw_peer::{rdma_server_stream, tcp_server};
