//! The figures of one measurement, with the same fields for all benchmarks.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use millrace_program::{
    table::{Align, Table},
    units::{ByteSize, grouped, short},
};
use serde::Serialize;

use crate::{BenchError, breakdown::Breakdown, stats::median};

/// The figures of one measurement. `None` is printed as `-` and is `null` in JSON: not measured or not
/// applicable.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figure {
    /// Name of the benchmark: `raw`, `iozone`.
    pub workload: String,
    /// Name of the test: `stream`, `write`, `random-read`.
    pub test: String,
    /// Transport: `rdma` or `tcp`.
    pub proto: String,
    /// RDMA provider.
    pub provider: Option<String>,
    /// Transfer design of bulk data: `read-write`.
    pub design: Option<String>,
    /// Registration strategy: `dynamic`, `cache`; that of the client if both ends have one.
    pub registration: Option<String>,
    /// Registration strategy of the server.
    pub server_registration: Option<String>,
    /// Number of threads, each with its own connection unless the benchmark states otherwise.
    pub threads: usize,
    /// Number of simulated client hosts; `None` for real measurements.
    pub client_hosts: Option<usize>,
    /// Whether processors were kept from halting ([`no_halt`](crate::no_halt)); `None` for simulations.
    pub no_halt: Option<bool>,
    /// Size of one operation in bytes.
    pub record: u64,
    /// Number of operations in flight per thread.
    pub outstanding: usize,
    /// Throughput of all threads in 10^6 bytes per second.
    pub mb_per_s: Option<f64>,
    /// Operations per second of all threads.
    pub ops_per_s: Option<f64>,
    /// Median latency of an operation in microseconds.
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: Option<f64>,
    /// Processor seconds of the client (raw: of the sender) per 10^9 bytes.
    pub client_cpu_s_per_gb: Option<f64>,
    /// Processor seconds of the server (raw: of the receiver) per 10^9 bytes.
    pub server_cpu_s_per_gb: Option<f64>,
    /// Processor microseconds of the client (raw: of the requester) per operation.
    pub client_cpu_us_per_op: Option<f64>,
    /// Processor microseconds of the server per operation.
    pub server_cpu_us_per_op: Option<f64>,
    /// Processor time of the client (simulated: of all client hosts) relative to the elapsed time; 100 is one
    /// core.
    pub client_cpu_percent: Option<f64>,
    /// Processor time of the server relative to the elapsed time; 100 is one core.
    pub server_cpu_percent: Option<f64>,
    /// Number of memory registrations of the client.
    pub client_registrations: Option<f64>,
    /// Number of memory registrations of the server.
    pub server_registrations: Option<f64>,
    /// Bytes of the client that the server could access, integrated over time, in byte-seconds.
    pub client_exposed_byte_s: Option<f64>,
    /// Bytes of the server that clients could access, integrated over time, in byte-seconds.
    pub server_exposed_byte_s: Option<f64>,
    /// Time that emulated accelerators computed relative to the elapsed time, in percent.
    pub accelerator_percent: Option<f64>,
    /// Latency breakdown.
    #[serde(skip)]
    pub breakdown: Option<Breakdown>,
}

impl Figure {
    /// The medians of `runs` of the same measurement, and the breakdown over all of them; `None` without
    /// runs.
    pub fn median(runs: &[Self]) -> Option<Self> {
        let mid = |get: fn(&Self) -> Option<f64>| median(runs.iter().filter_map(get));
        let mut out = runs.first()?.clone();
        out.mb_per_s = mid(|f| f.mb_per_s);
        out.ops_per_s = mid(|f| f.ops_per_s);
        out.p50_us = mid(|f| f.p50_us);
        out.p99_us = mid(|f| f.p99_us);
        out.client_cpu_s_per_gb = mid(|f| f.client_cpu_s_per_gb);
        out.server_cpu_s_per_gb = mid(|f| f.server_cpu_s_per_gb);
        out.client_cpu_us_per_op = mid(|f| f.client_cpu_us_per_op);
        out.server_cpu_us_per_op = mid(|f| f.server_cpu_us_per_op);
        out.client_cpu_percent = mid(|f| f.client_cpu_percent);
        out.server_cpu_percent = mid(|f| f.server_cpu_percent);
        out.client_registrations = mid(|f| f.client_registrations);
        out.server_registrations = mid(|f| f.server_registrations);
        out.client_exposed_byte_s = mid(|f| f.client_exposed_byte_s);
        out.server_exposed_byte_s = mid(|f| f.server_exposed_byte_s);
        out.accelerator_percent = mid(|f| f.accelerator_percent);
        out.breakdown = Breakdown::of_all(runs.iter().filter_map(|f| f.breakdown.as_ref()));
        Some(out)
    }

    /// The figures as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A file of figures as comma-separated values: a header line with the JSON keys, and a line for each figure;
/// missing values are empty.
pub struct Csv {
    path: PathBuf,
    out: csv::Writer<File>,
}

impl Csv {
    /// Creates or overwrites the file.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path) -> Result<Self, BenchError> {
        let out = File::create(path).map_err(BenchError::file("create", path))?;
        Ok(Self { path: path.to_owned(), out: csv::Writer::from_writer(out) })
    }

    /// Appends a line and flushes it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, figure: &Figure) -> Result<(), BenchError> {
        self.out.serialize(figure).map_err(BenchError::file("write", &self.path))?;
        self.out.flush().map_err(BenchError::file("write", &self.path))
    }
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), short)
}

/// A table of `figures`; `ends` are the names of the two ends of the connection ("client" and "server").
pub fn table(figures: &[Figure], ends: (&str, &str)) -> Table {
    let (left, right) = ends;
    let mut t = Table::new(&[
        ("test", Align::Left),
        ("record", Align::Right),
        ("MB/s", Align::Right),
        ("ops/s", Align::Right),
        ("p50 us", Align::Right),
        ("p99 us", Align::Right),
        (&format!("{left} CPU s/GB"), Align::Right),
        (&format!("{right} CPU s/GB"), Align::Right),
        (&format!("{left} CPU us/op"), Align::Right),
        (&format!("{right} CPU us/op"), Align::Right),
    ]);
    for f in figures {
        t.row([
            f.test.clone(),
            ByteSize(f.record).human().to_string(),
            cell(f.mb_per_s),
            f.ops_per_s.map_or_else(|| "-".into(), |v| grouped(v.round() as u64)),
            cell(f.p50_us),
            cell(f.p99_us),
            cell(f.client_cpu_s_per_gb),
            cell(f.server_cpu_s_per_gb),
            cell(f.client_cpu_us_per_op),
            cell(f.server_cpu_us_per_op),
        ]);
    }
    t
}

/// The text of a column for a figure.
type CellText = fn(&Figure) -> String;

/// A table of the cost of designs and strategies: processor time, registrations, exposed memory. Parameters
/// that are equal in all `figures` are omitted, except test and record.
pub fn costs(figures: &[Figure]) -> Table {
    let varies =
        |get: CellText| figures.first().is_some_and(|first| figures.iter().any(|f| get(f) != get(first)));
    let mut words: Vec<(&str, Align, CellText)> = vec![
        ("design", Align::Left, |f| text(&f.design)),
        ("registration", Align::Left, |f| text(&f.registration)),
        ("server's", Align::Left, |f| text(&f.server_registration)),
        ("threads", Align::Right, |f| f.threads.to_string()),
    ];
    words.retain(|(_, _, get)| varies(*get));
    words.push(("record", Align::Right, |f| ByteSize(f.record).human().to_string()));
    words.push(("test", Align::Left, |f| f.test.clone()));
    let numbers: [(&str, CellText); 7] = [
        ("MB/s", |f| cell(f.mb_per_s)),
        ("client CPU %", |f| cell(f.client_cpu_percent)),
        ("server CPU %", |f| cell(f.server_cpu_percent)),
        ("client regs", |f| count(f.client_registrations)),
        ("server regs", |f| count(f.server_registrations)),
        ("client exposed", |f| byte_seconds(f.client_exposed_byte_s)),
        ("server exposed", |f| byte_seconds(f.server_exposed_byte_s)),
    ];
    let header = words.iter().map(|(name, align, _)| (*name, *align));
    let header: Vec<_> = header.chain(numbers.iter().map(|(name, _)| (*name, Align::Right))).collect();
    let mut t = Table::new(&header);
    for f in figures {
        let cells = words.iter().map(|(_, _, get)| get(f));
        t.row(cells.chain(numbers.iter().map(|(_, get)| get(f))));
    }
    t
}

fn text(value: &Option<String>) -> String {
    value.clone().unwrap_or_else(|| "-".into())
}

fn count(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |v| grouped(v.round() as u64))
}

/// Formats byte-seconds with a unit; `0` only for exactly zero.
fn byte_seconds(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(0.0) => "0".into(),
        Some(v) if v >= 1e9 => format!("{} GB s", short(v / 1e9)),
        Some(v) if v >= 1e6 => format!("{} MB s", short(v / 1e6)),
        Some(v) if v >= 1e3 => format!("{} kB s", short(v / 1e3)),
        Some(v) => format!("{} B s", short(v)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_figure_has_the_documented_keys_in_order() {
        let f = Figure { workload: "iozone".into(), test: "read".into(), ..Figure::default() };
        let at: Vec<_> = [
            "workload",
            "test",
            "proto",
            "provider",
            "design",
            "registration",
            "server_registration",
            "threads",
            "client_hosts",
            "no_halt",
            "record",
            "mb_per_s",
            "ops_per_s",
            "p50_us",
            "p99_us",
            "client_cpu_s_per_gb",
            "server_cpu_s_per_gb",
            "client_cpu_us_per_op",
            "server_cpu_us_per_op",
            "client_cpu_percent",
            "server_cpu_percent",
            "client_registrations",
            "server_registrations",
            "client_exposed_byte_s",
            "server_exposed_byte_s",
            "accelerator_percent",
        ]
        .iter()
        .map(|k| f.json().find(&format!("\"{k}\":")).unwrap_or_else(|| panic!("no {k}")))
        .collect();
        assert!(at.is_sorted());
    }

    #[test]
    fn medians_skip_missing_values() {
        let run = |mb, cpu| Figure { mb_per_s: Some(mb), server_cpu_s_per_gb: cpu, ..Figure::default() };
        let m = Figure::median(&[run(1.0, None), run(3.0, Some(0.5)), run(2.0, None)]).unwrap();
        assert_eq!((m.mb_per_s, m.server_cpu_s_per_gb, m.p50_us), (Some(2.0), Some(0.5), None));
    }

    #[test]
    fn the_cost_table_omits_equal_parameters() {
        let f = |threads, exposed| Figure {
            test: "read".into(),
            design: Some("read-write".into()),
            threads,
            record: 131_072,
            client_exposed_byte_s: Some(exposed),
            ..Figure::default()
        };
        let text = costs(&[f(1, 0.0), f(2, 2_500_000.0)]).to_string();
        assert!(text.contains("threads") && !text.contains("design"), "{text}");
        let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|l| l.split_whitespace().collect()).collect();
        let (client, server) = ("client exposed", "server exposed");
        assert!(text.contains(client) && text.contains(server), "{text}");
        assert_eq!(rows[0], ["1", "128", "KiB", "read", "-", "-", "-", "-", "-", "0", "-"]);
        assert_eq!(rows[1], ["2", "128", "KiB", "read", "-", "-", "-", "-", "-", "2.50", "MB", "s", "-"]);
    }
}
