//! Which RPC-over-RDMA design the server speaks, and what must be said before it exposes its memory.

use std::{net::SocketAddr, time::Duration};

use millrace_buffer::ByteSize;
use millrace_rpcrdma::{Design, ExposureLimits};

/// Whether somebody has accepted that the Read-Read design lets clients read the server's buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExposedBuffers {
    /// Nobody has.
    #[default]
    NotAccepted,
    /// For clients of this machine: RDMA listens on loopback addresses only.
    AcceptedOnLoopback,
    /// For every client that reaches the server.
    AcceptedOnNetworks,
}

/// What the Read-Read design may expose on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposure {
    /// The most regions.
    pub regions: usize,
    /// The most bytes.
    pub bytes: ByteSize,
    /// A client that has not acknowledged a reply after so many seconds loses its connection.
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

/// Says in the log what the design means.
pub(crate) fn announce(design: Design, exposure: &Exposure, rdma: &[SocketAddr]) {
    if design == Design::ReadRead && !rdma.is_empty() {
        let Exposure { regions, bytes, done_seconds } = exposure;
        tracing::warn!(
            "read-read design: what READ and READDIR answer is EXPOSED to the client until it says that it is done; \
             for each connection at most {regions} regions and {bytes}, each for at most {done_seconds} s"
        );
    }
}
