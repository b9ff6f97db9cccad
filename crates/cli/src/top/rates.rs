//! Rates: the difference of two samples of a server's counters divided by the time between them.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Instant, SystemTime},
};

use millrace_program::samples::Sample;
use serde::Serialize;

use super::GROUPS;

/// The counters of one client, export or procedure.
#[derive(Debug, Clone, Default, PartialEq)]
struct Usage {
    calls: f64,
    read: f64,
    written: f64,
    /// Buckets of the latency histogram: upper bound in seconds, cumulative number of calls; in ascending
    /// order.
    buckets: Vec<(f64, f64)>,
}

/// One sample of a server's counters.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    at: Instant,
    groups: [BTreeMap<String, Usage>; GROUPS.len()],
    samples: Vec<Sample>,
}

impl Counters {
    /// The counters in `samples`, which were scraped at the time `at`.
    pub(crate) fn new(samples: Vec<Sample>, at: Instant) -> Self {
        let groups = GROUPS.map(|group| usage_by_label(&samples, group));
        Self { at, groups, samples }
    }

    /// The sum of a counter over all its labels.
    pub(crate) fn total(&self, name: &str) -> f64 {
        self.samples.iter().filter(|s| s.name == name).map(|s| s.value).sum()
    }

    fn version(&self) -> Option<String> {
        let info = self.samples.iter().find(|s| s.name == "build_info")?;
        info.label("version").map(str::to_owned)
    }

    /// Seconds from the start of the process to `now`.
    fn uptime(&self, now: SystemTime) -> Option<u64> {
        let start = self.samples.iter().find(|s| s.name == "process_start_time_seconds")?.value;
        let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64();
        Some((now - start).max(0.0) as u64)
    }

    /// The counter with this label.
    fn labelled(&self, name: &str, label: &str, value: &str) -> f64 {
        let found = self.samples.iter().find(|s| s.name == name && s.label(label) == Some(value));
        found.map_or(0.0, |s| s.value)
    }
}

fn usage_by_label(samples: &[Sample], group: &str) -> BTreeMap<String, Usage> {
    let prefix = if group == "procedure" { "nfs" } else { group };
    let mut out: BTreeMap<String, Usage> = BTreeMap::new();
    for s in samples {
        let (Some(label), Some(name)) =
            (s.label(group), s.name.strip_prefix(prefix).and_then(|n| n.strip_prefix('_')))
        else {
            continue;
        };
        let of = out.entry(row_name(s, label)).or_default();
        match (name, s.label("direction"), s.label("le").and_then(|le| le.parse().ok())) {
            // Not all procedures are timed.
            ("calls_total", ..) => of.calls = s.value,
            ("call_seconds_count", ..) if group != "procedure" => of.calls = s.value,
            ("call_seconds_bucket", _, Some(le)) => of.buckets.push((le, s.value)),
            ("bytes_total", Some("read"), _) => of.read = s.value,
            ("bytes_total", ..) => of.written = s.value,
            _ => {}
        }
    }
    out.values_mut().for_each(|u| u.buckets.sort_by(|a, b| a.0.total_cmp(&b.0)));
    out
}

/// The name of the row of `sample`: the label of its group, after the version of the protocol if it has one.
fn row_name(sample: &Sample, label: &str) -> String {
    match sample.label("version") {
        Some(version) => format!("NFSv{version} {label}"),
        None => label.to_owned(),
    }
}

/// Activity of one client, export or procedure between two samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Calls per second.
    pub(crate) ops: f64,
    /// Megabytes (10^6 bytes) per second; `None` for procedures.
    #[serde(rename = "read_mb")]
    pub(crate) read: Option<f64>,
    /// As `read`, for writes.
    #[serde(rename = "written_mb")]
    pub(crate) written: Option<f64>,
    /// Median of the call latency in microseconds; `None` without calls.
    #[serde(rename = "p50_us")]
    pub(crate) p50: Option<f64>,
    /// 99th percentile of the call latency in microseconds; `None` without calls.
    #[serde(rename = "p99_us")]
    pub(crate) p99: Option<f64>,
}

impl Row {
    /// Whether there was no activity.
    fn is_idle(&self) -> bool {
        let bytes = self.read.unwrap_or_default() + self.written.unwrap_or_default();
        self.ops == 0.0 && bytes == 0.0
    }

    /// The figures as text.
    pub(crate) fn texts(&self) -> [String; 5] {
        let text = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.1}"));
        [format!("{:.0}", self.ops), text(self.read), text(self.written), text(self.p50), text(self.p99)]
    }
}

/// Sort key of rows: descending for figures, ascending for names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Order {
    /// Calls
    #[default]
    Ops,
    /// Bytes
    Bytes,
    /// The 99th percentile
    P99,
    /// Names
    Name,
}

/// The contents of one report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Version of the server, if it states it.
    pub(crate) version: Option<String>,
    /// Seconds since the start of the server, if it states that.
    #[serde(rename = "uptime_seconds")]
    pub(crate) uptime: Option<u64>,
    /// Open connections.
    pub(crate) connections: f64,
    /// Calls over RDMA in progress.
    pub(crate) in_progress: f64,
    /// Bytes of network memory in use.
    #[serde(rename = "memory_bytes")]
    pub(crate) memory: f64,
    /// Limit of the network memory in bytes.
    #[serde(rename = "memory_limit_bytes")]
    pub(crate) memory_limit: f64,
    /// Activity of iSCSI; `None` if no initiator has logged in.
    pub(crate) iscsi: Option<Iscsi>,
    // The rows of each of `GROUPS`.
    pub(crate) client: Vec<Row>,
    pub(crate) export: Vec<Row>,
    pub(crate) nfs4_client: Vec<Row>,
    pub(crate) procedure: Vec<Row>,
}

/// Activity of iSCSI between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Iscsi {
    sessions: f64,
    /// Commands per second.
    commands: f64,
    /// Megabytes (10^6 bytes) per second.
    #[serde(rename = "read_mb")]
    read: f64,
    /// As `read`, for writes.
    #[serde(rename = "written_mb")]
    written: f64,
}

impl Iscsi {
    fn between(before: &Counters, now: &Counters, seconds: f64) -> Option<Self> {
        let rate = |of: &dyn Fn(&Counters) -> f64| since(of(before), of(now)) / seconds;
        let bytes = |direction: &'static str| {
            rate(&move |c| c.labelled("iscsi_data_bytes_total", "direction", direction)) / 1e6
        };
        (now.total("iscsi_logins_total") > 0.0).then(|| Self {
            sessions: now.total("iscsi_sessions"),
            commands: rate(&|c| c.total("iscsi_commands_total")),
            read: bytes("read"),
            written: bytes("written"),
        })
    }
}

impl fmt::Display for Iscsi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sessions, commands, read, written } = self;
        write!(
            f,
            "iSCSI: {sessions} sessions, {commands:.0} commands/s, read {read:.1} MB/s, write {written:.1} MB/s"
        )
    }
}

impl Rates {
    /// The rates between two samples.
    pub(crate) fn between(before: &Counters, now: &Counters, order: Order) -> Self {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-9);
        let mut i = 0;
        let [client, export, nfs4_client, procedure] = now.groups.each_ref().map(|group| {
            let old = before.groups.get(i);
            i += 1;
            let mut rows: Vec<Row> =
                group.iter().map(|(name, u)| row(name, &earlier(old, name, u), u, seconds)).collect();
            // The server lists clients for some time after they have gone.
            rows.retain(|row| GROUPS.get(i - 1) == Some(&"export") || !row.is_idle());
            // Procedures have no byte counters.
            if i == GROUPS.len() {
                rows.iter_mut().for_each(|r| (r.read, r.written) = (None, None));
            }
            sort(&mut rows, order);
            rows
        });
        Self {
            connections: now.total("connections"),
            in_progress: now.total("rdma_calls_in_progress"),
            memory: now.total("memory_in_use_bytes"),
            memory_limit: now.total("memory_limit_bytes"),
            iscsi: Iscsi::between(before, now, seconds),
            version: now.version(),
            uptime: now.uptime(SystemTime::now()),
            client,
            export,
            nfs4_client,
            procedure,
        }
    }

    /// The rows of each of [`GROUPS`].
    pub(crate) fn groups(&self) -> [&[Row]; GROUPS.len()] {
        [&self.client, &self.export, &self.nfs4_client, &self.procedure]
    }

    /// Calls, megabytes read and megabytes written per second, of all exports.
    pub(super) fn totals(&self) -> [f64; 3] {
        let sum = |of: fn(&Row) -> f64| self.export.iter().map(of).sum();
        [sum(|r| r.ops), sum(|r| r.read.unwrap_or_default()), sum(|r| r.written.unwrap_or_default())]
    }

    /// Version and uptime of the server, as far as it states them.
    pub(crate) fn about(&self) -> Option<String> {
        let version = self.version.as_ref().map(|version| format!("millrace {version}"));
        let uptime = self.uptime.map(|seconds| {
            let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
            match days {
                0 => format!("up {hours}:{minutes:02}"),
                _ => format!("up {days} d {hours}:{minutes:02}"),
            }
        });
        let about: Vec<_> = version.into_iter().chain(uptime).collect();
        (!about.is_empty()).then(|| about.join(", "))
    }
}

/// Label of all clients that the server does not count individually.
const OTHERS: &str = "other";

/// Returns the counters of `name` in the earlier sample. A client that the server has started to count
/// individually was part of [`OTHERS`] before, whose counters have decreased. The activity of both between
/// the samples is unknown and counts as zero.
fn earlier(before: Option<&BTreeMap<String, Usage>>, name: &str, now: &Usage) -> Usage {
    let old = before.and_then(|group| group.get(name));
    let moved = match old {
        Some(old) => {
            name == OTHERS && (now.calls < old.calls || now.read < old.read || now.written < old.written)
        }
        None => before.is_some_and(|group| group.contains_key(OTHERS)),
    };
    if moved { now.clone() } else { old.cloned().unwrap_or_default() }
}

/// Increase of a counter. A counter that has decreased was reset by a restart of the server.
fn since(before: f64, now: f64) -> f64 {
    if now >= before { now - before } else { now }
}

fn row(name: &str, before: &Usage, now: &Usage, seconds: f64) -> Row {
    let restarted = now.calls < before.calls;
    let bucket = |le: f64| match before.buckets.iter().find(|b| b.0 == le) {
        Some(b) if !restarted => b.1,
        _ => 0.0,
    };
    let buckets: Vec<_> = now.buckets.iter().map(|(le, n)| (*le, n - bucket(*le))).collect();
    Row {
        name: name.to_owned(),
        ops: since(before.calls, now.calls) / seconds,
        read: Some(since(before.read, now.read) / seconds / 1e6),
        written: Some(since(before.written, now.written) / seconds / 1e6),
        p50: quantile(&buckets, 0.5),
        p99: quantile(&buckets, 0.99),
    }
}

/// Returns the quantile `q` in microseconds, by linear interpolation in its bucket; in the last bucket, which
/// has no upper bound, its lower bound.
fn quantile(buckets: &[(f64, f64)], q: f64) -> Option<f64> {
    let wanted = buckets.last().map(|b| b.1).filter(|all| *all > 0.0)? * q;
    let (mut low, mut below) = (0.0, 0.0);
    for (bound, up_to) in buckets {
        if *up_to >= wanted && bound.is_finite() {
            let part = (wanted - below) / (up_to - below);
            return Some((low + (bound - low) * part) * 1e6);
        }
        if bound.is_finite() {
            (low, below) = (*bound, *up_to);
        }
    }
    Some(low * 1e6)
}

fn sort(rows: &mut [Row], order: Order) {
    let key = |r: &Row| match order {
        Order::Ops => r.ops,
        Order::Bytes => r.read.unwrap_or_default() + r.written.unwrap_or_default(),
        Order::P99 => r.p99.unwrap_or_default(),
        Order::Name => 0.0,
    };
    rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_program::samples::parse;

    use super::*;

    fn counters(at: Instant, scale: u64) -> Counters {
        let text = format!(
            "millrace_export_call_seconds_count{{export=\"/a\"}} {}\n\
             millrace_export_call_seconds_bucket{{le=\"0.000001\",export=\"/a\"}} {}\n\
             millrace_export_call_seconds_bucket{{le=\"0.000002\",export=\"/a\"}} {}\n\
             millrace_export_call_seconds_bucket{{le=\"+Inf\",export=\"/a\"}} {}\n\
             millrace_export_call_seconds_count{{export=\"/b\"}} 0\n\
             millrace_export_bytes_total{{export=\"/a\",direction=\"read\"}} {}\n\
             millrace_export_bytes_total{{export=\"/b\",direction=\"written\"}} {}\n\
             millrace_nfs_calls_total{{version=\"3\",procedure=\"READ\"}} {}\n\
             millrace_nfs_calls_total{{version=\"4\",procedure=\"READ\"}} {}\n\
             millrace_nfs_calls_total{{version=\"4\",procedure=\"LINK\"}} 5\n\
             millrace_nfs_call_seconds_bucket{{le=\"0.000002\",version=\"4\",procedure=\"READ\"}} {}\n\
             millrace_nfs_call_seconds_bucket{{le=\"+Inf\",version=\"4\",procedure=\"READ\"}} {}\n\
             millrace_connections{{transport=\"tcp\"}} 2\nmillrace_connections{{transport=\"rdma\"}} 3\n",
            100 * scale,
            50 * scale,
            98 * scale,
            100 * scale,
            4_000_000 * scale,
            1_000_000 * scale,
            100 * scale,
            40 * scale,
            30 * scale,
            40 * scale,
        );
        Counters::new(parse(&text), at)
    }

    #[test]
    fn rates_are_differences_divided_by_time() {
        let start = Instant::now();
        let (before, now) = (counters(start, 1), counters(start + Duration::from_secs(2), 3));
        let rates = Rates::between(&before, &now, Order::Ops);
        assert_eq!(rates.connections, 5.0);
        let [clients, exports, nfs4, procedures] = rates.groups();
        assert!(clients.is_empty() && nfs4.is_empty());
        let a = &exports[0];
        assert_eq!((a.name.as_str(), a.ops, a.read, a.written), ("/a", 100.0, Some(4.0), Some(0.0)));
        assert_eq!(a.p50, Some(1.0));
        assert_eq!(a.p99, Some(2.0), "beyond the last bound, that bound");
        assert_eq!((exports[1].ops, exports[1].written, exports[1].p50), (0.0, Some(1.0), None));
        assert_eq!(
            procedures.iter().map(|r| (r.name.as_str(), r.ops, r.p50.is_some())).collect::<Vec<_>>(),
            [("NFSv3 READ", 100.0, false), ("NFSv4 READ", 40.0, true)]
        );
        let by_name = Rates::between(&before, &now, Order::Name);
        assert_eq!(by_name.export[0].name, "/a");
    }

    #[test]
    fn activity_of_iscsi_is_shown_after_a_login() {
        let start = Instant::now();
        let sample = |after: u64, commands: u64| {
            let text = format!(
                "millrace_iscsi_logins_total 1\nmillrace_iscsi_sessions 2\n\
                 millrace_iscsi_commands_total{{kind=\"read\"}} {commands}\n\
                 millrace_iscsi_data_bytes_total{{direction=\"read\"}} {}\n\
                 millrace_iscsi_data_bytes_total{{direction=\"written\"}} 7\n",
                commands * 1_000_000
            );
            Counters::new(parse(&text), start + Duration::from_secs(after))
        };
        let rates = Rates::between(&sample(0, 10), &sample(2, 30), Order::Ops);
        let shown = rates.iscsi.unwrap().to_string();
        assert_eq!(shown, "iSCSI: 2 sessions, 10 commands/s, read 10.0 MB/s, write 0.0 MB/s");
        assert_eq!(Rates::between(&counters(start, 1), &counters(start, 2), Order::Ops).iscsi, None);
    }

    #[test]
    fn earlier_calls_of_a_newly_listed_client_are_not_counted() {
        let start = Instant::now();
        let sample = |after: u64, clients: &[(&str, u64)]| {
            let line = |(name, calls): &(&str, u64)| {
                format!("millrace_client_call_seconds_count{{client=\"{name}\"}} {calls}\n")
            };
            let text: String = clients.iter().map(line).collect();
            Counters::new(parse(&text), start + Duration::from_secs(after))
        };
        let before = sample(0, &[("10.0.0.1", 50), ("other", 1000)]);
        let now = sample(1, &[("10.0.0.1", 60), ("10.0.0.2", 700), ("other", 310)]);
        let rates = Rates::between(&before, &now, Order::Name);
        let ops: Vec<_> = rates.client.iter().map(|r| (r.name.as_str(), r.ops)).collect();
        assert_eq!(ops, [("10.0.0.1", 10.0)], "those without known activity are left out");
        // Without the label "other", all clients are counted individually, so the client is new.
        let all = Rates::between(&sample(0, &[("10.0.0.1", 50)]), &now, Order::Name);
        assert_eq!(all.client[1].ops, 700.0);
    }

    #[test]
    fn counters_of_a_restarted_server_start_at_zero() {
        let start = Instant::now();
        let (before, now) = (counters(start, 3), counters(start + Duration::from_secs(1), 1));
        let rates = Rates::between(&before, &now, Order::Bytes);
        assert_eq!((rates.export[0].ops, rates.export[0].p50), (100.0, Some(1.0)));
    }

    #[test]
    fn clients_without_activity_are_left_out_and_exports_are_not() {
        let start = Instant::now();
        let sample = |after: u64, calls: u64| {
            let text = format!(
                "millrace_client_call_seconds_count{{client=\"10.0.0.1\"}} 7\n\
                 millrace_client_call_seconds_count{{client=\"10.0.0.2\"}} {calls}\n\
                 millrace_nfs4_client_call_seconds_count{{nfs4_client=\"millrace vm 5549\"}} 7\n\
                 millrace_export_call_seconds_count{{export=\"/idle\"}} 7\n"
            );
            Counters::new(parse(&text), start + Duration::from_secs(after))
        };
        let rates = Rates::between(&sample(0, 1), &sample(1, 2), Order::Ops);
        let names = rates.groups().map(|rows| rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>());
        assert_eq!(names, [vec!["10.0.0.2"], vec!["/idle"], vec![], vec![]]);
    }

    #[test]
    fn version_and_uptime_are_shown_if_the_server_states_them() {
        let about = |text: &str| {
            let counters = Counters::new(parse(text), Instant::now());
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(200_000);
            Rates { version: counters.version(), uptime: counters.uptime(now), ..Rates::default() }.about()
        };
        let info = "millrace_build_info{version=\"1.2.3\"} 1\n";
        assert_eq!(about(info).unwrap(), "millrace 1.2.3");
        assert_eq!(
            about(&format!("{info}process_start_time_seconds 196300.5\n")).unwrap(),
            "millrace 1.2.3, up 1:01"
        );
        assert_eq!(about("process_start_time_seconds 1000\n").unwrap(), "up 2 d 7:16");
        assert_eq!(about("millrace_connections 1\n"), None);
    }
}
