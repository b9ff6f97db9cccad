//! RDMA in the vocabulary of verbs (RFC 5040, rdma-core), and the providers behind it.
//!
//! - A [`Provider`] connects and listens and gives [`QueuePair`]s.
//! - A queue pair belongs to one task, which posts work and polls completions. It is also the I/O driver: nothing
//!   moves unless it is polled.
//! - Memory is [`buffer`] memory. A work request takes the buffers or views it needs and they come back with its
//!   completion (or are released when the queue pair goes).
//! - A [`Domain`] is the protection domain of one connection. [`MemoryRegion::expose`] *consumes* a region and gives
//!   an [`ExposedRegion`], whose memory no Rust code can touch until [`ExposedRegion::revoke`] has made the peer
//!   unable to: the security argument of the papers as a type.

mod domain;
mod memory;
mod meter;
pub mod provider;
mod queue_pair;
pub mod stag;

pub use domain::{
    Domain, DomainRef, ExposeError, Exposure, ExposureId, GLOBAL_PAGE, LocalKey, LocalUse, Means, Segments,
};
pub use memory::{Access, ExposedRegion, Memory, MemoryRegion, Segment, SteeringTag};
pub use meter::{ExposureBatch, ExposureMeter, ExposureStats};
pub use queue_pair::{
    Capabilities, Completion, ConnectParams, ConnectionError, ConnectionInfo, Counters, Incoming, Listener,
    MAX_PIECES, MAX_TRANSFER, PostError, Provider, QueuePair, ReadRequest, RejectReason, SendRequest, WorkId,
    WriteRequest,
};
