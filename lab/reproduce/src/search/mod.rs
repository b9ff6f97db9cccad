//! The search for the values of the parameters ([`calibration`](crate::calibration)), by bisection.
//!
//! `calibrate` simulates the experiment of each parameter's figure with different values, until the result
//! equals the figure of the paper or the range is searched. It returns the values, and a `Found` for each
//! parameter.

mod figures;

use millrace_bench::BenchError;

use self::figures::{Choice, simulated};
use crate::{
    Setting,
    calibration::{Figure, PARAMETERS, Testbed, Values, of_testbed},
};

/// The sequence of a testbed's parameters is repeated at most this number of times.
const PASSES: usize = 4;
/// A figure within this part of the paper's is reached.
const REACHED: f64 = 0.001;
/// A range is halved at most this number of times.
const HALVINGS: u32 = 12;

/// The result of a search for one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// The index of the parameter in [`PARAMETERS`].
    pub parameter: usize,
    /// The parameter's value, in the parameter's unit.
    pub value: f64,
    /// The simulated figure with this value, and the values of the other parameters.
    pub simulated: f64,
    /// The figure of the paper.
    pub figure: Figure,
}

impl Found {
    /// Whether the simulation has the paper's figure; otherwise the value is an end of the range.
    pub fn reached(&self) -> bool {
        (self.simulated / self.figure.value - 1.0).abs() <= 0.01
    }
}

/// Calibrates the parameters of a testbed in their order, and repeats the sequence until no value changes by
/// more than a part in a hundred. The other testbeds have no influence on it.
///
/// # Errors
/// When an experiment fails.
pub(crate) fn calibrate(testbed: Testbed, setting: Setting) -> Result<(Values, Vec<Found>), BenchError> {
    let mut values = Values::smallest();
    let mut found = Vec::new();
    for _ in 0..PASSES {
        let before = values;
        found.clear();
        for (n, p) in of_testbed(testbed) {
            let one = search(n, Choice::Point, p.point, &values, setting)?;
            values = values.with(n, one.value);
            found.push(one);
        }
        let near = |n: usize| (values.get(n) - before.get(n)).abs() <= 0.01 * values.get(n).abs();
        if found.len() == 1 || of_testbed(testbed).all(|(n, _)| near(n)) {
            break;
        }
    }
    // The figures with the final values.
    for one in &mut found {
        one.simulated = figure_with(one.parameter, Choice::Point, &values, setting)?;
    }
    Ok((values, found))
}

/// Calibrates one parameter against its alternative figure, with the other parameters as in `values`.
///
/// # Errors
/// When an experiment fails.
pub(crate) fn alternative(n: usize, values: &Values, setting: Setting) -> Result<Option<Found>, BenchError> {
    match PARAMETERS.get(n).and_then(|p| p.alternative) {
        Some(figure) => search(n, Choice::Alternative, figure, values, setting).map(Some),
        None => Ok(None),
    }
}

fn figure_with(n: usize, choice: Choice, values: &Values, setting: Setting) -> Result<f64, BenchError> {
    let p = &PARAMETERS[n];
    let setting = Setting { calibration: Some(*values), ..setting };
    simulated((p.testbed, p.name), choice, setting)?
        .ok_or_else(|| BenchError::Parameter(format!("{} has no simulated figure", p.name)))
}

fn search(
    n: usize,
    choice: Choice,
    figure: Figure,
    values: &Values,
    setting: Setting,
) -> Result<Found, BenchError> {
    let simulate = |value| figure_with(n, choice, &values.with(n, value), setting);
    let (value, simulated) = bisect(PARAMETERS[n].range, figure.value, simulate)?;
    Ok(Found { parameter: n, value, simulated, figure })
}

/// The value in `range` whose figure is `wanted`, or the end of the range that comes closest, with its figure. The
/// figure must be monotonic.
fn bisect(
    range: (f64, f64),
    wanted: f64,
    figure: impl Fn(f64) -> Result<f64, BenchError>,
) -> Result<(f64, f64), BenchError> {
    let (mut low, mut high) = ((range.0, figure(range.0)?), (range.1, figure(range.1)?));
    let rises = high.1 > low.1;
    let missing = |at: f64| (at - wanted).abs();
    if (low.1 - wanted) * (high.1 - wanted) > 0.0 {
        return Ok(if missing(low.1) <= missing(high.1) { low } else { high });
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low.0, high.0);
        let at = (middle, figure(middle)?);
        if missing(at.1) <= REACHED * wanted {
            return Ok(at);
        }
        if (at.1 < wanted) == rises { low = at } else { high = at }
    }
    Ok(if missing(low.1) <= missing(high.1) { low } else { high })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bisection_finds_the_value_of_a_rising_or_falling_figure() {
        for slope in [2.0, -2.0] {
            let (value, figure) =
                bisect((0.0, 100.0), 300.0 + slope * 33.0, |v| Ok(300.0 + slope * v)).unwrap();
            assert!((value - 33.0).abs() < 0.2 && (figure - 300.0 - slope * value).abs() < 1e-9, "{value}");
        }
    }

    #[test]
    fn the_closest_end_of_the_range_is_taken_if_no_value_has_the_figure() {
        let falling = |v: f64| Ok(100.0 - v);
        assert_eq!(bisect((0.0, 10.0), 200.0, falling).unwrap(), (0.0, 100.0));
        assert_eq!(bisect((0.0, 10.0), 50.0, falling).unwrap(), (10.0, 90.0));
    }

    #[test]
    fn every_figure_of_the_table_can_be_simulated() {
        let setting = Setting { calibration: Some(Values::smallest()), ..Setting::raw(1, true) };
        for p in PARAMETERS {
            for (choice, figure) in [(Choice::Point, Some(p.point)), (Choice::Alternative, p.alternative)] {
                let ours = simulated((p.testbed, p.name), choice, setting).unwrap();
                assert_eq!(ours.is_some(), figure.is_some(), "{} {choice:?}", p.name);
                assert!(ours.is_none_or(|v| v > 0.0), "{} {choice:?}", p.name);
            }
        }
    }
}
