//! Errors of starting a server.

use std::{io, net::SocketAddr, path::PathBuf};

use millrace_iscsi::name::IscsiName;

/// The reason why a server cannot start. Each message is a sentence for the operator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// The file system of an export cannot be opened.
    #[error("export {name}: {reason}")]
    Export {
        /// Name of the export.
        name: String,
        /// Why the file system cannot be opened.
        reason: String,
    },
    /// The file of a LUN cannot be used.
    #[error("the LUN {path} of target {target}: {reason}")]
    Lun {
        /// Name of the target.
        target: IscsiName,
        /// Path of the file.
        path: String,
        /// Reason.
        reason: String,
    },
    /// The server cannot listen on an address.
    #[error("cannot listen on {addr} ({what}): {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// `TCP`, `RDMA` or `iSCSI`.
        what: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The configured RDMA provider cannot be used on an address.
    #[error("cannot listen on {addr} (RDMA): {source}")]
    Provider {
        /// The address.
        addr: SocketAddr,
        /// Cause.
        source: millrace_rdma_providers::ProviderError,
    },
    /// The secret in the state directory cannot be read or created.
    #[error("cannot use the state directory {}: {source}", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The certificate of the server cannot be used.
    #[error("cannot use the certificate of [tls]: {0}")]
    Tls(#[from] millrace_tls::ConfigError),
    /// Kerberos cannot be used.
    #[error("cannot use Kerberos ([kerberos]): {0}")]
    Kerberos(millrace_gssapi::Error),
    /// A thread or its runtime cannot be created.
    #[error("cannot start a server thread: {0}")]
    Thread(io::Error),
}

/// A setting of a [`Config`](crate::Config) that is invalid, or that deserves a warning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
#[non_exhaustive]
pub struct InvalidSetting {
    /// Path of the field in the configuration: `limits.rtmax`, or `exports.1.name` for the name of the second
    /// export.
    pub field: String,
    /// A sentence with the reason and the required change.
    pub reason: String,
}

impl InvalidSetting {
    /// The setting at `field` with the `reason`.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

impl From<InvalidSetting> for ServerError {
    fn from(invalid: InvalidSetting) -> Self {
        Self::Config(invalid.reason)
    }
}
