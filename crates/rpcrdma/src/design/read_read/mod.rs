//! The Read-Read design (Callaghan 2003, the first OpenSolaris transport; RFC 5666): all bulk data moves by
//! RDMA Read.
//!
//! Calls are conveyed as in the Read-Write design, without chunks for results. The responder exposes long
//! results and long replies in its own memory and lists them in the *reply's* Read list. The requester reads
//! them, READ data directly into the caller's buffer, and sends RDMA_DONE, at which the responder revokes the
//! memory.
//!
//! **Security.** While a reply is unacknowledged, a client that holds or guesses its tag on that connection
//! can read the responder's memory, and a requester that sends no RDMA_DONE holds the memory. The responder
//! limits the regions, the bytes and the time. (Tags of the iWARP provider are random and valid on one
//! connection only.)
//!
//! RFC 5666 specifies that an RDMA_DONE consumes a credit. In this implementation a call whose reply has Read
//! chunks keeps its credit until its RDMA_DONE is sent, and the responder posts one additional receive for
//! each.

mod exposer;
mod padded;
mod reader;

use std::time::Duration;

pub(crate) use self::padded::padded;
pub(super) use self::{exposer::Exposer, reader::Reader};

/// Limits of the memory that a responder of the Read-Read design exposes on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExposureLimits {
    /// Maximum number of regions.
    pub regions: usize,
    /// Maximum number of bytes.
    pub bytes: usize,
    /// Time limit for RDMA_DONE after a reply. When it expires, the connection is closed and its memory
    /// revoked.
    pub done_timeout: Duration,
}

impl Default for ExposureLimits {
    fn default() -> Self {
        Self { regions: 1024, bytes: 128 << 20, done_timeout: Duration::from_secs(30) }
    }
}
