//! The last reports, for the graphs of `millrace top`.

use std::collections::VecDeque;

use super::Rates;

/// Figures of a report: calls, megabytes read and megabytes written per second, of all exports.
type Totals = [f64; 3];

/// The totals of the last reports.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Totals>);

impl History {
    /// Number of reports that are kept: columns of a graph on a very wide terminal.
    const KEPT: usize = 256;

    /// Appends a report.
    pub(crate) fn add(&mut self, rates: &Rates) {
        self.0.truncate(Self::KEPT - 1);
        self.0.push_front(rates.totals());
    }

    /// The last value of a figure, 0 without a report.
    pub(super) fn last(&self, figure: usize) -> f64 {
        self.values(figure).next().unwrap_or_default()
    }

    /// The values of a figure, the newest first.
    pub(super) fn values(&self, figure: usize) -> impl Iterator<Item = f64> {
        self.0.iter().filter_map(move |totals| totals.get(figure).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::Row;

    #[test]
    fn the_last_reports_are_kept_the_newest_first() {
        let mut history = History::default();
        assert_eq!(history.last(0), 0.0);
        for n in 0..1000 {
            let row = |read| Row {
                name: String::new(),
                ops: f64::from(n),
                read,
                written: Some(1.0),
                p50: None,
                p99: None,
            };
            history.add(&Rates { export: vec![row(Some(2.0)), row(None)], ..Rates::default() });
        }
        let values: Vec<_> = history.values(0).collect();
        assert_eq!((values.len(), values[0], values[255]), (256, 1998.0, 1488.0));
        assert_eq!((history.last(1), history.last(2)), (2.0, 2.0));
    }
}
