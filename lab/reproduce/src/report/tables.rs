//! The tables of the calibration, for the page and for documents.

use super::{changed_verdicts, parameter_value, variation};
use crate::{Change, Found, Moved, Results, calibration::PARAMETERS, causes::Tested, rule::number};

/// A rule whose value changes by more than this part is listed.
const FAR: f64 = 0.1;

/// A table.
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// The table in Markdown, without its title.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| {
            format!("| {} |\n", cells.map(|c| c.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
        };
        let rows: String = self.rows.iter().map(|row| line(&mut row.iter().cloned())).collect();
        let head = line(&mut self.columns.iter().map(|c| (*c).to_owned()));
        format!("{head}|{}\n{rows}", "---|".repeat(self.columns.len()))
    }
}

/// The parameters, their sensitivity, and the experiments about causes; without those that have no rows.
pub(super) fn all(results: &Results) -> Vec<Table> {
    let tables = [parameters(&results.found), sensitivity(&results.sensitivity), causes(&results.causes)];
    tables.into_iter().filter(|t| !t.rows.is_empty()).collect()
}

fn parameters(found: &[Found]) -> Table {
    let row = |found: &Found| {
        let (p, figure) = (&PARAMETERS[found.parameter], found.figure);
        let end = if found.reached() { "" } else { ", not reached" };
        vec![
            p.testbed.name().to_owned(),
            p.mechanism.to_owned(),
            p.name.to_owned(),
            parameter_value(found),
            format!("{} to {}", p.range.0, p.range.1),
            format!("{} {} ({})", figure.value, figure.what, figure.source),
            format!("{}{end}", number(found.simulated)),
        ]
    };
    Table {
        title: "Parameters",
        columns: &["testbed", "mechanism", "parameter", "value", "range", "figure of the paper", "simulated"],
        rows: found.iter().map(row).collect(),
    }
}

fn sensitivity(changes: &[Change]) -> Table {
    let row = |change: &Change| {
        let p = &PARAMETERS[change.parameter];
        vec![
            p.testbed.name().to_owned(),
            p.name.to_owned(),
            variation(change).to_owned(),
            format!("{:.0} {}", change.value, p.unit),
            changed_verdicts(change),
            far(&change.rules),
        ]
    };
    Table {
        title: "Sensitivity",
        columns: &[
            "testbed",
            "parameter",
            "change",
            "value",
            "verdicts that change",
            "other values that change by more than 10 %",
        ],
        rows: changes.iter().map(row).collect(),
    }
}

/// The rules that keep their verdict and change their value by more than [`FAR`].
fn far(rules: &[Moved]) -> String {
    let far = rules.iter().filter(|m| match m.values {
        (Some(a), Some(b)) => m.holds.0 == m.holds.1 && (b / a - 1.0).abs() > FAR,
        _ => false,
    });
    let text = far.map(super::values).collect::<Vec<_>>().join("; ");
    if text.is_empty() { "none".to_owned() } else { text }
}

fn causes(tested: &[Tested]) -> Table {
    let rows = tested.iter().flat_map(|t| {
        t.rules.iter().map(|m| {
            vec![
                t.cause.claim.to_owned(),
                m.what.to_owned(),
                t.cause.cause.to_owned(),
                t.cause.experiment.to_owned(),
                m.band.to_string(),
                super::figure(m.values.0),
                super::figure(m.values.1),
                m.outcome().word().to_owned(),
            ]
        })
    });
    Table {
        title: "Causes of failures, tested by experiments",
        columns: &[
            "claim",
            "rule",
            "supposed cause",
            "experiment",
            "band",
            "calibrated",
            "in the experiment",
            "the cause is",
        ],
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_row_and_escapes_separators() {
        let table = Table { title: "t", columns: &["a", "b"], rows: vec![vec!["1".into(), "x|y".into()]] };
        assert_eq!(table.markdown(), "| a | b |\n|---|---|\n| 1 | x\\|y |\n");
    }
}
