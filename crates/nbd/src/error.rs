//! Errors of servers.

use std::{io, path::PathBuf};

use crate::handshake::Violation;

/// Error of a [`Server`](crate::Server).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process listens on the socket.
    #[error(
        "cannot listen on {}: another process listens there; end it, or choose another path", path.display()
    )]
    InUse {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The path is that of an existing file that is not a socket.
    #[error("cannot listen on {}: the file exists and is not a socket; choose another path", path.display())]
    NotASocket {
        /// The path of the file.
        path: PathBuf,
    },
    /// The socket cannot be created.
    #[error("cannot listen on {}: {source}{}", path.display(), hint(source))]
    Bind {
        /// The path of the socket.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The flush at the end failed: completed writes of clients may be lost.
    #[error("cannot flush the device at the end: {0}; writes that no client has flushed may be lost")]
    Flush(#[source] millrace_iscsi_initiator::Error),
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The stream failed, or ended within a message.
    #[error("the connection failed: {0}")]
    Stream(#[from] io::Error),
    /// The client violated the protocol.
    #[error("the client violated the protocol: {0}")]
    Protocol(&'static str),
    /// The client did not complete the handshake in 30 seconds.
    #[error("the client did not complete the handshake in time")]
    Silent,
    /// For a minute or longer, the client did not continue a request that it had begun, or did not receive replies.
    #[error("the client stopped within a request, or did not receive its replies, for a minute")]
    Stalled,
}

impl From<Violation> for ConnectionError {
    fn from(Violation(what): Violation) -> Self {
        Self::Protocol(what)
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; create its directory",
        io::ErrorKind::PermissionDenied => "; choose a directory that you may write to",
        io::ErrorKind::InvalidInput => "; choose a path of at most 107 bytes",
        _ => "",
    }
}
