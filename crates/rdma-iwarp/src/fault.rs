//! The error that ends a connection, and the Terminate that reports it to the peer.

use millrace_rdma::{ConnectionError, stag::AccessError};

use super::wire::{
    ddp::{Tagged, Untagged},
    terminate::{ErrorCode, Terminate},
};

/// Why a connection ends.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Error for the owner of the queue pair.
    pub(crate) error: ConnectionError,
    /// Terminate for the peer, if any.
    pub(crate) terminate: Option<Terminate>,
}

impl Fault {
    /// An error that is not reported to the peer.
    pub(crate) const fn without_terminate(error: ConnectionError) -> Self {
        Self { error, terminate: None }
    }

    /// An error of the stream.
    pub(crate) fn io(e: &std::io::Error) -> Self {
        Self::without_terminate(ConnectionError::Io(e.to_string()))
    }

    /// A protocol violation by the peer; `what` gives details.
    pub(crate) fn peer(code: ErrorCode, what: impl std::fmt::Display) -> Self {
        Self {
            error: ConnectionError::PeerMisbehaved(format!("{code}: {what}")),
            terminate: Some(Terminate::bare(code)),
        }
    }

    /// A tagged segment with `len` payload bytes violated the protocol.
    pub(crate) fn tagged(code: ErrorCode, header: &Tagged, len: usize) -> Self {
        Self::peer(code, format_args!("{header}, {len} bytes")).with_segment(len, header.encode().to_vec())
    }

    /// An untagged segment with `len` payload bytes violated the protocol.
    pub(crate) fn untagged(code: ErrorCode, header: &Untagged, len: usize) -> Self {
        Self::peer(code, format_args!("{header}, {len} bytes")).with_segment(len, header.encode().to_vec())
    }

    /// The source of the Read Request `header` with `body` may not be read.
    pub(crate) fn read_source(denied: AccessError, header: &Untagged, body: Vec<u8>) -> Self {
        let code = match denied {
            AccessError::Stag | AccessError::Released => ErrorCode::READ_TAG,
            AccessError::Rights => ErrorCode::READ_RIGHTS,
            AccessError::Bounds => ErrorCode::READ_BOUNDS,
            AccessError::Wrap => ErrorCode::READ_WRAP,
        };
        let mut fault = Self::untagged(code, header, body.len());
        if let Some(t) = fault.terminate.as_mut() {
            t.read = Some(body);
        }
        fault
    }

    /// The RDMA Write segment `header` may not be placed. (DDP has no code for a missing access right; like
    /// siw, report an invalid tag.)
    pub(crate) fn write_target(denied: AccessError, header: &Tagged, len: usize) -> Self {
        let code = match denied {
            AccessError::Stag | AccessError::Rights | AccessError::Released => ErrorCode::TAG,
            AccessError::Bounds => ErrorCode::BOUNDS,
            AccessError::Wrap => ErrorCode::WRAP,
        };
        Self::tagged(code, header, len)
    }

    fn with_segment(mut self, len: usize, header: Vec<u8>) -> Self {
        if let Some(t) = self.terminate.as_mut() {
            t.segment = Some((u16::try_from(len).unwrap_or(u16::MAX), header));
        }
        self
    }
}
