//! RPC-over-RDMA version 1 (RFC 8166, 8797): the requester is the RPC client's end of a connection, the responder the
//! server's end. In the Read-Write design, the usual one, only the requester exposes memory, and only the responder
//! issues RDMA Reads and RDMA Writes; [`Design`] describes the other one.
//!
//! - [`Responder`] runs the responder's end of one connection: it owns the queue pair, pulls arguments with RDMA Reads,
//!   hands calls to a [`millrace_oncrpc::Service`], pushes results with RDMA Writes, and replies.
//! - [`Requester`] is a [`millrace_oncrpc::Transport`]: it decides what travels inline and what by chunk, exposes the memory
//!   of a call for exactly as long as the call is open, and gives the payload back in the caller's own buffer.
//! - [`Header`] is the wire form, [`PrivateData`] what both ends say of themselves at connection set-up.
//! - [`registration`] holds the strategies by which a call's memory becomes regions.

mod chunks;
mod counters;
mod design;
mod header;
mod private_data;
mod pull;
pub mod registration;
mod requester;
mod responder;

pub use design::{Design, ExposureLimits};
pub use header::{Body, Chunk, Header, HeaderError, Lists, Padding, ReadSegment, TransportError};
pub use private_data::{DEFAULT_INLINE, MAX_INLINE, PrivateData, Thresholds};
pub use requester::{Requester, RequesterConfig, RequesterStats, RequesterStatsSnapshot};
pub use responder::{Responder, ResponderConfig, ResponderStats, ResponderStatsSnapshot};

/// The well-known port of NFS over RPC-over-RDMA (RFC 8267 section 6).
pub const NFS_RDMA_PORT: u16 = 20049;
