//! The effect of changed parameters on the rules.

use millrace_bench::BenchError;

use crate::{
    Claim, Column, Setting,
    calibration::{PARAMETERS, Values, calibrates},
    column::column,
    pairs::in_pairs,
    rule::RuleResult,
    search::{self, Found},
};

/// How a parameter was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variation {
    /// To 80 % of its value.
    Less,
    /// To 120 % of its value.
    More,
    /// To the smallest value: without the mechanism.
    Off,
    /// To the value with which the simulation has the alternative figure.
    Alternative,
}

/// A change of a parameter, and its effect on the rules that count.
pub struct Change {
    /// The index of the parameter in [`PARAMETERS`].
    pub parameter: usize,
    /// How it was changed.
    pub variation: Variation,
    /// Its value.
    pub value: f64,
    /// The rules whose value differs.
    pub rules: Vec<Moved>,
}

/// A rule whose value changes with a parameter.
pub struct Moved {
    /// The claim.
    pub claim: &'static str,
    /// The rule.
    pub what: &'static str,
    /// The values of the rule with the calibrated parameter and with the changed one.
    pub values: (Option<f64>, Option<f64>),
    /// Whether it holds with each.
    pub holds: (bool, bool),
}

fn moved(claim: &Claim, before: &Column, after: &Column) -> Vec<Moved> {
    let pairs = before.results.iter().zip(&after.results);
    let counted = pairs.filter(|(a, b)| calibrates(claim.id, a.rule.what).is_none() && a.ours != b.ours);
    let one = |(a, b): (&RuleResult, &RuleResult)| Moved {
        claim: claim.id,
        what: a.rule.what,
        values: (a.ours, b.ours),
        holds: (a.holds(), b.holds()),
    };
    counted.map(one).collect()
}

/// The rules of `claims` that change when a parameter changes by 20 %, has its smallest value, or is calibrated against
/// its alternative figure. `columns` are the calibrated results; `seen` is called with the name of a parameter
/// after each change.
///
/// # Errors
/// When an experiment that calibrates a parameter fails.
pub(crate) fn sensitivity(
    (claims, columns): (&[Claim], &[Column]),
    (values, found): (&Values, &[Found]),
    setting: Setting,
    seen: impl Fn(&'static str) + Sync,
) -> Result<Vec<Change>, BenchError> {
    let changes = in_pairs(&variations(found), |(n, variation, factor)| {
        let p = &PARAMETERS[*n];
        let value = match (variation, factor) {
            (_, Some(factor)) => Some(values.get(*n) * factor),
            (Variation::Off, None) => Some(p.range.0),
            _ => search::alternative(*n, values, setting)?.map(|found| found.value),
        };
        let Some(value) = value else { return Ok(None) };
        let mut change = Change { parameter: *n, variation: *variation, value, rules: Vec::new() };
        // A parameter that keeps its value changes nothing.
        if value != values.get(*n) {
            let setting = Setting { calibration: Some(values.with(*n, value)), ..setting };
            for (claim, before) in claims.iter().zip(columns) {
                if claim.testbeds.contains(&p.testbed) {
                    change.rules.extend(moved(claim, before, &column(claim, setting)));
                }
            }
        }
        seen(p.name);
        Ok::<_, BenchError>(Some(change))
    });
    Ok(changes.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// The changes of each parameter, with the factor of its value if there is one.
fn variations(found: &[Found]) -> Vec<(usize, Variation, Option<f64>)> {
    let of = |found: &Found| {
        let n = found.parameter;
        [
            (n, Variation::Less, Some(0.8)),
            (n, Variation::More, Some(1.2)),
            (n, Variation::Off, None),
            (n, Variation::Alternative, None),
        ]
    };
    found.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Curves, Verdict};

    #[test]
    fn rules_that_use_a_calibration_figure_are_not_listed() {
        let (id, what) = PARAMETERS[0].rules[0];
        let claim = crate::claims::ALL.into_iter().find(|c| c.id == id).unwrap();
        let used = *claim.rules.iter().find(|r| r.what == what).unwrap();
        let other = *claim.rules.iter().find(|r| calibrates(id, r.what).is_none()).unwrap();
        let column = |ours| Column {
            curves: Curves::default(),
            results: vec![RuleResult { rule: used, ours }, RuleResult { rule: other, ours }],
            verdict: Verdict::Fails,
            why: String::new(),
        };
        let moved_between = |a, b| moved(&claim, &column(Some(a)), &column(Some(b)));
        let moved = moved_between(other.band.least - 0.1, other.band.least);
        assert_eq!(moved.len(), 1);
        assert_eq!((moved[0].what, moved[0].holds), (other.what, (false, true)));
        assert!(moved_between(1.0, 1.0).is_empty());
    }
}
