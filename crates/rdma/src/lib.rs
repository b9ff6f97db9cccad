//! RDMA in the vocabulary of verbs (RFC 5040, rdma-core), without a provider.
//!
//! - A [`Provider`] connects and listens, and creates [`QueuePair`]s. Each provider is a crate: `rdma-iwarp`,
//!   `rdma-verbs`, `rdma-sim`; the crate `rdma-providers` selects one for an address.
//! - A queue pair belongs to one task, which posts work and polls completions. Polling drives the I/O:
//!   without it nothing is sent or received.
//! - Memory is [`millrace_buffer`] memory. A work request takes buffers or views, which return with its
//!   completion or are released when the queue pair is dropped.
//! - A [`Domain`] is the protection domain of one connection. [`MemoryRegion::expose`] *consumes* a region
//!   and returns an [`ExposedRegion`], whose memory no Rust code can access until [`ExposedRegion::revoke`]
//!   has ended the peer's access.
//! - [`registration`] has the registration strategies of the users of connections.
//! - [`stag`] and [`provider`] are for implementations of providers.

mod domain;
mod memory;
mod meter;
pub mod provider;
mod queue_pair;
pub mod registration;
pub mod stag;

pub use domain::{
    Domain, DomainRef, ExposeError, Exposure, ExposureId, GLOBAL_PAGE, LocalKey, LocalUse, RegistrationKind,
    Segments,
};
pub use memory::{Access, ExposedRegion, Memory, MemoryRegion, Segment, SteeringTag};
pub use meter::{ExposureBatch, ExposureMeter, ExposureStats};
pub use queue_pair::{
    Capabilities, Completion, ConnectParams, ConnectionError, ConnectionInfo, Counters, Incoming, Listener,
    MAX_PIECES, MAX_TRANSFER, PostError, Provider, QueuePair, ReadRequest, RejectReason, SendRequest, WorkId,
    WriteRequest, ignore_closed,
};
