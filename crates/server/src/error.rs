//! Why a server does not start.

use std::{io, net::SocketAddr, path::PathBuf};

/// Why a server does not start. Each message is one sentence for the person who started it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration says something that cannot be.
    #[error("{0}")]
    Config(String),
    /// An export's files cannot be opened.
    #[error("export {name}: {reason}")]
    Export {
        /// The export.
        name: String,
        /// Why.
        reason: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {addr} ({what}): {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// `TCP` or `RDMA`.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The RDMA provider that was asked for cannot serve an address.
    #[error("cannot listen on {addr} (RDMA): {source}")]
    Provider {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: millrace_rdma_providers::NotUsable,
    },
    /// The secret in the state directory cannot be read or made.
    #[error("cannot use the state directory {}: {source}", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A thread or its runtime cannot be made.
    #[error("cannot start a server thread: {0}")]
    Thread(io::Error),
}

/// A setting of a [`Config`](crate::Config) that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
#[non_exhaustive]
pub struct InvalidSetting {
    /// The path of the field in the configuration: `limits.rtmax`, or `exports.1.name` for the name of the second
    /// export.
    pub field: String,
    /// A sentence that says what is wrong and what to change.
    pub reason: String,
}

impl InvalidSetting {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

impl From<InvalidSetting> for ServerError {
    fn from(invalid: InvalidSetting) -> Self {
        Self::Config(invalid.reason)
    }
}
