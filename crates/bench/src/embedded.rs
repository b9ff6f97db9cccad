//! A server with a memory export in a process of its own, so that its processor time can be told from ours.

use std::time::Duration;

use crate::{
    BenchError,
    child::{Peer, value},
};

/// The export's name.
pub const EXPORT: &str = "/bench";

/// A server in a child process; it ends when this is dropped.
pub struct EmbeddedServer {
    peer: Peer,
    rdma: String,
    tcp: String,
}

impl EmbeddedServer {
    /// Starts `millrace serve` (this program again) with a memory export of `capacity` bytes on free ports.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(capacity: u64) -> Result<Self, BenchError> {
        let export = format!("{EXPORT}=memory:{capacity}");
        let args =
            ["serve", "--export", &export, "--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0"];
        let quiet = ["--log", "error"];
        let mut peer = Peer::start(args.iter().chain(&quiet))?;
        let line = peer.line()?;
        let addr = |key| {
            let unexpected = || BenchError::Peer(format!("unexpected ready line '{line}'"));
            value(&line, key).map(str::to_owned).ok_or_else(unexpected)
        };
        Ok(Self { rdma: addr("rdma")?, tcp: addr("tcp")?, peer })
    }

    /// The URL of its export over `proto`.
    pub fn url(&self, proto: &str) -> String {
        let addr = if proto == "tcp" { &self.tcp } else { &self.rdma };
        format!("nfs://{addr}{EXPORT}?proto={proto}")
    }

    /// The processor time that it has used.
    pub fn cpu(&self) -> Option<Duration> {
        self.peer.cpu()
    }
}
