//! The table and its JSON form.

use millrace_bench::stats::median;
use millrace_program::{
    table::{Align, Table},
    units::short,
};
use serde_json::{Value, json};

use super::{
    super::{
        report::{number, of, runs, spread},
        testbed::Sample,
        wire::Limits,
    },
    load::Row,
    testbed::Subject,
};

/// All measurements.
pub(super) struct Report {
    pub(super) rows: Vec<Measured>,
}

/// The runs of one row.
pub(super) struct Measured {
    pub(super) row: Row,
    reference: Vec<Sample>,
    millrace: Vec<Sample>,
}

impl Measured {
    /// Adds one run.
    pub(super) fn add(&mut self, subject: Subject, sample: Sample) {
        if subject == self.row.millrace() {
            self.millrace.push(sample);
        } else {
            self.reference.push(sample);
        }
    }

    fn limit(&self, limits: &[Limits]) -> Option<f64> {
        let limit = self.row.limit()?;
        median(limits.iter().map(|l| l.get(limit)))
    }

    /// Millrace's median divided by that of the other target.
    fn ratio(&self, get: fn(&Sample) -> f64) -> f64 {
        of(&self.millrace, get) / of(&self.reference, get)
    }
}

impl Report {
    /// An empty report.
    pub(super) fn new(rows: Vec<Row>) -> Self {
        let empty = |row| Measured { row, reference: Vec::new(), millrace: Vec::new() };
        Self { rows: rows.into_iter().map(empty).collect() }
    }

    /// One JSON object for each row.
    pub(super) fn json(&self, limits: &[Limits]) -> Vec<Value> {
        let line = |m: &Measured| {
            json!({
                "row": m.row.name(),
                "unit": if m.row.is_bulk() { "MB/s, s/GB" } else { "op/s, s/op" },
                "wire": m.limit(limits),
                "ratio": m.ratio(|s| s.rate),
                "cpu_ratio": m.ratio(|s| s.server),
                "reference": m.row.reference().to_string(),
                "reference_runs": runs(&m.reference),
                "millrace_runs": runs(&m.millrace),
            })
        };
        self.rows.iter().map(line).collect()
    }

    /// The table.
    pub(super) fn table(&self, limits: &[Limits]) -> String {
        let right = |name| (name, Align::Right);
        let mut table = Table::new(&[
            ("initiator/over/load", Align::Left),
            ("unit", Align::Left),
            right("bare TCP"),
            ("other", Align::Left),
            right("other"),
            right("millrace"),
            right("ratio"),
            ("CPU", Align::Left),
            right("other"),
            right("millrace"),
            right("ratio"),
            right("other+initiator"),
            right("millrace+initiator"),
        ]);
        for m in &self.rows {
            let (unit, cpu_unit, scale) =
                if m.row.is_bulk() { ("MB/s", "s/GB", 1.0) } else { ("op/s", "us/op", 1e6) };
            let cpu = |samples: &[Sample], get| short(of(samples, get) * scale);
            table.row([
                m.row.name(),
                unit.into(),
                m.limit(limits).map_or_else(|| "-".into(), number),
                m.row.reference().to_string(),
                spread(&m.reference),
                spread(&m.millrace),
                short(m.ratio(|s| s.rate)),
                cpu_unit.into(),
                cpu(&m.reference, |s| s.server),
                cpu(&m.millrace, |s| s.server),
                short(m.ratio(|s| s.server)),
                cpu(&m.reference, |s| s.both),
                cpu(&m.millrace, |s| s.both),
            ]);
        }
        table.to_string()
    }
}
