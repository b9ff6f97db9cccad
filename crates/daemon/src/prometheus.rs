//! The statistics of a server in the formats that Prometheus reads.

use std::fmt;

use millrace_buffer::{BLOCK_BYTES, SPAN_BYTES};
use millrace_nfs::v3::Procedure;
use millrace_oncrpc::{CallClass, Stage};
use millrace_server::{LatencyStats, ProcedureStats, Stats, UsageStats};
use millrace_vfs::FsStat;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use crate::{negotiation::Format, process::Process, snapshot::Snapshot};

/// Renders the statistics.
pub(crate) fn render(snapshot: &Snapshot, format: Format) -> String {
    let text = open_metrics(snapshot);
    match format {
        Format::OpenMetrics => text,
        Format::Text => text_format(&text),
    }
}

/// OpenMetrics as the text format 0.0.4, in which the name of a counter ends with `_total` in its descriptions too, and
/// which has neither units nor an end.
fn text_format(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            out.extend([line, "\n"]);
            continue;
        };
        if let Some(described) = comment.strip_prefix("HELP ") {
            help = described.split_once(' '); // Its type is in the next line.
        } else if let Some((name, kind)) = comment.strip_prefix("TYPE ").and_then(|of| of.split_once(' ')) {
            let total = if kind == "counter" { "_total" } else { "" };
            if let Some((_, text)) = help.take() {
                out.extend(["# HELP ", name, total, " ", text, "\n"]);
            }
            out.extend(["# TYPE ", name, total, " ", kind, "\n"]);
        }
    }
    out
}

fn open_metrics(snapshot: &Snapshot) -> String {
    let mut registry = Registry::default();
    if let Some(process) = snapshot.process {
        registry.register_collector(Box::new(process));
    }
    let server = registry.sub_registry_with_prefix("millrace");
    server.register_collector(Box::new(Scrape(snapshot.clone())));
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = text::encode(&mut out, &registry);
    out
}

impl Collector for Process {
    fn encode(&self, mut e: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Time of processors in user and system mode";
        let cpu = e.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(self.cpu_seconds).encode(cpu)?;
        gauge(&mut e, "process_resident_memory_bytes", "Resident memory", self.resident_bytes)?;
        gauge(&mut e, "process_virtual_memory_bytes", "Virtual memory", self.virtual_bytes)?;
        gauge(&mut e, "process_open_fds", "Open file descriptors", self.open_fds)?;
        if let Some(max) = self.max_fds {
            gauge(&mut e, "process_max_fds", "Maximum number of open file descriptors", max)?;
        }
        let help = "Start of the process in seconds after 1970";
        let start = e.encode_descriptor("process_start_time_seconds", help, None, MetricType::Gauge)?;
        ConstGauge::new(self.start_seconds).encode(start)
    }
}

#[derive(Debug)]
struct Scrape(Snapshot);

impl Collector for Scrape {
    fn encode(&self, mut e: DescriptorEncoder<'_>) -> fmt::Result {
        let s = &self.0.stats;
        let build = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
        gauges(&mut e, "build_info", "Version of the server", build)?;
        gauge(&mut e, "shards", "Threads that serve connections", s.shards)?;
        gauge(&mut e, "shards_hung", "Shards that do not answer", self.0.hung_shards.len() as u64)?;
        let calls = procedures(s).map(|(labels, of)| (labels, of.calls));
        let help = "Executed procedures of NFSv3 and operations of NFSv4";
        counters(&mut e, "nfs_calls", help, calls)?;
        let failures = procedures(s).map(|(labels, of)| (labels, of.failures));
        let help = "Procedures of NFSv3 and operations of NFSv4 with a failing status";
        counters(&mut e, "nfs_failures", help, failures)?;
        let callbacks = [([("operation", "CB_NOTIFY_LOCK")], s.nfs4_locks_notified)];
        counters(&mut e, "nfs4_callbacks", "Callbacks of NFSv4 that clients answered", callbacks)?;
        gauge(&mut e, "nfs4_clients", "NFSv4 clients with a confirmed client ID", s.nfs4_confirmed_clients)?;
        gauge(&mut e, "nfs4_opens", "Opens of NFSv4 clients", s.nfs4_opens)?;
        gauge(&mut e, "nfs4_locks", "Byte ranges that NFSv4 clients have locked", s.nfs4_locks)?;
        gauge(&mut e, "nfs4_delegations", "Delegations that NFSv4 clients hold", s.nfs4_delegations)?;
        gauge(&mut e, "nfs4_state_bytes", "Heap of the opens, locks and delegations", s.nfs4_state_bytes)?;
        let recalled = s.nfs4_delegations_recalled;
        counter(&mut e, "nfs4_delegations_recalled", "Delegations that were recalled", recalled)?;
        let revoked = s.nfs4_delegations_revoked;
        counter(
            &mut e,
            "nfs4_delegations_revoked",
            "Delegations that clients did not return in time",
            revoked,
        )?;
        counters(&mut e, "mount_calls", "MOUNT calls", [([("version", "3")], s.mount_calls)])?;
        let bytes = [([("direction", "read")], s.bytes_read), ([("direction", "written")], s.bytes_written)];
        counters(&mut e, "data_bytes", "Bytes moved by READ and WRITE", bytes)?;
        counter(&mut e, "refused_calls", "Calls that an export's policy denied", s.refused)?;
        counter(&mut e, "replayed_calls", "Retransmitted calls that were not executed again", s.replayed)?;
        counter(&mut e, "copied_bytes", "Payload bytes copied by this process", s.bytes_copied)?;
        self.latencies(&mut e)?;
        self.users(&mut e)?;
        self.spaces(&mut e)?;
        self.connections(&mut e)?;
        self.budget(&mut e)?;
        self.transports(&mut e)?;
        self.iscsi(&mut e)?;
        self.stages(&mut e)?;
        gauge(&mut e, "replies_kept", "Replies in the duplicate request cache", s.replies_kept)?;
        gauge(&mut e, "replies_kept_bytes", "Memory in use by these replies", s.replies_kept_bytes)?;
        let kept = s.nfs4_replies_kept_bytes;
        gauge(
            &mut e,
            "nfs4_replies_kept_bytes",
            "Memory in use by replies in slots of NFSv4 sessions",
            kept,
        )?;
        self.memory(&mut e)
    }
}

/// The procedures of NFSv3 and the operations of NFSv4 with their labels.
fn procedures(stats: &Stats) -> impl Iterator<Item = ([(&'static str, &'static str); 2], &ProcedureStats)> {
    let labels = |version, name| [("version", version), ("procedure", name)];
    let nfs3 = stats.nfs3_procedures.iter().map(move |(p, of)| (labels("3", p.name()), of));
    nfs3.chain(stats.nfs4_operations.iter().map(move |(o, of)| (labels("4", o.name()), of)))
}

/// Maximum number of clients with separate counters, which limits the number of time series.
const MAX_CLIENTS: usize = 16;

/// Maximum length of the name of an NFSv4 client in a label, in bytes before the replacement of others than printable
/// characters.
const MAX_OWNER: usize = 128;

/// The clients with the most calls by their labels, and the sum of the others.
fn busiest<K>(
    clients: &[(K, UsageStats)],
    others: UsageStats,
    label: impl Fn(&K) -> String,
) -> Vec<(String, UsageStats)> {
    let (shown, hidden) = clients.split_at(clients.len().min(MAX_CLIENTS));
    let mut rest = others;
    hidden.iter().for_each(|(_, usage)| rest.plus(usage));
    let shown = shown.iter().map(|(client, usage)| (label(client), *usage));
    let rest = (rest != UsageStats::default()).then(|| ("other".to_owned(), rest));
    let mut named: Vec<(String, UsageStats)> = Vec::new();
    for (label, usage) in shown.chain(rest) {
        // Labels can be equal: a client may have the name `other`, and names may differ only in parts that labels omit.
        match named.iter_mut().find(|(other, _)| *other == label) {
            Some((_, sum)) => sum.plus(&usage),
            None => named.push((label, usage)),
        }
    }
    named
}

/// The name of an NFSv4 client, which it has chosen.
fn owner_label(owner: &[u8]) -> String {
    let text = String::from_utf8_lossy(owner.get(..MAX_OWNER).unwrap_or(owner));
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl Scrape {
    fn latencies(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        // A histogram has many time series: those of the many operations of NFSv4 that no client uses are omitted.
        let timed = procedures(&self.0.stats).filter(|([(_, version), (_, name)], of)| {
            of.latency.count() > 0 || (*version == "3" && *name != Procedure::Null.name())
        });
        let values = timed.map(|(labels, of)| (labels, &of.latency));
        let help = "Time of procedures of NFSv3 and operations of NFSv4 at the server, without the network";
        histograms(e, "nfs_call_seconds", help, values)
    }

    /// Usage by exports and by the busiest clients. The sum of the other clients decreases when one of them
    /// becomes one of the busiest.
    fn users(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let exports: Vec<_> = self.0.stats.exports.iter().map(|(name, u)| (name.clone(), *u)).collect();
        usages(e, "export", "each export", &exports)?;
        let clients = busiest(&self.0.stats.clients, self.0.stats.other_clients, ToString::to_string);
        usages(e, "client", "the busiest clients", &clients)?;
        let clients =
            busiest(&self.0.stats.nfs4_clients, self.0.stats.other_nfs4_clients, |owner| owner_label(owner));
        usages(e, "nfs4_client", "the busiest NFSv4 clients", &clients)
    }

    fn connections(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let by = |tcp, rdma| [([("transport", "tcp")], tcp), ([("transport", "rdma")], rdma)];
        let (tcp, rdma) = (&self.0.stats.tcp, &self.0.stats.rdma);
        counters(e, "connections_opened", "Connections opened", by(tcp.opened, rdma.opened))?;
        counters(e, "connections_failed", "Connections ended by an error", by(tcp.failed, rdma.failed))?;
        let closed = [("tcp", tcp), ("rdma", rdma)].into_iter().flat_map(|(transport, stats)| {
            let labels = move |reason| [("transport", transport), ("reason", reason)];
            stats.closed().map(move |(reason, n)| (labels(reason), n))
        });
        counters(e, "connections_closed", "Connections closed by the server", closed)?;
        counter(
            e,
            "connections_turned_away",
            "Connections rejected at a connection limit",
            self.0.stats.turned_away,
        )?;
        gauges(e, "connections", "Connections open", by(tcp.open, rdma.open))
    }

    /// Memory that clients share.
    fn budget(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let b = &self.0.stats.budget;
        gauge(e, "budget_limit_bytes", "Memory for calls and replies that clients share", b.shared as u64)?;
        gauge(e, "budget_in_use_bytes", "Shared memory in use by clients", b.in_use as u64)?;
        gauge(e, "budget_peak_bytes", "Maximum of the shared memory in use or kept", b.peak as u64)?;
        gauge(e, "budget_waiting_connections", "Connections that wait for shared memory", b.waiting as u64)?;
        counter(e, "budget_waits", "Waits of connections for shared memory", b.waits)
    }

    fn transports(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let by = |i, o| [([("direction", "in")], i), ([("direction", "out")], o)];
        let r = &self.0.stats.operations;
        gauge(e, "credits", "Maximum number of calls in progress per connection", self.0.stats.credits)?;
        gauge(e, "rdma_calls_in_progress", "Calls over RDMA in progress", r.calls_in_progress)?;
        counters(
            e,
            "tcp_bytes",
            "Bytes over TCP",
            by(self.0.stats.tcp_bytes_in, self.0.stats.tcp_bytes_out),
        )?;
        let open = [
            ([("security", "tls")], self.0.stats.tls.open_tls),
            ([("security", "mtls")], self.0.stats.tls.open_mtls),
        ];
        gauges(e, "tls_connections", "Open connections with TLS", open)?;
        counter(e, "tls_handshakes_failed", "Handshakes of TLS that failed", self.0.stats.tls.failed)?;
        let gss = &self.0.stats.gss;
        gauge(e, "kerberos_contexts", "Security contexts of callers with Kerberos", gss.contexts as u64)?;
        counter(e, "kerberos_contexts_refused", "Security contexts that were refused", gss.refused)?;
        counter(
            e,
            "kerberos_calls_discarded",
            "Calls outside of the window of sequence numbers, such as replayed ones",
            gss.discarded,
        )?;
        let operations = [
            ([("operation", "send")], r.sends),
            ([("operation", "write")], r.writes),
            ([("operation", "read")], r.reads),
        ];
        counters(e, "rdma_operations", "RDMA operations posted", operations)?;
        let bytes = [
            ([("kind", "write")], r.write_bytes),
            ([("kind", "read")], r.read_bytes),
            ([("kind", "inline_in")], r.inline_bytes_in),
            ([("kind", "inline_out")], r.inline_bytes_out),
        ];
        counters(e, "rdma_bytes", "Bytes over RDMA", bytes)?;
        counter(e, "rdma_remote_invalidations", "Replies that invalidated a tag", r.remote_invalidations)?;
        counter(e, "rdma_protocol_errors", "Calls that violated RPC-over-RDMA", r.protocol_errors)?;
        counter(
            e,
            "rdma_out_of_memory",
            "Times that memory was short although the budget had some",
            r.out_of_memory,
        )?;
        let g = &self.0.stats.registration;
        counter(e, "rdma_registrations", "Memory registrations", g.registrations)?;
        counter(e, "rdma_deregistrations", "Memory deregistrations", g.deregistrations)?;
        counter(e, "rdma_registration_hits", "Operations without a new registration", g.hits)?;
        counter(
            e,
            "rdma_registration_fallbacks",
            "Registrations that there was no room to keep",
            g.fallbacks,
        )?;
        counter(e, "rdma_registrations_reclaimed", "Cached registrations that were released", g.reclaimed)?;
        gauge(e, "rdma_registered_kept_bytes", "Bytes of cached registrations", g.kept_bytes)?;
        self.exposure(e)
    }

    fn iscsi(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let i = &self.0.stats.iscsi;
        gauge(e, "iscsi_connections", "iSCSI connections open", i.open)?;
        counter(e, "iscsi_connections_opened", "iSCSI connections opened", i.opened)?;
        let closed = [([("reason", "malformed")], i.malformed), ([("reason", "stalled")], i.stalled)];
        counters(e, "iscsi_connections_closed", "iSCSI connections closed by the server", closed)?;
        gauge(e, "iscsi_sessions", "iSCSI sessions, including discovery sessions", i.sessions)?;
        counter(e, "iscsi_logins", "Logins to iSCSI targets", i.logins)?;
        counter(e, "iscsi_discoveries", "iSCSI discovery sessions", i.discoveries)?;
        counter(e, "iscsi_logins_refused", "iSCSI logins refused", i.logins_refused)?;
        let commands =
            [([("kind", "read")], i.reads), ([("kind", "write")], i.writes), ([("kind", "other")], i.others)];
        counters(e, "iscsi_commands", "SCSI commands by the direction of their data", commands)?;
        counter(e, "iscsi_commands_failed", "SCSI commands with a status other than GOOD", i.failed)?;
        counter(e, "iscsi_commands_aborted", "SCSI commands aborted", i.aborted)?;
        let bytes = [([("direction", "read")], i.bytes_read), ([("direction", "written")], i.bytes_written)];
        counters(e, "iscsi_data_bytes", "Data bytes of SCSI commands", bytes)?;
        self.luns(e)
    }

    fn luns(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let luns: Vec<_> = self.0.stats.luns.iter().map(|lun| (lun.lun.to_string(), lun)).collect();
        let of = luns
            .iter()
            .map(|(number, lun)| ([("target", lun.target.as_str()), ("lun", number.as_str())], *lun));
        let sizes = of.clone().map(|(labels, lun)| (labels, lun.bytes));
        gauges(e, "iscsi_lun_size_bytes", "Capacity of a disk", sizes)?;
        let commands = of.clone().flat_map(|([target, number], lun)| {
            let counts = [("read", lun.usage.reads), ("write", lun.usage.writes)];
            counts.map(|(kind, n)| ([target, number, ("kind", kind)], n))
        });
        counters(e, "iscsi_lun_commands", "READ and WRITE commands of a disk", commands)?;
        let bytes = of.flat_map(|([target, number], lun)| {
            let counts = [("read", lun.usage.bytes_read), ("written", lun.usage.bytes_written)];
            counts.map(|(direction, n)| ([target, number, ("direction", direction)], n))
        });
        counters(e, "iscsi_lun_data_bytes", "Bytes of the READ and WRITE commands of a disk", bytes)
    }

    /// Space of the exports whose file systems report it.
    fn spaces(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&FsStat) -> u64;
        let of_bytes: [(&str, &str, Value); 3] = [
            ("export_size_bytes", "Size of the file system of an export", |stat| stat.total_bytes),
            ("export_free_bytes", "Free space of an export", |stat| stat.free_bytes),
            ("export_available_bytes", "Space of an export available to users other than root", |stat| {
                stat.available_bytes
            }),
        ];
        let of_files: [(&str, &str, Value); 2] = [
            ("export_files", "Files that the file system of an export can have", |stat| stat.total_files),
            ("export_free_files", "Files that can be created in an export", |stat| stat.free_files),
        ];
        for (name, help, value) in of_bytes {
            let of = self.0.spaces.iter().map(|(export, stat)| ([("export", export.as_str())], value(stat)));
            gauges(e, name, help, of)?;
        }
        // Some file systems have no limit of files.
        let limited = || self.0.spaces.iter().filter(|(_, stat)| stat.total_files > 0);
        for (name, help, value) in of_files {
            gauges(
                e,
                name,
                help,
                limited().map(|(export, stat)| ([("export", export.as_str())], value(stat))),
            )?;
        }
        Ok(())
    }

    /// Transient memory is that of network buffers, stored memory that of memory exports.
    fn memory(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let m = self.0.stats.memory;
        let by = |transient: usize, stored: usize| {
            [([("kind", "transient")], transient as u64), ([("kind", "stored")], stored as u64)]
        };
        let in_use = by(m.in_use - m.stored, m.stored);
        gauges(e, "memory_in_use_bytes", "Network buffers, and content of memory exports", in_use)?;
        let limits = by(m.limit + m.reserve, m.quotas);
        gauges(e, "memory_limit_bytes", "Maximum of the memory in use", limits)?;
        let help = "Memory taken from the system, by the size of the buffers in it; content has up to 64 KiB";
        let mut metric = e.encode_descriptor("memory_mapped_bytes", help, None, MetricType::Gauge)?;
        for of in &self.0.stats.spans {
            let kind = if of.slot_bytes.is_some() { "transient" } else { "stored" };
            let size = of.slot_bytes.unwrap_or(BLOCK_BYTES).to_string();
            let labels = [("kind", kind), ("buffer", size.as_str())];
            let bytes = (of.spans * SPAN_BYTES) as u64;
            ConstGauge::new(bytes).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn exposure(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let x = &self.0.stats.operations.exposure;
        gauge(e, "rdma_regions_exposed", "Regions of the server that clients can access", x.regions)?;
        gauge(e, "rdma_exposed_bytes", "Bytes of the server that clients can access", x.bytes)?;
        gauge(
            e,
            "rdma_exposed_regions_peak",
            "Maximum number of regions that clients could access",
            x.peak_regions,
        )?;
        gauge(
            e,
            "rdma_exposed_bytes_peak",
            "Maximum number of bytes that clients could access",
            x.peak_bytes,
        )?;
        let metric = e.encode_descriptor(
            "rdma_exposed_byte_seconds",
            "Exposed bytes multiplied by the time of exposure",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(x.byte_seconds()).encode(metric)
    }
}

/// Labels of transport and class of calls.
type ClassLabels = [(&'static str, &'static str); 2];
/// Labels of transport, class of calls and stage.
type StageLabels = [(&'static str, &'static str); 3];

impl Scrape {
    /// Total time of each stage; divided by the number of sampled calls, the mean.
    fn stages(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let transports = [("tcp", &self.0.stats.tcp_stages), ("rdma", &self.0.stats.rdma_stages)];
        let classes = || {
            transports.into_iter().flat_map(|(transport, stats)| {
                CallClass::ALL.into_iter().map(move |class| {
                    let labels: ClassLabels = [("transport", transport), ("class", class.name())];
                    (labels, stats.of(class))
                })
            })
        };
        let name = "rpc_sampled_calls";
        let mut metric =
            e.encode_descriptor(name, "Calls sampled for the latency breakdown", None, MetricType::Counter)?;
        for (labels, sums) in classes() {
            ConstCounter::new(sums.calls).encode(metric.encode_family(&labels)?)?;
        }
        let (name, help) = ("rpc_stage_seconds", "Time of sampled calls in each stage");
        let mut metric = e.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ([transport, class], sums) in classes() {
            for stage in Stage::SERVER {
                let labels: StageLabels = [transport, class, ("stage", stage.name())];
                let seconds = ConstCounter::new(sums.time(stage).as_secs_f64());
                seconds.encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Calls, bytes and latency of the users of one kind.
fn usages(
    e: &mut DescriptorEncoder<'_>,
    kind: &str,
    whose: &str,
    list: &[(String, UsageStats)],
) -> fmt::Result {
    let name = format!("{kind}_call_seconds");
    let calls = list.iter().map(|(label, u)| ([(kind, label.as_str())], &u.latency));
    histograms(e, &name, &format!("Time of NFS calls of {whose}, without the network"), calls)?;
    let (name, help) = (format!("{kind}_bytes"), format!("Bytes moved by READ and WRITE of {whose}"));
    let mut metric = e.encode_descriptor(&name, &help, None, MetricType::Counter)?;
    for (label, u) in list {
        for (direction, n) in [("read", u.bytes_read), ("written", u.bytes_written)] {
            let labels = [(kind, label.as_str()), ("direction", direction)];
            ConstCounter::new(n).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn histograms<'a, const LABELS: usize>(
    e: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'a str, &'a str); LABELS], &'a LatencyStats)>,
) -> fmt::Result {
    let mut metric = e.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, latency) in values {
        let bound = |i| LatencyStats::bound(i).unwrap_or(f64::INFINITY);
        let buckets: Vec<_> = latency.buckets.iter().enumerate().map(|(i, n)| (bound(i), *n)).collect();
        let seconds = latency.nanos as f64 / 1e9;
        let mut family = metric.encode_family(&labels)?;
        family.encode_histogram::<NoLabelSet>(seconds, latency.count(), &buckets, None)?;
    }
    Ok(())
}

fn counters<'a, const LABELS: usize>(
    e: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'a str, &'a str); LABELS], u64)>,
) -> fmt::Result {
    let mut metric = e.encode_descriptor(name, help, None, MetricType::Counter)?;
    values.into_iter().try_for_each(|(labels, v)| ConstCounter::new(v).encode(metric.encode_family(&labels)?))
}

fn counter(e: &mut DescriptorEncoder<'_>, name: &str, help: &str, v: u64) -> fmt::Result {
    ConstCounter::new(v).encode(e.encode_descriptor(name, help, None, MetricType::Counter)?)
}

fn gauges<'a, const LABELS: usize>(
    e: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'a str, &'a str); LABELS], u64)>,
) -> fmt::Result {
    let mut metric = e.encode_descriptor(name, help, None, MetricType::Gauge)?;
    values.into_iter().try_for_each(|(labels, v)| ConstGauge::new(v).encode(metric.encode_family(&labels)?))
}

fn gauge(e: &mut DescriptorEncoder<'_>, name: &str, help: &str, v: u64) -> fmt::Result {
    ConstGauge::new(v).encode(e.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, time::Duration};

    use millrace_nfs::v4::Operation;
    use millrace_oncrpc::stages::StageSums;
    use millrace_server::LunStats;

    use super::*;

    fn snapshot_of(stats: Stats) -> Snapshot {
        Snapshot { stats, ..Snapshot::default() }
    }

    #[test]
    fn space_disks_shards_and_process_are_shown() {
        let mut snapshot = Snapshot::default();
        let known = FsStat { total_bytes: 9, free_bytes: 7, available_bytes: 5, ..FsStat::default() };
        let counted = FsStat { total_files: 4, free_files: 3, ..known };
        snapshot.spaces = vec![("/a\"b".to_owned(), known), ("/c".to_owned(), counted)];
        (snapshot.stats.shards, snapshot.hung_shards) = (2, vec![1]);
        (snapshot.stats.nfs4_opens, snapshot.stats.nfs4_locks) = (6, 8);
        let usage = millrace_scsi::DiskUsage { reads: 1, writes: 2, bytes_read: 512, bytes_written: 1024 };
        let (target, path) = ("iqn.2026-01.example:t".to_owned(), "/a/disk".into());
        snapshot.stats.luns = vec![LunStats { target, lun: 3, path, bytes: 4096, usage }];
        snapshot.process = Some(Process {
            cpu_seconds: 1.5,
            resident_bytes: 10,
            virtual_bytes: 20,
            open_fds: 4,
            max_fds: None,
            start_seconds: 1.7e9,
        });
        let text = render(&snapshot, Format::Text);
        for line in [
            "millrace_export_size_bytes{export=\"/a\\\"b\"} 9",
            "millrace_export_available_bytes{export=\"/c\"} 5",
            "millrace_export_free_files{export=\"/c\"} 3",
            "millrace_shards 2",
            "millrace_shards_hung 1",
            "millrace_nfs4_opens 6",
            "millrace_nfs4_locks 8",
            "millrace_iscsi_lun_size_bytes{target=\"iqn.2026-01.example:t\",lun=\"3\"} 4096",
            "millrace_iscsi_lun_commands_total{target=\"iqn.2026-01.example:t\",lun=\"3\",kind=\"write\"} 2",
            "millrace_iscsi_lun_data_bytes_total{target=\"iqn.2026-01.example:t\",lun=\"3\",direction=\"read\"} 512",
            "# TYPE process_cpu_seconds_total counter",
            "process_cpu_seconds_total 1.5",
            "process_open_fds 4",
            concat!("millrace_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert!(
            !text.contains("process_max_fds") && !text.contains("millrace_export_files{export=\"/a"),
            "{text}"
        );
    }

    #[test]
    fn commands_of_iscsi_are_counted_by_direction() {
        let mut stats = Stats::default();
        (stats.iscsi.writes, stats.iscsi.bytes_written, stats.iscsi.sessions) = (3, 4096, 2);
        let text = open_metrics(&snapshot_of(stats));
        for line in [
            "millrace_iscsi_commands_total{kind=\"write\"} 3",
            "millrace_iscsi_data_bytes_total{direction=\"written\"} 4096",
            "millrace_iscsi_sessions 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn only_the_busiest_clients_have_separate_counters() {
        let mut stats = Stats::default();
        stats.other_clients.bytes_read = 1000;
        for i in 0..40_u8 {
            let mut usage = UsageStats::default();
            (usage.bytes_read, usage.latency.buckets[3]) = (1, 40 - u64::from(i));
            stats.clients.push((IpAddr::from([10, 0, 0, i]).into(), usage));
        }
        let text = open_metrics(&snapshot_of(stats));
        let shown = |l: &&str| l.starts_with("millrace_client_bytes_total") && l.contains("\"read\"");
        assert_eq!(text.lines().filter(shown).count(), MAX_CLIENTS + 1, "{text}");
        for line in [
            "millrace_client_bytes_total{client=\"10.0.0.15\",direction=\"read\"} 1",
            "millrace_client_bytes_total{client=\"other\",direction=\"read\"} 1024",
            "millrace_client_call_seconds_bucket{le=\"0.000004\",client=\"10.0.0.0\"} 0",
            "millrace_client_call_seconds_bucket{le=\"0.000008\",client=\"10.0.0.0\"} 40",
            "millrace_client_call_seconds_bucket{le=\"0.000016\",client=\"10.0.0.0\"} 40",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn names_of_nfs4_clients_are_labels() {
        let mut stats = Stats::default();
        for (owner, bytes) in
            [(&b"Linux NFSv4.2 host"[..], 5), (b"a\nb\"", 6), (&[b'x'; 1024], 7), (&[b'x'; 500], 8)]
        {
            let mut usage = UsageStats::default();
            usage.bytes_read = bytes;
            stats.nfs4_clients.push((owner.into(), usage));
        }
        let text = open_metrics(&snapshot_of(stats));
        let long = "x".repeat(MAX_OWNER);
        for (name, bytes) in [("Linux NFSv4.2 host", 5), ("a\u{fffd}b\\\"", 6), (&long, 15)] {
            let line = format!(
                "millrace_nfs4_client_bytes_total{{nfs4_client=\"{name}\",direction=\"read\"}} {bytes}"
            );
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn the_text_format_has_the_names_of_samples_in_descriptions() {
        let mut stats = Stats::default();
        let mut usage = UsageStats::default();
        (usage.bytes_read, usage.latency.buckets[3]) = (5, 1);
        stats.exports.push(("/# HELP".to_owned(), usage));
        let (text, open) = (
            render(&snapshot_of(stats.clone()), Format::Text),
            render(&snapshot_of(stats), Format::OpenMetrics),
        );
        let samples =
            |text: &str| text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(samples(&text), samples(&open));
        let mut lines = text.lines().peekable();
        let mut described = Vec::new();
        while let Some(line) = lines.next() {
            if let Some(comment) = line.strip_prefix('#') {
                let name = comment.strip_prefix(" HELP ").and_then(|help| help.split(' ').next()).unwrap();
                let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
                described.push((name, kind));
                continue;
            }
            let (name, kind) = described.last().unwrap();
            let rest = line.strip_prefix(name).unwrap();
            let suffixes: &[&str] = if *kind == "histogram" { &["_sum", "_count", "_bucket"] } else { &[""] };
            let follows =
                |suffix: &&str| rest.strip_prefix(*suffix).is_some_and(|r| r.starts_with(['{', ' ']));
            assert!(suffixes.iter().any(follows), "{line} is not of {name}, a {kind}");
            assert_eq!(*kind == "counter", name.ends_with("_total"), "{name}");
        }
        assert!(described.contains(&("millrace_export_bytes_total", "counter")), "{described:?}");
        assert!(!text.contains("# EOF") && open.ends_with("# EOF\n"));
    }

    #[test]
    fn counters_are_named_and_labelled() {
        let mut stats = Stats::default();
        stats.bytes_read = 77;
        (stats.registration.kept_bytes, stats.registration.reclaimed) = (4096, 3);
        let mut of = ProcedureStats::default();
        (of.calls, of.failures, of.latency.buckets[3]) = (5, 2, 4);
        stats.nfs3_procedures.push((Procedure::Read, of));
        of.latency.buckets[3] = 3;
        stats.nfs4_operations.extend([(Operation::Open, of), (Operation::Lock, ProcedureStats::default())]);
        let times = [(Stage::Execution, Duration::from_micros(3)), (Stage::Reply, Duration::from_secs(2))];
        *stats.rdma_stages.of_mut(CallClass::Write) = StageSums::new(2, times);
        let text = open_metrics(&snapshot_of(stats));
        for line in [
            "millrace_nfs_calls_total{version=\"3\",procedure=\"READ\"} 5",
            "millrace_nfs_failures_total{version=\"3\",procedure=\"READ\"} 2",
            "millrace_nfs_call_seconds_count{version=\"3\",procedure=\"READ\"} 4",
            "millrace_nfs_calls_total{version=\"4\",procedure=\"OPEN\"} 5",
            "millrace_nfs_failures_total{version=\"4\",procedure=\"OPEN\"} 2",
            "millrace_nfs_call_seconds_count{version=\"4\",procedure=\"OPEN\"} 3",
            "millrace_nfs_calls_total{version=\"4\",procedure=\"LOCK\"} 0",
            "millrace_data_bytes_total{direction=\"read\"} 77",
            "millrace_rdma_regions_exposed 0",
            "millrace_rdma_registered_kept_bytes 4096",
            "millrace_rdma_registrations_reclaimed_total 3",
            "millrace_rpc_sampled_calls_total{transport=\"rdma\",class=\"write\"} 2",
            "millrace_rpc_stage_seconds_total{transport=\"rdma\",class=\"write\",stage=\"execution\"} 0.000003",
            "millrace_rpc_stage_seconds_total{transport=\"rdma\",class=\"write\",stage=\"reply\"} 2.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let lock = "millrace_nfs_call_seconds_count{version=\"4\",procedure=\"LOCK\"}";
        assert!(!text.contains(lock), "no client uses LOCK");
    }
}
