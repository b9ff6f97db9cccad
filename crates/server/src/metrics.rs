//! Statistics of the server.
//!
//! Each shard has separate counters that only it writes; they are summed when they are read.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
};

use millrace_admission::{BudgetStats, ClientAddr};
use millrace_buffer::{ArenaStats, SpanCount};
use millrace_nfs::{v3::Procedure, v4::Operation};
use millrace_oncrpc::{
    TransportKind,
    gss::GssStats,
    serving::{CloseReason, CloseStats},
    stages::StageStats,
};
use millrace_rdma::registration::RegistrationStats;
use millrace_rpcrdma::ResponderStatsSnapshot;
use millrace_tls::TlsStats;

use crate::{
    procedures::{ProcedureCounters, ProcedureStats},
    targets::{IscsiStats, LunStats},
    usage::{Clients, UsageStats, add, value},
};

const PROCEDURES: usize = Procedure::ALL.len();
/// Above the number of every operation.
const OPERATIONS: usize = Operation::Removexattr.number() as usize + 1;

/// `co_ownerid`: the name of an NFSv4 client.
type ClientOwner = Arc<[u8]>;

/// Counters of one shard, on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct ShardCounters {
    /// Procedures of NFSv3.
    pub(crate) procedures: ProcedureCounters<PROCEDURES>,
    /// Operations of NFSv4.
    pub(crate) operations: ProcedureCounters<OPERATIONS>,
    locks_notified: AtomicU64,
    clients: Clients<ClientAddr>,
    nfs4_clients: Clients<ClientOwner>,
    mount_calls: AtomicU64,
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
    /// Counts an answered CB_NOTIFY_LOCK.
    pub(crate) fn lock_notified(&self) {
        add(&self.locks_notified, 1);
    }

    pub(crate) fn clients(&self) -> &Clients<ClientAddr> {
        &self.clients
    }

    pub(crate) fn nfs4_clients(&self) -> &Clients<ClientOwner> {
        &self.nfs4_clients
    }

    pub(crate) fn mount_call(&self) {
        add(&self.mount_calls, 1);
    }

    /// Counts a caller that an export's policy denied.
    pub(crate) fn refused(&self) {
        add(&self.refused, 1);
    }

    /// Counts a retransmission that was answered from the cache, or dropped because its call is in progress.
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

    /// Counts the end of a connection; `orderly` if either side closed it.
    pub(crate) fn closed(&self, kind: TransportKind, orderly: bool) {
        add(&self.transport(kind).closed, 1);
        if !orderly {
            add(&self.transport(kind).failed, 1);
        }
    }
}

/// Statistics of a server since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Procedures of NFSv3, in order of their numbers.
    pub nfs3_procedures: Vec<(Procedure, ProcedureStats)>,
    /// Operations of NFSv4, in order of their numbers.
    pub nfs4_operations: Vec<(Operation, ProcedureStats)>,
    /// Callbacks CB_NOTIFY_LOCK of NFSv4 that clients have answered.
    pub nfs4_locks_notified: u64,
    /// Shards.
    pub shards: u64,
    /// NFSv4 clients that have confirmed their client ID.
    pub nfs4_confirmed_clients: u64,
    /// Opens of NFSv4 clients.
    pub nfs4_opens: u64,
    /// Byte ranges that NFSv4 clients have locked.
    pub nfs4_locks: u64,
    /// Delegations that NFSv4 clients hold.
    pub nfs4_delegations: u64,
    /// Bytes of the heap that the opens, locks and delegations of NFSv4 clients occupy, at most.
    pub nfs4_state_bytes: u64,
    /// Recalls of delegations, because another client uses the file.
    pub nfs4_delegations_recalled: u64,
    /// Delegations that clients did not return within a lease.
    pub nfs4_delegations_revoked: u64,
    /// Usage by export name, in the order of the configuration.
    pub exports: Vec<(String, UsageStats)>,
    /// Usage by client address (for IPv6, by /64 prefix), in decreasing order of calls.
    pub clients: Vec<(ClientAddr, UsageStats)>,
    /// Usage of disconnected clients that are not counted separately any more.
    pub other_clients: UsageStats,
    /// Usage by NFSv4 client, named by its owner (`co_ownerid`), over all of its sessions and connections, in decreasing
    /// order of COMPOUNDs in sessions.
    pub nfs4_clients: Vec<(Arc<[u8]>, UsageStats)>,
    /// Usage of NFSv4 clients that are not counted separately any more.
    pub other_nfs4_clients: UsageStats,
    /// Maximum number of calls in progress per connection.
    pub credits: u64,
    /// MOUNT calls.
    pub mount_calls: u64,
    /// Calls that an export's policy denied.
    pub refused: u64,
    /// Retransmitted calls that were not executed again.
    pub replayed: u64,
    /// Bytes returned by READ.
    pub bytes_read: u64,
    /// Bytes written by WRITE.
    pub bytes_written: u64,
    /// Connections over TCP.
    pub tcp: ConnectionStats,
    /// Connections over RDMA.
    pub rdma: ConnectionStats,
    /// Connections rejected at a connection limit, of any protocol.
    pub turned_away: u64,
    /// Replies in the duplicate request cache.
    pub replies_kept: u64,
    /// Bytes of [memory](Self::memory) in use for these replies.
    pub replies_kept_bytes: u64,
    /// Bytes of [memory](Self::memory) in use for the replies that slots of NFSv4 sessions keep.
    pub nfs4_replies_kept_bytes: u64,
    /// Bytes received over TCP.
    pub tcp_bytes_in: u64,
    /// Bytes sent over TCP.
    pub tcp_bytes_out: u64,
    /// Connections with TLS.
    pub tls: TlsStats,
    /// Security contexts of callers with Kerberos.
    pub gss: GssStats,
    /// iSCSI connections, sessions and commands.
    pub iscsi: IscsiStats,
    /// The disks of the present targets, in the order of the configuration.
    pub luns: Vec<LunStats>,
    /// RDMA operations and bytes.
    pub operations: RdmaStats,
    /// Times of sampled calls over TCP.
    pub tcp_stages: StageStats,
    /// Times of sampled calls over RDMA.
    pub rdma_stages: StageStats,
    /// The memory of network buffers and memory exports.
    pub memory: ArenaStats,
    /// Mapped memory by the use of its buffers.
    pub spans: Vec<SpanCount>,
    /// Usage of the memory that clients share.
    pub budget: BudgetStats,
    /// Payload bytes copied by this process, including by embedded clients.
    pub bytes_copied: u64,
    /// Counters of the registration strategy.
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
    /// Ended by an error.
    pub failed: u64,
    /// Closed after the idle timeout.
    pub idle: u64,
    /// Closed because of a missing first call.
    pub no_call: u64,
    /// Closed because the client sent a call, answered RDMA Reads or received replies too slowly.
    pub stalled: u64,
    /// Closed at the connection limit, because their client had the most connections.
    pub evicted: u64,
    /// Closed because the client's certificate was not trusted any more.
    pub untrusted: u64,
}

impl ConnectionStats {
    /// Number of closed connections by the name of the reason.
    pub fn closed(&self) -> [(&'static str, u64); 5] {
        let of = |reason| match reason {
            CloseReason::Idle => self.idle,
            CloseReason::NoCall => self.no_call,
            CloseReason::Stalled => self.stalled,
            CloseReason::Evicted => self.evicted,
            CloseReason::Untrusted => self.untrusted,
        };
        CloseReason::ALL.map(|reason| (reason.name(), of(reason)))
    }

    /// Adds the closed connections of `closed`.
    pub(crate) fn count(&mut self, closed: &CloseStats) {
        self.idle = closed.of(CloseReason::Idle);
        self.no_call = closed.of(CloseReason::NoCall);
        self.stalled = closed.of(CloseReason::Stalled);
        self.evicted = closed.of(CloseReason::Evicted);
        self.untrusted = closed.of(CloseReason::Untrusted);
    }
}

impl Stats {
    /// Total number of NFSv3 calls.
    pub fn total_calls(&self) -> u64 {
        self.nfs3_procedures.iter().map(|(_, stats)| stats.calls).sum()
    }

    /// Calls of one procedure of NFSv3.
    pub fn calls_of(&self, procedure: Procedure) -> u64 {
        self.nfs3_procedures.iter().filter(|(p, _)| *p == procedure).map(|(_, stats)| stats.calls).sum()
    }

    /// Executions of one operation of NFSv4.
    pub fn operations_of(&self, operation: Operation) -> u64 {
        self.nfs4_operations.iter().filter(|(o, _)| *o == operation).map(|(_, stats)| stats.calls).sum()
    }

    /// The sum over all shards.
    pub(crate) fn sum(shards: &[Arc<ShardCounters>]) -> Self {
        let mut out = Self::default();
        let (mut clients, mut nfs4_clients) = (HashMap::new(), HashMap::new());
        for s in shards {
            s.clients.add_to(&mut clients, &mut out.other_clients);
            s.nfs4_clients.add_to(&mut nfs4_clients, &mut out.other_nfs4_clients);
            out.mount_calls += value(&s.mount_calls);
            out.refused += value(&s.refused);
            out.replayed += value(&s.replayed);
            out.nfs4_locks_notified += value(&s.locks_notified);
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
        let procedure = |p: Procedure| (p, ProcedureStats::sum(shards, |s| &s.procedures, p.number()));
        let operation = |o: Operation| (o, ProcedureStats::sum(shards, |s| &s.operations, o.number()));
        out.nfs3_procedures = Procedure::ALL.iter().copied().map(procedure).collect();
        out.nfs4_operations = Operation::ALL.iter().copied().map(operation).collect();
        out.clients = clients.into_iter().collect();
        out.clients.sort_by_cached_key(|(addr, u)| (Reverse(u.latency.count()), *addr));
        out.nfs4_clients = nfs4_clients.into_iter().collect();
        out.nfs4_clients.sort_by_cached_key(|(owner, u)| (Reverse(u.latency.count()), Arc::clone(owner)));
        out
    }
}

/// RDMA operations and bytes.
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
    /// Bytes written by RDMA Write.
    pub write_bytes: u64,
    /// Bytes read by RDMA Read.
    pub read_bytes: u64,
    /// Bytes of messages received inline.
    pub inline_bytes_in: u64,
    /// Bytes of messages sent inline.
    pub inline_bytes_out: u64,
    /// Replies that invalidated a tag of the client.
    pub remote_invalidations: u64,
    /// Calls answered with ERR_VERS or ERR_CHUNK, and dropped malformed messages.
    pub protocol_errors: u64,
    /// Waits for memory of the arena within the budget.
    pub out_of_memory: u64,
    /// Exposure of the server's memory to clients, measured whenever messages arrive: zero with RFC 8166.
    pub exposure: millrace_rdma::ExposureStats,
}

impl RdmaStats {
    /// Adds the counters of one shard.
    pub(crate) fn add(self, s: ResponderStatsSnapshot) -> Self {
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
            exposure: self.exposure.plus(s.exposure),
        }
    }
}
