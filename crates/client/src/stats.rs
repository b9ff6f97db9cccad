//! Counters of a client and its connections.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use millrace_oncrpc::stages::{StageStats, StageTimes};

/// Counters of a client since its creation.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Calls with a reply.
    pub calls: u64,
    /// Bytes of READ data.
    pub bytes_read: u64,
    /// Bytes of WRITE data.
    pub bytes_written: u64,
    /// Calls retransmitted after the loss of a connection.
    pub retransmits: u64,
    /// Reconnections.
    pub reconnects: u64,
    /// Bytes of unstable data that were rewritten after a restart of the server.
    pub rewritten: u64,
    /// Durations of the stages of sampled calls ([`crate::Options::sample_stages`]).
    pub stages: StageStats,
    /// The established connections.
    pub connections: Vec<ConnectionStats>,
}

/// Counters of one connection.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// The server's address.
    pub peer: String,
    /// The RDMA provider, if known.
    pub provider: Option<&'static str>,
    /// Counters of the queue pair, if known.
    pub queue_pair: Option<millrace_rdma::Counters>,
    /// Counters of the RPC-over-RDMA requester, on RDMA.
    pub requester: Option<millrace_rpcrdma::RequesterStatsSnapshot>,
}

impl ConnectionStats {
    /// Counters of a connection to `peer` without a queue pair.
    pub fn new(peer: impl Into<String>) -> Self {
        Self { peer: peer.into(), ..Self::default() }
    }
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) calls: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) retransmits: AtomicU64,
    pub(crate) reconnects: AtomicU64,
    pub(crate) rewritten: AtomicU64,
    pub(crate) stages: Arc<StageTimes>,
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Counts {
    pub(crate) fn snapshot(&self) -> Stats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Stats {
            calls: get(&self.calls),
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            retransmits: get(&self.retransmits),
            reconnects: get(&self.reconnects),
            rewritten: get(&self.rewritten),
            stages: self.stages.snapshot(),
            connections: Vec::new(),
        }
    }
}
