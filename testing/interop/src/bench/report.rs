//! The table and its JSON form.

use std::fmt;

use millrace_bench::stats::median;
use millrace_program::{
    table::{Align, Table},
    units::{grouped, short},
};
use serde_json::{Value, json};

use super::{
    load::Row,
    testbed::{Sample, ServerKind},
    wire::Limits,
};

/// All measurements.
pub(super) struct Report {
    pub(super) limits: Vec<Limits>,
    pub(super) rows: Vec<Measured>,
}

/// The runs of one row.
pub(super) struct Measured {
    pub(super) row: Row,
    knfsd: Vec<Sample>,
    millrace: Vec<Sample>,
}

impl Measured {
    /// Adds one run.
    pub(super) fn add(&mut self, with: ServerKind, sample: Sample) {
        match with {
            ServerKind::Knfsd => self.knfsd.push(sample),
            ServerKind::Millrace => self.millrace.push(sample),
        }
    }

    fn limit(&self, limits: &[Limits]) -> Option<f64> {
        let limit = self.row.limit()?;
        median(limits.iter().map(|l| l.get(limit)))
    }
}

/// The median.
pub(super) fn of(samples: &[Sample], get: fn(&Sample) -> f64) -> f64 {
    median(samples.iter().map(get)).unwrap_or_default()
}

/// A rate, rounded.
pub(super) fn number(value: f64) -> String {
    if value < 1000.0 { short(value) } else { grouped(value.round() as u64) }
}

/// The median, with the minimum and the maximum.
pub(super) fn spread(samples: &[Sample]) -> String {
    let rates = || samples.iter().map(|s| s.rate);
    let (low, high) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
    format!("{} ({}-{})", number(of(samples, |s| s.rate)), number(low), number(high))
}

/// Every run.
pub(super) fn runs(samples: &[Sample]) -> Vec<Value> {
    let one = |s: &Sample| json!({"rate": s.rate, "server_cpu_s": s.server, "both_cpu_s": s.both});
    samples.iter().map(one).collect()
}

impl Report {
    /// An empty report.
    pub(super) fn new(rows: Vec<Row>) -> Self {
        let empty = |row| Measured { row, knfsd: Vec::new(), millrace: Vec::new() };
        Self { limits: Vec::new(), rows: rows.into_iter().map(empty).collect() }
    }

    /// One JSON object for each row.
    pub(super) fn json(&self) -> Vec<Value> {
        let line = |m: &Measured| {
            json!({
                "row": m.row.name(),
                "unit": if m.row.is_bulk() { "MB/s, s/GB" } else { "op/s, s/op" },
                "wire": m.limit(&self.limits),
                "ratio": of(&m.millrace, |s| s.rate) / of(&m.knfsd, |s| s.rate),
                "knfsd": runs(&m.knfsd),
                "millrace": runs(&m.millrace),
            })
        };
        self.rows.iter().map(line).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = |name| (name, Align::Right);
        let mut table = Table::new(&[
            ("client/over/load", Align::Left),
            ("unit", Align::Left),
            right("bare TCP"),
            right("knfsd"),
            right("millrace"),
            right("ratio"),
            ("CPU", Align::Left),
            right("knfsd"),
            right("millrace"),
            right("knfsd+client"),
            right("millrace+client"),
        ]);
        for m in &self.rows {
            let (unit, cpu_unit, scale) =
                if m.row.is_bulk() { ("MB/s", "s/GB", 1.0) } else { ("op/s", "us/op", 1e6) };
            let cpu = |samples: &[Sample], get| short(of(samples, get) * scale);
            table.row([
                m.row.name(),
                unit.into(),
                m.limit(&self.limits).map_or_else(|| "-".into(), number),
                spread(&m.knfsd),
                spread(&m.millrace),
                short(of(&m.millrace, |s| s.rate) / of(&m.knfsd, |s| s.rate)),
                cpu_unit.into(),
                cpu(&m.knfsd, |s| s.server),
                cpu(&m.millrace, |s| s.server),
                cpu(&m.knfsd, |s| s.both),
                cpu(&m.millrace, |s| s.both),
            ]);
        }
        write!(f, "{table}")
    }
}
