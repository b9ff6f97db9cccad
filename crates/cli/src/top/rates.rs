//! Rates: the difference of two looks at a server's counters, by time.

use std::{collections::BTreeMap, time::Instant};

use millrace_bench::samples::Sample;

use super::GROUPS;

/// The counters of one client, export or procedure.
#[derive(Debug, Clone, Default, PartialEq)]
struct Use {
    calls: f64,
    read: f64,
    written: f64,
    /// Calls of at most so many seconds, in order of the seconds.
    buckets: Vec<(f64, f64)>,
}

/// One look at a server's counters.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    at: Instant,
    groups: [BTreeMap<String, Use>; GROUPS.len()],
    samples: Vec<Sample>,
}

impl Counters {
    /// The counters of `samples`, which were taken `at` some time.
    pub(crate) fn new(samples: Vec<Sample>, at: Instant) -> Self {
        let groups = GROUPS.map(|group| uses(&samples, group));
        Self { at, groups, samples }
    }

    /// The sum of a counter over all its labels.
    pub(crate) fn total(&self, name: &str) -> f64 {
        self.samples.iter().filter(|s| s.name == name).map(|s| s.value).sum()
    }
}

fn uses(samples: &[Sample], group: &str) -> BTreeMap<String, Use> {
    let prefix = if group == "procedure" { "nfs" } else { group };
    let mut out: BTreeMap<String, Use> = BTreeMap::new();
    for s in samples {
        let (Some(label), Some(name)) =
            (s.label(group), s.name.strip_prefix(prefix).and_then(|n| n.strip_prefix('_')))
        else {
            continue;
        };
        let of = out.entry(label.to_owned()).or_default();
        match (name, s.label("direction"), s.label("le").and_then(|le| le.parse().ok())) {
            ("call_seconds_count", ..) => of.calls = s.value,
            ("call_seconds_bucket", _, Some(le)) => of.buckets.push((le, s.value)),
            ("bytes_total", Some("read"), _) => of.read = s.value,
            ("bytes_total", ..) => of.written = s.value,
            _ => {}
        }
    }
    out.values_mut().for_each(|u| u.buckets.sort_by(|a, b| a.0.total_cmp(&b.0)));
    out
}

/// What one client, export or procedure did between two looks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Calls in a second.
    pub(crate) ops: f64,
    /// Megabytes (10^6) in a second; none of a procedure.
    pub(crate) read: Option<f64>,
    pub(crate) written: Option<f64>,
    /// Microseconds that half of the calls, and 99 of 100, took at most; none without calls.
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
}

impl Row {
    /// The figures, as they are shown.
    pub(crate) fn texts(&self) -> [String; 5] {
        let text = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.1}"));
        [format!("{:.0}", self.ops), text(self.read), text(self.written), text(self.p50), text(self.p99)]
    }
}

/// By what rows are ordered; the largest first, names from A.
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

/// Everything that is shown.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rates {
    /// Connections open now.
    pub(crate) connections: f64,
    /// Calls over RDMA in progress now.
    pub(crate) in_progress: f64,
    /// Bytes of memory in use, and the most that it may be.
    pub(crate) memory: (f64, f64),
    /// The rows of each of [`GROUPS`].
    pub(crate) groups: [Vec<Row>; GROUPS.len()],
}

impl Rates {
    /// What happened between two looks.
    pub(crate) fn between(before: &Counters, now: &Counters, order: Order) -> Self {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-9);
        let mut i = 0;
        let groups = now.groups.each_ref().map(|group| {
            let old = before.groups.get(i);
            i += 1;
            let mut rows: Vec<Row> =
                group.iter().map(|(name, u)| row(name, &earlier(old, name, u), u, seconds)).collect();
            // Procedures have no bytes; those that nobody calls say nothing.
            if i == GROUPS.len() {
                rows.retain(|r| r.ops > 0.0);
                rows.iter_mut().for_each(|r| (r.read, r.written) = (None, None));
            }
            sort(&mut rows, order);
            rows
        });
        Self {
            connections: now.total("connections"),
            in_progress: now.total("rdma_calls_in_progress"),
            memory: (now.total("memory_in_use_bytes"), now.total("memory_limit_bytes")),
            groups,
        }
    }
}

/// The clients that are not shown one by one: those that are change.
const OTHERS: &str = "other";

/// What `name` had counted at the earlier look. A client that is new among those shown was one of the others then, and
/// the others have fewer counts without it: both are taken to have done nothing in between, for nobody knows what.
fn earlier(before: Option<&BTreeMap<String, Use>>, name: &str, now: &Use) -> Use {
    let old = before.and_then(|group| group.get(name));
    let moved = match old {
        Some(old) => {
            name == OTHERS && (now.calls < old.calls || now.read < old.read || now.written < old.written)
        }
        None => before.is_some_and(|group| group.contains_key(OTHERS)),
    };
    if moved { now.clone() } else { old.cloned().unwrap_or_default() }
}

/// A counter that went back began anew: the server was restarted.
fn since(before: f64, now: f64) -> f64 {
    if now >= before { now - before } else { now }
}

fn row(name: &str, before: &Use, now: &Use, seconds: f64) -> Row {
    let anew = now.calls < before.calls;
    let bucket = |le: f64| match before.buckets.iter().find(|b| b.0 == le) {
        Some(b) if !anew => b.1,
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

/// The microseconds that a part `q` of the calls took at most, taken to be spread evenly in their bucket; the bound of
/// the last bucket but one where it is in the last, which has none.
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

    use super::*;
    use millrace_bench::samples::parse;

    fn counters(at: Instant, scale: u64) -> Counters {
        let text = format!(
            "millrace_export_call_seconds_count{{export=\"/a\"}} {}\n\
             millrace_export_call_seconds_bucket{{le=\"0.000001\",export=\"/a\"}} {}\n\
             millrace_export_call_seconds_bucket{{le=\"0.000002\",export=\"/a\"}} {}\n\
             millrace_export_call_seconds_bucket{{le=\"+Inf\",export=\"/a\"}} {}\n\
             millrace_export_call_seconds_count{{export=\"/b\"}} 0\n\
             millrace_export_bytes_total{{export=\"/a\",direction=\"read\"}} {}\n\
             millrace_export_bytes_total{{export=\"/b\",direction=\"written\"}} {}\n\
             millrace_nfs_call_seconds_count{{procedure=\"READ\"}} {}\n\
             millrace_nfs_call_seconds_count{{procedure=\"LINK\"}} 5\n\
             millrace_connections{{transport=\"tcp\"}} 2\nmillrace_connections{{transport=\"rdma\"}} 3\n",
            100 * scale,
            50 * scale,
            98 * scale,
            100 * scale,
            4_000_000 * scale,
            1_000_000 * scale,
            100 * scale,
        );
        Counters::new(parse(&text), at)
    }

    #[test]
    fn rates_are_differences_by_time() {
        let start = Instant::now();
        let (before, now) = (counters(start, 1), counters(start + Duration::from_secs(2), 3));
        let rates = Rates::between(&before, &now, Order::Ops);
        assert_eq!(rates.connections, 5.0);
        let [clients, exports, procedures] = &rates.groups;
        assert!(clients.is_empty());
        let a = &exports[0];
        assert_eq!((a.name.as_str(), a.ops, a.read, a.written), ("/a", 100.0, Some(4.0), Some(0.0)));
        assert_eq!(a.p50, Some(1.0));
        assert_eq!(a.p99, Some(2.0), "beyond the last bound, that bound");
        assert_eq!((exports[1].ops, exports[1].written, exports[1].p50), (0.0, Some(1.0), None));
        assert_eq!(
            procedures.iter().map(|r| (r.name.as_str(), r.ops)).collect::<Vec<_>>(),
            [("READ", 100.0)]
        );
        let by_name = Rates::between(&before, &now, Order::Name);
        assert_eq!(by_name.groups[1][0].name, "/a");
    }

    #[test]
    fn a_client_that_joins_the_busiest_did_not_do_all_its_work_just_now() {
        let start = Instant::now();
        let look = |after: u64, clients: &[(&str, u64)]| {
            let line = |(name, calls): &(&str, u64)| {
                format!("millrace_client_call_seconds_count{{client=\"{name}\"}} {calls}\n")
            };
            let text: String = clients.iter().map(line).collect();
            Counters::new(parse(&text), start + Duration::from_secs(after))
        };
        let before = look(0, &[("10.0.0.1", 50), ("other", 1000)]);
        let now = look(1, &[("10.0.0.1", 60), ("10.0.0.2", 700), ("other", 310)]);
        let rates = Rates::between(&before, &now, Order::Name);
        let ops: Vec<_> = rates.groups[0].iter().map(|r| (r.name.as_str(), r.ops)).collect();
        assert_eq!(ops, [("10.0.0.1", 10.0), ("10.0.0.2", 0.0), ("other", 0.0)]);
        // Where all are shown, one that is new is new.
        let all = Rates::between(&look(0, &[("10.0.0.1", 50)]), &now, Order::Name);
        assert_eq!(all.groups[0][1].ops, 700.0);
    }

    #[test]
    fn a_restarted_server_counts_from_nothing() {
        let start = Instant::now();
        let (before, now) = (counters(start, 3), counters(start + Duration::from_secs(1), 1));
        let rates = Rates::between(&before, &now, Order::Bytes);
        assert_eq!((rates.groups[1][0].ops, rates.groups[1][0].p50), (100.0, Some(1.0)));
    }
}
