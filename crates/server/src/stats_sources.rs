//! The counters of all parts of a server, from which its statistics are read.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use futures::future::join_all;
use millrace_iscsi_target::TargetStats;
use millrace_oncrpc::tcp::TcpStats;
use millrace_rpcrdma::ResponderStats;
use millrace_runtime::{RuntimeRef, timeout};
use millrace_vfs::FsStat;

use crate::{
    metrics::{RdmaStats, ShardCounters, Stats},
    shard::{Probe, ShardHandle, Stages},
    shared::Shared,
    space::Spaces,
    targets::IscsiStats,
    usage::{UsageStats, value},
};

/// The sources of all statistics.
pub(crate) struct StatsSources {
    shards: Vec<Arc<ShardCounters>>,
    tcp: Vec<Arc<TcpStats>>,
    rdma: Vec<Arc<ResponderStats>>,
    iscsi: Vec<Arc<TargetStats>>,
    stages: Vec<Arc<Stages>>,
    probes: Vec<Arc<Probe>>,
    spaces: Arc<Spaces>,
    /// Runs what the caller waits for.
    rt: RuntimeRef,
    turned_away: Arc<AtomicU64>,
    shared: Arc<Shared>,
}

impl StatsSources {
    pub(crate) fn new(shards: &[ShardHandle], shared: &Arc<Shared>, rt: &RuntimeRef) -> Self {
        Self {
            shards: shards.iter().map(|h| Arc::clone(&h.counters)).collect(),
            tcp: shards.iter().map(|h| Arc::clone(&h.tcp)).collect(),
            rdma: shards.iter().map(|h| Arc::clone(&h.rdma)).collect(),
            iscsi: shards.iter().map(|h| Arc::clone(&h.iscsi)).collect(),
            stages: shards.iter().map(|h| Arc::clone(&h.stages)).collect(),
            probes: shards.iter().map(|h| Arc::clone(&h.probe)).collect(),
            spaces: Arc::default(),
            rt: Arc::clone(rt),
            turned_away: Arc::default(),
            shared: Arc::clone(shared),
        }
    }

    /// The counter of rejected connections.
    pub(crate) fn turned_away(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.turned_away)
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut out = Stats::sum(&self.shards);
        out.turned_away = value(&self.turned_away);
        out.credits = self.shared.config.limits.credits.into();
        for e in self.shared.exports.load().iter() {
            let mut usage = UsageStats::default();
            e.usage().iter().for_each(|u| u.add_to(&mut usage));
            out.exports.push((e.name().to_owned(), usage));
        }
        out.shards = self.probes.len() as u64;
        let totals = self.shared.nfs4_clients.state.totals();
        out.nfs4_confirmed_clients = totals.clients as u64;
        out.nfs4_opens = totals.opens as u64;
        out.nfs4_locks = totals.locks as u64;
        let delegations = self.shared.nfs4_clients.state.delegation_stats();
        out.nfs4_delegations = delegations.held;
        out.nfs4_state_bytes = self.shared.nfs4_clients.state.heap_bytes() as u64;
        out.nfs4_delegations_recalled = delegations.recalled;
        out.nfs4_delegations_revoked = delegations.revoked;
        out.replies_kept = self.shared.drc.kept() as u64;
        out.replies_kept_bytes = self.shared.drc.kept_bytes() as u64;
        out.nfs4_replies_kept_bytes = self.shared.nfs4_clients.kept_bytes();
        out.memory = self.shared.arena.stats();
        out.spans = self.shared.arena.spans();
        out.budget = self.shared.budget.stats();
        out.bytes_copied = millrace_buffer::copied::total();
        out.registration = self.shared.registration.stats();
        out.gss = self.shared.gss.stats();
        out.tls = self.shared.tls.stats();
        for t in &self.tcp {
            out.tcp_bytes_in += value(&t.received);
            out.tcp_bytes_out += value(&t.sent);
            out.tcp.failed += value(&t.malformed);
        }
        out.iscsi = IscsiStats::sum(&self.iscsi, self.shared.targets.table().sessions());
        out.luns = self.shared.targets.lun_stats();
        out.tcp.count(&self.shared.closed.tcp);
        out.rdma.count(&self.shared.closed.rdma);
        out.tcp.failed += out.tcp.stalled;
        for s in &self.stages {
            out.tcp_stages = out.tcp_stages.plus(&s.tcp.snapshot());
            out.rdma_stages = out.rdma_stages.plus(&s.rdma.snapshot());
        }
        let rdma = || self.rdma.iter().map(|r| r.snapshot());
        out.operations = rdma().fold(RdmaStats::default(), RdmaStats::add);
        out
    }
}

/// Reads the statistics of a server on any thread, including while it stops
/// ([`crate::Running::stats_reader`]).
#[derive(Clone)]
pub struct StatsReader(pub(crate) Arc<StatsSources>);

impl StatsReader {
    /// The statistics since the start of the server.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// The space of the exports whose file systems report it, by name, at most some seconds ago. The file systems are
    /// asked at the same time, and their answers are waited for half a second at most.
    pub async fn spaces(&self) -> Vec<(String, FsStat)> {
        let exports = self.0.shared.exports.load_full();
        self.0.spaces.of(&exports, &self.0.rt).await
    }

    /// The shards that do not answer within `limit`, by number: each connection of such a shard hangs.
    pub async fn hung_shards(&self, limit: Duration) -> Vec<usize> {
        let asked = self.0.probes.iter().map(|probe| timeout(&*self.0.rt, limit, probe.ask()));
        let answers = join_all(asked).await;
        answers.iter().enumerate().filter(|(_, answer)| answer.is_none()).map(|(shard, _)| shard).collect()
    }
}
