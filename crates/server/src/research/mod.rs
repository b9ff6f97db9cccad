//! Settings for research: the RPC-over-RDMA design, and the consent to exposure of the server's memory.
//!
//! `Config` contains a `Research`. Its fields exist with the Cargo feature `research` only, which the program
//! `millrace` does not enable.

#[cfg(feature = "research")]
mod read_read;

#[cfg(feature = "research")]
pub use read_read::{ExposedBuffers, Exposure};

/// Settings for research. It has fields with the Cargo feature `research` only; the server uses the Read-Write
/// design without it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Research {
    /// The RPC-over-RDMA design. The Read-Read design exposes the server's memory to clients and requires
    /// consent ([`Self::exposed_buffers`]).
    #[cfg(feature = "research")]
    pub design: millrace_rpcrdma::Design,
    /// Consent to the exposure of memory.
    #[cfg(feature = "research")]
    pub exposed_buffers: ExposedBuffers,
    /// Limits of the memory that the Read-Read design exposes.
    #[cfg(feature = "research")]
    pub exposure: Exposure,
}
