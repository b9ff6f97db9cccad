//! What the server counts, and how it is shown.
//!
//! Each shard counts for itself, in plain counters that only it writes; they are summed when somebody asks.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
};

use millrace_buffer::{ArenaStats, SpanCount};
use millrace_nfs::v3::Procedure;
use millrace_oncrpc::{
    TransportKind,
    serving::{BudgetStats, ClientAddr, CloseReason, CloseStats},
    stages::StageStats,
    tcp::TcpStats,
};
use millrace_rpcrdma::{ResponderStats, ResponderStatsSnapshot, registration::RegistrationStats};

use crate::{
    server::Shared,
    shard::{ShardHandle, Stages},
    usage::{Clients, Latency, LatencyStats, Took, UsageStats, add, value},
};

const PROCEDURES: usize = Procedure::ALL.len();

/// The counters of one shard, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct ShardCounters {
    calls: [AtomicU64; PROCEDURES],
    latency: [Latency; PROCEDURES],
    clients: Clients,
    mount_calls: AtomicU64,
    failures: AtomicU64,
    refused: AtomicU64,
    replayed: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    transports: [TransportCounters; 2],
}

#[derive(Default)]
struct TransportCounters {
    opened: AtomicU64,
    closed: AtomicU64,
    failed: AtomicU64,
}

impl ShardCounters {
    pub(crate) fn call(&self, procedure: Procedure) {
        if let Some(c) = self.calls.get(procedure.number() as usize) {
            add(c, 1);
        }
    }

    /// An NFS call is answered.
    pub(crate) fn took(&self, procedure: Procedure, took: Took) {
        if let Some(l) = self.latency.get(procedure.number() as usize) {
            l.record(took);
        }
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(crate) fn mount_call(&self) {
        add(&self.mount_calls, 1);
    }

    /// A procedure answered with a failing status.
    pub(crate) fn failure(&self) {
        add(&self.failures, 1);
    }

    /// An export's policy kept a caller out.
    pub(crate) fn refused(&self) {
        add(&self.refused, 1);
    }

    /// A retransmission was answered from the cache, or dropped because its call is in progress.
    pub(crate) fn replayed(&self) {
        add(&self.replayed, 1);
    }

    pub(crate) fn read(&self, bytes: u64) {
        add(&self.bytes_read, bytes);
    }

    pub(crate) fn written(&self, bytes: u64) {
        add(&self.bytes_written, bytes);
    }

    fn transport(&self, kind: TransportKind) -> &TransportCounters {
        let [tcp, rdma] = &self.transports;
        match kind {
            TransportKind::Tcp => tcp,
            TransportKind::Rdma => rdma,
        }
    }

    pub(crate) fn opened(&self, kind: TransportKind) {
        add(&self.transport(kind).opened, 1);
    }

    /// A connection that was opened ended; `orderly` if the peer or we closed it.
    pub(crate) fn closed(&self, kind: TransportKind, orderly: bool) {
        add(&self.transport(kind).closed, 1);
        if !orderly {
            add(&self.transport(kind).failed, 1);
        }
    }
}

/// What a server has done since it started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// NFS calls by procedure, in order of the procedures' numbers.
    pub calls: [u64; PROCEDURES],
    /// How long they took, in the same order (not NULL).
    pub latency: [LatencyStats; PROCEDURES],
    /// The use of each export, by name, in the order of the configuration.
    pub exports: Vec<(String, UsageStats)>,
    /// The use that clients made, by address (of IPv6, by /64 prefix), busiest (most calls) first.
    pub clients: Vec<(ClientAddr, UsageStats)>,
    /// The use of those that left and are not counted one by one any more.
    pub other_clients: UsageStats,
    /// Calls that one connection may have in progress.
    pub credits: u64,
    /// MOUNT calls.
    pub mount_calls: u64,
    /// NFS calls that were answered with a failing status (LOOKUP of a missing name counts).
    pub failures: u64,
    /// Calls that an export's policy kept out.
    pub refused: u64,
    /// Retransmitted calls that were not executed again.
    pub replayed: u64,
    /// Bytes given by READ.
    pub bytes_read: u64,
    /// Bytes taken by WRITE.
    pub bytes_written: u64,
    /// Connections over TCP.
    pub tcp: ConnectionStats,
    /// Connections over RDMA.
    pub rdma: ConnectionStats,
    /// Connections that were turned away because there were too many.
    pub turned_away: u64,
    /// Replies kept for retransmissions.
    pub replies_kept: u64,
    /// The part of the [memory](Self::memory) in use that they take, in bytes.
    pub replies_kept_bytes: u64,
    /// Bytes received over TCP.
    pub tcp_bytes_in: u64,
    /// Bytes sent over TCP.
    pub tcp_bytes_out: u64,
    /// What was moved over RDMA.
    pub operations: RdmaStats,
    /// What the stages of sampled calls over TCP took.
    pub tcp_stages: StageStats,
    /// What the stages of sampled calls over RDMA took.
    pub rdma_stages: StageStats,
    /// The memory of network buffers and memory exports.
    pub memory: ArenaStats,
    /// The memory that is mapped for them, by the buffers that it serves.
    pub spans: Vec<SpanCount>,
    /// What clients hold of the memory that they share, and who waits for it.
    pub budget: BudgetStats,
    /// Payload bytes that this process copied (all of it: an embedded client's too).
    pub bytes_copied: u64,
    /// What the registration strategy has done.
    pub registration: RegistrationStats,
}

/// Connections of one transport.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Opened since the start.
    pub opened: u64,
    /// Open now.
    pub open: u64,
    /// Ended by an error and not by either side's wish.
    pub failed: u64,
    /// Closed because no call came for long.
    pub idle: u64,
    /// Closed because no call came at all.
    pub no_call: u64,
    /// Closed because the client sent a call, answered RDMA Reads or took replies too slowly.
    pub stalled: u64,
    /// Closed because there were too many, and its client had the most.
    pub evicted: u64,
}

impl ConnectionStats {
    /// How many were closed, by the reason's name.
    pub fn closed(&self) -> [(&'static str, u64); 4] {
        let of = |reason| match reason {
            CloseReason::Idle => self.idle,
            CloseReason::NoCall => self.no_call,
            CloseReason::Stalled => self.stalled,
            CloseReason::Evicted => self.evicted,
        };
        CloseReason::ALL.map(|reason| (reason.name(), of(reason)))
    }

    fn count(&mut self, closed: &CloseStats) {
        self.idle = closed.of(CloseReason::Idle);
        self.no_call = closed.of(CloseReason::NoCall);
        self.stalled = closed.of(CloseReason::Stalled);
        self.evicted = closed.of(CloseReason::Evicted);
    }
}

impl Stats {
    /// NFS calls in all.
    pub fn total_calls(&self) -> u64 {
        self.calls.iter().sum()
    }

    /// Calls of one procedure.
    pub fn calls_of(&self, procedure: Procedure) -> u64 {
        self.calls.get(procedure.number() as usize).copied().unwrap_or(0)
    }

    /// The sum over all shards.
    pub(crate) fn sum(shards: &[Arc<ShardCounters>]) -> Self {
        let mut out = Self::default();
        let mut clients = HashMap::new();
        for s in shards {
            for (sum, c) in out.calls.iter_mut().zip(&s.calls) {
                *sum += value(c);
            }
            for (sum, l) in out.latency.iter_mut().zip(&s.latency) {
                l.add_to(sum);
            }
            s.clients.add_to(&mut clients, &mut out.other_clients);
            out.mount_calls += value(&s.mount_calls);
            out.failures += value(&s.failures);
            out.refused += value(&s.refused);
            out.replayed += value(&s.replayed);
            out.bytes_read += value(&s.bytes_read);
            out.bytes_written += value(&s.bytes_written);
            for (sum, kind) in [(&mut out.tcp, TransportKind::Tcp), (&mut out.rdma, TransportKind::Rdma)] {
                let t = s.transport(kind);
                let closed = value(&t.closed);
                let opened = value(&t.opened);
                sum.opened += opened;
                sum.open += opened.saturating_sub(closed);
                sum.failed += value(&t.failed);
            }
        }
        out.clients = clients.into_iter().collect();
        out.clients.sort_by_cached_key(|(addr, u)| (Reverse(u.latency.count()), *addr));
        out
    }
}

/// Everything that is counted, for whoever asks.
pub(crate) struct Gauges {
    shards: Vec<Arc<ShardCounters>>,
    tcp: Vec<Arc<TcpStats>>,
    rdma: Vec<Arc<ResponderStats>>,
    stages: Vec<Arc<Stages>>,
    turned_away: Arc<AtomicU64>,
    shared: Arc<Shared>,
}

impl Gauges {
    pub(crate) fn new(shards: &[ShardHandle], shared: &Arc<Shared>) -> Self {
        Self {
            shards: shards.iter().map(|h| Arc::clone(&h.counters)).collect(),
            tcp: shards.iter().map(|h| Arc::clone(&h.tcp)).collect(),
            rdma: shards.iter().map(|h| Arc::clone(&h.rdma)).collect(),
            stages: shards.iter().map(|h| Arc::clone(&h.stages)).collect(),
            turned_away: Arc::default(),
            shared: Arc::clone(shared),
        }
    }

    /// Counts connections that found no place.
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
        out.replies_kept = self.shared.replies.kept() as u64;
        out.replies_kept_bytes = self.shared.replies.kept_bytes() as u64;
        out.memory = self.shared.arena.stats();
        out.spans = self.shared.arena.spans();
        out.budget = self.shared.budget.stats();
        out.bytes_copied = millrace_buffer::copied::total();
        out.registration = self.shared.registration.stats();
        for t in &self.tcp {
            out.tcp_bytes_in += value(&t.received);
            out.tcp_bytes_out += value(&t.sent);
            out.tcp.failed += value(&t.malformed);
        }
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

/// Reads the statistics of a server on any thread, also while it stops ([`crate::Running::stats_reader`]).
#[derive(Clone)]
pub struct StatsReader(pub(crate) Arc<Gauges>);

impl StatsReader {
    /// The statistics since the start of the server.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}

/// What was moved over RDMA, and by which operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaStats {
    /// Calls received.
    pub calls: u64,
    /// Calls in progress now; each holds a credit of its client.
    pub calls_in_progress: u64,
    /// Sends: replies and errors.
    pub sends: u64,
    /// RDMA Writes posted.
    pub writes: u64,
    /// RDMA Reads posted.
    pub reads: u64,
    /// Bytes pushed by RDMA Write.
    pub write_bytes: u64,
    /// Bytes pulled by RDMA Read.
    pub read_bytes: u64,
    /// Bytes of messages received inline.
    pub inline_bytes_in: u64,
    /// Bytes of messages sent inline.
    pub inline_bytes_out: u64,
    /// Replies that invalidated a tag of the client's.
    pub remote_invalidations: u64,
    /// Calls answered with ERR_VERS or ERR_CHUNK, or dropped as unreadable.
    pub protocol_errors: u64,
    /// Times that something had to wait because there was no memory, although the budget had some.
    pub out_of_memory: u64,
    /// Regions of the server that clients can reach now. In the Read-Write design there are none.
    pub regions_exposed: u64,
    /// Replies of the Read-Read design that clients acknowledged.
    pub acknowledged: u64,
    /// Memory of the server that clients can reach, and for how long. In the Read-Write design, none.
    pub exposure: millrace_rdma::ExposureStats,
}

impl RdmaStats {
    fn add(self, s: ResponderStatsSnapshot) -> Self {
        Self {
            calls: self.calls + s.calls,
            calls_in_progress: self.calls_in_progress + s.calls_in_progress,
            sends: self.sends + s.sends,
            writes: self.writes + s.writes,
            reads: self.reads + s.reads,
            write_bytes: self.write_bytes + s.write_bytes,
            read_bytes: self.read_bytes + s.read_bytes,
            inline_bytes_in: self.inline_bytes_in + s.inline_bytes_in,
            inline_bytes_out: self.inline_bytes_out + s.inline_bytes_out,
            remote_invalidations: self.remote_invalidations + s.remote_invalidations,
            protocol_errors: self.protocol_errors + s.version_errors + s.chunk_errors + s.dropped,
            out_of_memory: self.out_of_memory + s.out_of_memory,
            regions_exposed: self.regions_exposed + s.regions_exposed.max(s.exposure.regions),
            acknowledged: self.acknowledged + s.done_received,
            exposure: self.exposure.plus(s.exposure),
        }
    }
}
