//! A server with a memory export in a separate process, so that its processor time can be measured
//! separately.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use millrace_client::Proto;
use millrace_iscsi_initiator::Transport;
use millrace_oncrpc::stages::StageStats;
use millrace_rdma::registration::Strategy;

use crate::{
    At, BenchError,
    child::{Peer, value},
    scrape::{self, ServerCounters},
};

/// Registration strategy of a server without configuration.
pub const SERVER_DEFAULT: Strategy = Strategy::Cache;

/// Capacity of a memory export for files with a total of `bytes` bytes: twice the size, because old and new
/// content of rewritten data exist at the same time, plus 256 MiB.
pub fn room(bytes: u64) -> u64 {
    bytes.saturating_mul(2).saturating_add(256 << 20)
}

/// Name of the export.
pub const EXPORT: &str = "/bench";
/// Name of the target of the disk.
const TARGET: &str = "iqn.2026-01.example.millrace:bench";

/// A server in a child process, which ends on drop.
pub struct EmbeddedServer {
    peer: Peer,
    rdma: String,
    tcp: String,
    /// The address of the disks over TCP and iSER, if there are any.
    disks: Option<String>,
    metrics: SocketAddr,
    registration: Option<Strategy>,
}

impl EmbeddedServer {
    /// Starts this program with the command `serve` on free ports, with a memory export for files with a
    /// total of `bytes` bytes, which may be rewritten.
    ///
    /// # Errors
    /// The server does not start.
    pub fn start(bytes: u64, at: &At) -> Result<Self, BenchError> {
        Self::start_with(bytes, at, None, &[])
    }

    /// Like [`Self::start`], with a registration strategy and additional arguments for `serve`.
    ///
    /// # Errors
    /// The server does not start.
    pub fn start_with(
        bytes: u64,
        at: &At,
        registration: Option<Strategy>,
        more: &[String],
    ) -> Result<Self, BenchError> {
        at.choose()?;
        let export = format!("{EXPORT}=memory:{}", room(bytes));
        let (any_port, provider) = (SocketAddr::new(at.address, 0).to_string(), at.provider.to_string());
        let args = ["serve", "--export", &export, "--listen-rdma", &any_port, "--listen-tcp", &any_port];
        let with = ["--provider", &provider, "--log", "error"];
        let counted = ["--metrics".to_owned(), SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0).to_string()];
        let strategy = registration.map(|r| format!("--registration={r}"));
        let args = args.into_iter().chain(with).map(str::to_owned);
        let mut peer = Peer::start(args.chain(counted).chain(strategy).chain(more.iter().cloned()))?;
        let line = peer.line()?;
        let addr = |key| {
            let unexpected = || BenchError::Peer(format!("unexpected ready line '{line}'"));
            value(&line, key).map(str::to_owned).ok_or_else(unexpected)
        };
        let metrics = addr("metrics")?;
        let metrics =
            metrics.parse().map_err(|_| BenchError::Peer(format!("invalid address '{metrics}'")))?;
        let disks = addr("iscsi").ok();
        Ok(Self { rdma: addr("rdma")?, tcp: addr("tcp")?, disks, metrics, registration, peer })
    }

    /// Like [`Self::start`], with a disk of `disk` bytes besides the files, over iSCSI and, with the provider
    /// `iwarp`, iSER.
    ///
    /// # Errors
    /// The server does not start.
    pub fn start_with_disk(bytes: u64, disk: u64, at: &At) -> Result<Self, BenchError> {
        let lun = format!("{TARGET}={EXPORT}/disk,size={disk}");
        let any_port = SocketAddr::new(at.address, 0).to_string();
        Self::start_with(bytes + disk, at, None, &["--lun".into(), lun, "--listen-iscsi".into(), any_port])
    }

    /// URL of the disk over `transport`.
    ///
    /// # Errors
    /// The server has no disk.
    pub fn disk_url(&self, transport: Transport) -> Result<millrace_iscsi_initiator::Url, BenchError> {
        let none = || BenchError::Parameter("the server has no disk".into());
        let scheme = match transport {
            Transport::Tcp => "iscsi",
            Transport::Iser => "iser",
        };
        let url = format!("{scheme}://{}/{TARGET}/0", self.disks.as_deref().ok_or_else(none)?);
        url.parse().map_err(|e: millrace_iscsi_initiator::Error| BenchError::Client(e.to_string()))
    }

    /// URL of the export over `proto`.
    pub fn url(&self, proto: Proto) -> String {
        let addr = match proto {
            Proto::Tcp => &self.tcp,
            Proto::Rdma => &self.rdma,
        };
        format!("nfs://{addr}{EXPORT}?proto={proto}")
    }

    /// The registration strategy that was passed to the server.
    pub fn registration(&self) -> Option<Strategy> {
        self.registration
    }

    /// Reads its counters as soon as it exposes no memory, or after 2 s.
    ///
    /// # Errors
    /// The server does not respond.
    pub fn counters(&self) -> Result<ServerCounters, BenchError> {
        scrape::settled(self.metrics)
    }

    /// Reads the total stage times of sampled calls over `transport` (`rdma` or `tcp`).
    ///
    /// # Errors
    /// The server does not respond.
    pub fn stages(&self, transport: &str) -> Result<StageStats, BenchError> {
        scrape::stages(self.metrics, transport)
    }

    /// The process ID of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.peer.pid()
    }

    /// Processor time used so far.
    pub fn cpu(&self) -> Option<Duration> {
        self.peer.cpu()
    }
}
