//! A server with a memory export in a process of its own, so that its processor time can be told from ours.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use millrace_client::Proto;
use millrace_oncrpc::stages::StageStats;
use millrace_rpcrdma::registration::Strategy;

use crate::{
    At, BenchError,
    child::{Peer, value},
    scrape::{self, ServerCounters},
};

/// The registration strategy of a server whose configuration states none.
pub const SERVER_DEFAULT: Strategy = Strategy::Cache;

/// The capacity of a memory export for files of `bytes` bytes in all: twice their size, because the old and the new
/// content of rewritten data exist at the same time, and 256 MiB to spare.
pub fn room(bytes: u64) -> u64 {
    bytes.saturating_mul(2).saturating_add(256 << 20)
}

/// The export's name.
pub const EXPORT: &str = "/bench";

/// A server in a child process; it ends when this is dropped.
pub struct EmbeddedServer {
    peer: Peer,
    rdma: String,
    tcp: String,
    metrics: SocketAddr,
    registration: Option<Strategy>,
}

impl EmbeddedServer {
    /// Starts the current program with the command `serve` on free ports, with a memory export that has room for files
    /// of `bytes` bytes, which may be rewritten.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(bytes: u64, at: &At) -> Result<Self, BenchError> {
        Self::start_with(bytes, at, None, &[])
    }

    /// As [`Self::start`], with a registration strategy and further arguments for `serve`.
    ///
    /// # Errors
    /// When it does not start.
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
        let metrics = metrics.parse().map_err(|_| BenchError::Peer(format!("no address: '{metrics}'")))?;
        Ok(Self { rdma: addr("rdma")?, tcp: addr("tcp")?, metrics, registration, peer })
    }

    /// The URL of its export over `proto`.
    pub fn url(&self, proto: Proto) -> String {
        let addr = match proto {
            Proto::Tcp => &self.tcp,
            Proto::Rdma => &self.rdma,
        };
        format!("nfs://{addr}{EXPORT}?proto={proto}")
    }

    /// The registration strategy that it was told to use.
    pub fn registration(&self) -> Option<Strategy> {
        self.registration
    }

    /// What it has counted, once it exposes no memory any more (or has for 2 s).
    ///
    /// # Errors
    /// When it does not answer.
    pub fn counters(&self) -> Result<ServerCounters, BenchError> {
        scrape::settled(self.metrics)
    }

    /// What the stages of sampled calls took until now, over `transport` (`rdma`, `tcp`).
    ///
    /// # Errors
    /// When it does not answer.
    pub fn stages(&self, transport: &str) -> Result<StageStats, BenchError> {
        scrape::stages(self.metrics, transport)
    }

    /// The processor time that it has used.
    pub fn cpu(&self) -> Option<Duration> {
        self.peer.cpu()
    }
}
