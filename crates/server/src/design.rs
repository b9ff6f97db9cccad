//! The RPC-over-RDMA design of the server, and the consent to exposure of its memory.

use std::{net::SocketAddr, time::Duration};

use millrace_buffer::ByteSize;
use millrace_rpcrdma::{Design, ExposureLimits};

/// Consent to the Read-Read design, with which clients can read the server's buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExposedBuffers {
    /// No consent.
    #[default]
    NotAccepted,
    /// Consent for clients on this host: RDMA listens on loopback addresses only.
    AcceptedOnLoopback,
    /// Consent for all clients that can reach the server.
    AcceptedOnNetworks,
}

/// Limits of the memory that the Read-Read design exposes on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposure {
    /// Maximum number of regions.
    pub regions: usize,
    /// Maximum number of bytes.
    pub bytes: ByteSize,
    /// Time limit in seconds for the acknowledgement of a reply, after which the client is disconnected; at
    /// least 1.
    pub done_seconds: u64,
}

impl Default for Exposure {
    fn default() -> Self {
        let ExposureLimits { regions, bytes, done_timeout } = ExposureLimits::default();
        Self { regions, bytes: ByteSize(bytes as u64), done_seconds: done_timeout.as_secs() }
    }
}

impl Exposure {
    pub(crate) fn limits(&self) -> ExposureLimits {
        ExposureLimits {
            regions: self.regions,
            bytes: usize::try_from(self.bytes.0).unwrap_or(usize::MAX),
            done_timeout: Duration::from_secs(self.done_seconds),
        }
    }
}

/// Logs a warning about the exposure of the Read-Read design.
pub(crate) fn log_exposure(design: Design, exposure: &Exposure, rdma: &[SocketAddr]) {
    if design == Design::ReadRead && !rdma.is_empty() {
        let Exposure { regions, bytes, done_seconds } = exposure;
        tracing::warn!(
            "read-read design: what READ and READDIR answer is EXPOSED to the client until it says that it is done; \
             for each connection at most {regions} regions and {bytes}, each for at most {done_seconds} s"
        );
    }
}
