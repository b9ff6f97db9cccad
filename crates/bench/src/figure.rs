//! One measured line, the same for all benches.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{
    BenchError,
    breakdown::Breakdown,
    stats::median,
    table::{Align, Table},
    units::{ByteSize, grouped, short},
};

/// One measured line. `None` prints as `-` and is `null` in JSON: not measured, or without meaning for this test.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figure {
    /// The program: `raw`, `iozone`.
    pub workload: String,
    /// The test in it: `stream`, `write`, `random-read`.
    pub test: String,
    /// `rdma` or `tcp`.
    pub proto: String,
    /// The RDMA provider.
    pub provider: Option<String>,
    /// How bulk data moves: `read-write`.
    pub design: Option<String>,
    /// The registration strategy: `dynamic`, `cache`; the client's, where both ends have one.
    pub registration: Option<String>,
    /// The server's registration strategy.
    pub server_registration: Option<String>,
    /// Threads, each with a connection of its own, unless its bench says otherwise.
    pub threads: usize,
    /// Simulated client hosts; not there where something was measured.
    pub client_hosts: Option<usize>,
    /// Bytes of one operation.
    pub record: u64,
    /// Operations in flight per thread.
    pub outstanding: usize,
    /// 10^6 bytes per second, all threads together.
    pub mb_per_s: Option<f64>,
    /// Operations per second, all threads together.
    pub ops_per_s: Option<f64>,
    /// Median latency of an operation, in microseconds.
    pub p50_us: Option<f64>,
    /// The latency, in microseconds, that 99 of 100 operations do not exceed.
    pub p99_us: Option<f64>,
    /// Processor seconds of the client (raw: the sender) per 10^9 bytes.
    pub client_cpu_s_per_gb: Option<f64>,
    /// Processor seconds of the server (raw: the receiver) per 10^9 bytes.
    pub server_cpu_s_per_gb: Option<f64>,
    /// Processor microseconds of the server per operation.
    pub server_cpu_us_per_op: Option<f64>,
    /// Processor time of the client (simulated: of all client hosts together) over the time that it took: 100 is one
    /// core.
    pub client_cpu_percent: Option<f64>,
    /// Processor time of the server over the time that it took: 100 is one core.
    pub server_cpu_percent: Option<f64>,
    /// Times that the client registered memory.
    pub client_registrations: Option<f64>,
    /// Times that the server registered memory.
    pub server_registrations: Option<f64>,
    /// Bytes of the client that the server could reach, times for how long, in seconds.
    pub client_exposed_byte_s: Option<f64>,
    /// Bytes of the server that clients could reach, times for how long, in seconds.
    pub server_exposed_byte_s: Option<f64>,
    /// Where the time of an operation went.
    #[serde(skip)]
    pub breakdown: Option<Breakdown>,
}

impl Figure {
    /// The medians of `runs`, which measured the same thing, and the breakdown over all of them; `None` of none.
    pub fn median(runs: &[Self]) -> Option<Self> {
        let mid = |get: fn(&Self) -> Option<f64>| median(runs.iter().filter_map(get));
        let mut out = runs.first()?.clone();
        out.mb_per_s = mid(|f| f.mb_per_s);
        out.ops_per_s = mid(|f| f.ops_per_s);
        out.p50_us = mid(|f| f.p50_us);
        out.p99_us = mid(|f| f.p99_us);
        out.client_cpu_s_per_gb = mid(|f| f.client_cpu_s_per_gb);
        out.server_cpu_s_per_gb = mid(|f| f.server_cpu_s_per_gb);
        out.server_cpu_us_per_op = mid(|f| f.server_cpu_us_per_op);
        out.client_cpu_percent = mid(|f| f.client_cpu_percent);
        out.server_cpu_percent = mid(|f| f.server_cpu_percent);
        out.client_registrations = mid(|f| f.client_registrations);
        out.server_registrations = mid(|f| f.server_registrations);
        out.client_exposed_byte_s = mid(|f| f.client_exposed_byte_s);
        out.server_exposed_byte_s = mid(|f| f.server_exposed_byte_s);
        out.breakdown = Breakdown::of_all(runs.iter().filter_map(|f| f.breakdown.as_ref()));
        Some(out)
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A file of figures as comma-separated values: a line of names, which are the JSON keys, and a line for each figure;
/// what was not measured is empty.
pub struct Csv {
    path: PathBuf,
    out: csv::Writer<File>,
}

impl Csv {
    /// Makes the file, or replaces what it holds.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(path: &Path) -> Result<Self, BenchError> {
        let out = File::create(path).map_err(BenchError::file("create", path))?;
        Ok(Self { path: path.to_owned(), out: csv::Writer::from_writer(out) })
    }

    /// Adds a line, which is in the file when this returns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, figure: &Figure) -> Result<(), BenchError> {
        self.out.serialize(figure).map_err(BenchError::file("write", &self.path))?;
        self.out.flush().map_err(BenchError::file("write", &self.path))
    }
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), short)
}

/// All of `figures` as a table; `ends` names the two ends of the connection ("client" and "server").
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
            cell(f.server_cpu_us_per_op),
        ]);
    }
    t
}

/// What a column shows of a figure.
type Shown = fn(&Figure) -> String;

/// What the designs and strategies of `figures` cost: processor time, registrations, exposed memory. What all figures
/// have in common is left out, but for the test and the record.
pub fn costs(figures: &[Figure]) -> Table {
    let varies =
        |get: Shown| figures.first().is_some_and(|first| figures.iter().any(|f| get(f) != get(first)));
    let mut words: Vec<(&str, Align, Shown)> = vec![
        ("design", Align::Left, |f| text(&f.design)),
        ("registration", Align::Left, |f| text(&f.registration)),
        ("server's", Align::Left, |f| text(&f.server_registration)),
        ("threads", Align::Right, |f| f.threads.to_string()),
    ];
    words.retain(|(_, _, get)| varies(*get));
    words.push(("record", Align::Right, |f| ByteSize(f.record).human().to_string()));
    words.push(("test", Align::Left, |f| f.test.clone()));
    let numbers: [(&str, Shown); 7] = [
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

/// Bytes times seconds, with the unit; `0` only for none at all.
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
    fn the_json_of_a_figure_has_the_agreed_keys_in_order() {
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
            "record",
            "mb_per_s",
            "ops_per_s",
            "p50_us",
            "p99_us",
            "client_cpu_s_per_gb",
            "server_cpu_s_per_gb",
            "server_cpu_us_per_op",
            "client_cpu_percent",
            "server_cpu_percent",
            "client_registrations",
            "server_registrations",
            "client_exposed_byte_s",
            "server_exposed_byte_s",
        ]
        .iter()
        .map(|k| f.json().find(&format!("\"{k}\":")).unwrap_or_else(|| panic!("no {k}")))
        .collect();
        assert!(at.is_sorted());
    }

    #[test]
    fn medians_skip_what_was_not_measured() {
        let run = |mb, cpu| Figure { mb_per_s: Some(mb), server_cpu_s_per_gb: cpu, ..Figure::default() };
        let m = Figure::median(&[run(1.0, None), run(3.0, Some(0.5)), run(2.0, None)]).unwrap();
        assert_eq!((m.mb_per_s, m.server_cpu_s_per_gb, m.p50_us), (Some(2.0), Some(0.5), None));
    }

    #[test]
    fn costs_leave_out_what_all_have_in_common() {
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
