//! Results of checking a peer's access.

use millrace_buffer::Views;

/// Why an access of the peer was denied. The Terminate message has codes for most cases (RFC 5040 section
/// 4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The STag is unknown, has another key, was invalidated, or is reserved for the sink of an RDMA Read.
    #[error("invalid STag")]
    Stag,
    /// The STag does not grant this access right.
    #[error("access rights violation")]
    Rights,
    /// The range is outside the region.
    #[error("base or bounds violation")]
    Bounds,
    /// Tagged offset plus length exceeds 64 bits.
    #[error("tagged offset wrap")]
    Wrap,
    /// The write is permitted, but the memory has another owner: use
    /// [`StagTable::write_released`](super::StagTable::write_released).
    #[error("released memory")]
    Released,
}

/// Why an invalidation by the peer's Send with Invalidate was denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidateError {
    /// The STag is not in the table.
    #[error("unknown STag")]
    Unknown,
    /// Only this end may invalidate the STag.
    #[error("the peer may not invalidate this STag")]
    Protected,
}

/// Bytes of a region that the peer may read.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Contiguous bytes: exactly the requested range.
    Bytes(&'a [u8]),
    /// A gather list, and the position in it at which the range begins.
    Views(&'a Views, usize),
}
