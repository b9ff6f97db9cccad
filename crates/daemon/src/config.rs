//! The configuration of a daemon.

use std::{net::SocketAddr, path::PathBuf};

use millrace_rdma_providers::IWARP;
use millrace_server::{InvalidSetting, ServerError};

use crate::{DaemonError, Diagnostic, MetricsAccess};

/// The configuration of a daemon: that of its NFS and iSCSI service, and the additional services of the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The NFS and iSCSI service.
    pub server: millrace_server::Config,
    /// Address of the HTTP endpoint: the status page and `/metrics` (Prometheus); none by default. Port 0
    /// selects a free port.
    pub metrics: Option<SocketAddr>,
    /// Who may use this endpoint.
    pub metrics_access: MetricsAccess,
    /// Path of the control socket for `millrace reload`; none by default. The program opens it;
    /// [`crate::Daemon`] ignores it.
    pub control: Option<PathBuf>,
    /// Whether to register NFS and MOUNT with the rpcbind of this host.
    pub rpcbind: bool,
    /// Warnings about the configuration file: secrets that every user can read.
    pub warnings: Vec<Diagnostic>,
}

impl Config {
    /// Checks everything that can be checked without opening files or addresses.
    ///
    /// # Errors
    /// [`DaemonError::Server`] with the reason and the required change.
    pub fn check(&self) -> Result<(), DaemonError> {
        self.server.check()?;
        match self.conflicting_addresses().into_iter().chain(self.metrics_access.invalid(self.metrics)).next()
        {
            Some(conflict) => Err(ServerError::from(conflict).into()),
            None => Ok(()),
        }
    }

    /// The settings of the metrics endpoint that cannot be used.
    pub(crate) fn invalid_metrics(&self) -> impl Iterator<Item = InvalidSetting> {
        self.metrics_access.invalid(self.metrics).into_iter().chain(self.metrics_access.invalid_files())
    }

    /// The addresses on which two services would listen.
    pub(crate) fn conflicting_addresses(&self) -> Vec<InvalidSetting> {
        let server = &self.server;
        let list = |key: &'static str, list: &[SocketAddr]| {
            let keys = list.iter().enumerate().map(|(i, addr)| (format!("{key}.{i}"), key, *addr));
            keys.collect::<Vec<_>>()
        };
        let single =
            |key: &'static str, addr: Option<SocketAddr>| addr.map(|addr| (key.to_owned(), key, addr));
        // Addresses of RDMA adapters are in another port space than those of TCP, which software iWARP uses.
        let is_tcp = |addr: SocketAddr| {
            server.provider.to_listen(addr.ip()).is_ok_and(|chosen| chosen.provider.name() == IWARP)
        };
        let iser = server.listen_iser.filter(|addr| server.listen_iscsi != Some(*addr));
        let rdma = list("listen_rdma", &server.listen_rdma).into_iter().chain(single("listen_iser", iser));
        let mut services = list("listen_tcp", &server.listen_tcp);
        services.extend(rdma.filter(|(.., addr)| is_tcp(*addr)));
        services.extend(single("listen_iscsi", server.listen_iscsi));
        services.extend(single("metrics", self.metrics));
        let conflict = |(i, (field, key, addr)): (usize, &(String, &str, SocketAddr))| {
            let mut earlier = services.iter().take(i);
            let (_, other, taken) =
                earlier.find(|(.., earlier)| overlap(*earlier, *addr, *key != "metrics"))?;
            let what = format!("{addr} of {key} is in use by {other} ({taken}); give each its own port");
            Some(InvalidSetting::new(field.clone(), what))
        };
        services.iter().enumerate().filter_map(conflict).collect()
    }
}

/// Whether only one socket can listen on both addresses. For all IPv6 addresses it also accepts IPv4, except beside
/// sockets of the same server with an IPv4 address.
fn overlap(a: SocketAddr, b: SocketAddr, of_one_server: bool) -> bool {
    let has = |all: SocketAddr, other: SocketAddr| {
        all.ip().is_unspecified() && (all.is_ipv4() == other.is_ipv4() || (all.is_ipv6() && !of_one_server))
    };
    a.port() == b.port() && a.port() != 0 && (a == b || has(a, b) || has(b, a))
}
