//! RPC-over-RDMA version 1 (RFC 8166, RFC 8797). The requester is the client's end of a connection, the
//! responder the server's end. Only the requester exposes memory, and only the responder issues RDMA Reads and
//! RDMA Writes.
//!
//! - [`Responder`] runs the responder's end of one connection: it owns the queue pair, pulls arguments with
//!   RDMA Reads, passes calls to a [`millrace_oncrpc::Service`], pushes results with RDMA Writes, and
//!   replies.
//! - [`Requester`] is a [`millrace_oncrpc::Transport`]: it selects inline or chunk transfer for each part of
//!   a call, exposes a call's memory only while the call is open, and returns the payload in the caller's
//!   buffer.
//! - [`Header`] is the transport header, [`PrivateData`] the parameters that both ends exchange at connection
//!   setup.
//! - [`Protocol`] is what a client or a server needs of both. Other protocols can use the parts of this one: the
//!   header, [`chunks`], [`pull`], [`Marshaller`] and [`CreditDemand`].

mod call_memory;
pub mod chunks;
pub mod counters;
mod header;
mod private_data;
mod protocol;
pub mod pull;
mod requester;
mod responder;

pub use call_memory::CallMemory;
pub use counters::{RequesterStats, RequesterStatsSnapshot, ResponderStats, ResponderStatsSnapshot};
pub use header::{Body, Chunk, Header, HeaderError, Lists, MIN_CALL, ReadSegment, TransportError, VERSION};
pub use private_data::{DEFAULT_INLINE, MAX_INLINE, PrivateData, Thresholds};
pub use protocol::{Protocol, ProtocolRef, RequesterTransport, Rfc8166};
pub use requester::{CreditDemand, Marshaller, Outgoing, Requester, RequesterConfig};
pub use responder::{Accepted, Credits, Progress, Responder, ResponderConfig};

/// The well-known port of NFS over RPC-over-RDMA (RFC 8267 section 6).
pub const NFS_RDMA_PORT: u16 = 20049;
