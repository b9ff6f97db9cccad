//! The configuration of a daemon.

use std::{net::SocketAddr, path::PathBuf};

use crate::DaemonError;

/// The configuration of a daemon: that of its NFS service, and what the process offers beside it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The NFS service.
    pub server: millrace_server::Config,
    /// Address of the HTTP endpoint with `/metrics` (Prometheus) and `/healthz`; none by default. Port 0: any free port.
    pub metrics: Option<SocketAddr>,
    /// Path of the control socket, at which `millrace reload` asks for a reload; none by default. [`crate::Daemon`] does
    /// not open it: the program does.
    pub control: Option<PathBuf>,
    /// Register NFS and MOUNT with the rpcbind of this machine.
    pub rpcbind: bool,
    /// A warning for each deprecated key of the file that the configuration was read from.
    pub deprecated: Vec<String>,
}

impl Config {
    /// Checks everything that can be checked without opening files or addresses.
    ///
    /// # Errors
    /// [`DaemonError::Server`] with one sentence that says what to change.
    pub fn check(&self) -> Result<(), DaemonError> {
        Ok(self.server.check()?)
    }
}
