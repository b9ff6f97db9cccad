//! RPC-over-RDMA version 1 (RFC 8166, RFC 8797). The requester is the client's end of a connection, the
//! responder the server's end. In the Read-Write design, the default, only the requester exposes memory, and
//! only the responder issues RDMA Reads and RDMA Writes; [`Design`] describes the alternative, for research.
//!
//! - [`Responder`] runs the responder's end of one connection: it owns the queue pair, pulls arguments with
//!   RDMA Reads, passes calls to a [`millrace_oncrpc::Service`], pushes results with RDMA Writes, and
//!   replies.
//! - [`Requester`] is a [`millrace_oncrpc::Transport`]: it selects inline or chunk transfer for each part of
//!   a call, exposes a call's memory only while the call is open, and returns the payload in the caller's
//!   buffer.
//! - [`Header`] is the transport header, [`PrivateData`] the parameters that both ends exchange at connection
//!   setup.
//!
//! The Cargo feature `research` adds the Read-Read design and RDMA_MSGP, which RFC 8166 has removed.

mod call_memory;
mod chunks;
mod counters;
mod design;
mod header;
mod private_data;
mod pull;
mod requester;
mod responder;

pub use counters::{RequesterStats, RequesterStatsSnapshot, ResponderStats, ResponderStatsSnapshot};
#[cfg(feature = "research")]
pub use design::ExposureLimits;
pub use header::{Body, Chunk, Header, HeaderError, Lists, Padding, ReadSegment, TransportError};
pub use private_data::{DEFAULT_INLINE, Design, MAX_INLINE, PrivateData, Thresholds};
pub use requester::{Requester, RequesterConfig};
pub use responder::{Responder, ResponderConfig};

/// The well-known port of NFS over RPC-over-RDMA (RFC 8267 section 6).
pub const NFS_RDMA_PORT: u16 = 20049;
