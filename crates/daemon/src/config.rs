//! The configuration of a daemon.

use std::{net::SocketAddr, path::PathBuf};

use crate::DaemonError;

/// The configuration of a daemon: that of its NFS and iSCSI service, and the additional services of the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The NFS and iSCSI service.
    pub server: millrace_server::Config,
    /// Address of the HTTP endpoint: the status page and `/metrics` (Prometheus); none by default. Port 0
    /// selects a free port.
    pub metrics: Option<SocketAddr>,
    /// Path of the control socket for `millrace reload`; none by default. The program opens it;
    /// [`crate::Daemon`] ignores it.
    pub control: Option<PathBuf>,
    /// Whether to register NFS and MOUNT with the rpcbind of this host.
    pub rpcbind: bool,
    /// Warnings about the configuration file: deprecated keys, and secrets that every user can read.
    pub warnings: Vec<String>,
}

impl Config {
    /// Checks everything that can be checked without opening files or addresses.
    ///
    /// # Errors
    /// [`DaemonError::Server`] with the reason and the required change.
    pub fn check(&self) -> Result<(), DaemonError> {
        Ok(self.server.check()?)
    }
}
