//! One measured line, the same for all benches.

use serde::Serialize;

use crate::{
    stats::median,
    table::{Align, Table},
    units::{Size, grouped, short},
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
    /// The registration strategy: `dynamic`, `cache`.
    pub registration: Option<String>,
    /// Threads, each with a connection of its own.
    pub threads: usize,
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
}

impl Figure {
    /// The medians of `runs`, which measured the same thing; `None` of none.
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
        Some(out)
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
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
            Size(f.record).to_string(),
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
            "threads",
            "record",
            "mb_per_s",
            "ops_per_s",
            "p50_us",
            "p99_us",
            "client_cpu_s_per_gb",
            "server_cpu_s_per_gb",
            "server_cpu_us_per_op",
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
}
