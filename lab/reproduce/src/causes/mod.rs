//! Experiments about the causes of rules that fail when calibrated: one mechanism is switched off or changed, and
//! everything else stays. Their results are not counted.

mod table;

use crate::{
    Claim, Column, Modification, Setting,
    column::column,
    pairs::in_pairs,
    rule::{Band, RuleResult},
};

pub use table::CAUSES;

/// A supposed cause of failures, and the experiment that tests it.
#[derive(Debug, Clone, Copy)]
pub struct Cause {
    /// The claim.
    pub claim: &'static str,
    /// The rules that fail, by [`what`](crate::rule::Rule::what).
    pub rules: &'static [&'static str],
    /// The supposed cause.
    pub cause: &'static str,
    /// What the experiment changes.
    pub experiment: &'static str,
    /// The change.
    pub modification: Modification,
}

/// A cause with the results of its experiment.
pub struct Tested {
    /// The cause.
    pub cause: &'static Cause,
    /// Its rules.
    pub rules: Vec<Compared>,
}

/// A rule in an experiment about a cause.
pub struct Compared {
    /// The rule.
    pub what: &'static str,
    /// Its band.
    pub band: Band,
    /// Its values in the calibrated column and in the experiment.
    pub values: (Option<f64>, Option<f64>),
}

/// The outcome of an experiment for a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The rule holds without the cause.
    Confirmed,
    /// The value is closer to the band, by at least a tenth of the distance, and not in it.
    InPart,
    /// Neither.
    Refuted,
}

impl Effect {
    /// The name of the outcome.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::InPart => "one of several",
            Self::Refuted => "refuted",
        }
    }
}

impl Compared {
    /// The outcome.
    pub fn outcome(&self) -> Effect {
        let distance = |v: f64| (self.band.least - v).max(v - self.band.most).max(0.0);
        match self.values {
            (_, Some(after)) if self.band.has(after) => Effect::Confirmed,
            (Some(before), Some(after)) if distance(after) <= 0.9 * distance(before) => Effect::InPart,
            _ => Effect::Refuted,
        }
    }
}

/// Runs the experiments about `claims`, whose calibrated results are `columns`. `setting` is that of the
/// calibrated column; `seen` is called with the name of the claim after each experiment.
pub(crate) fn test(
    (claims, columns): (&[Claim], &[Column]),
    setting: Setting,
    seen: impl Fn(&'static str) + Sync,
) -> Vec<Tested> {
    let tested = in_pairs(CAUSES, |cause| {
        let (claim, before) = claims.iter().zip(columns).find(|(c, _)| c.id == cause.claim)?;
        let after = column(claim, Setting { modification: Some(cause.modification), ..setting });
        seen(cause.claim);
        Some(Tested { cause, rules: compared(cause, before, &after) })
    });
    tested.into_iter().flatten().collect()
}

fn compared(cause: &Cause, before: &Column, after: &Column) -> Vec<Compared> {
    let value = |column: &Column, what: &str| {
        column.results.iter().find(|r| r.rule.what == what).and_then(|r| r.ours)
    };
    let of = |r: &RuleResult| Compared {
        what: r.rule.what,
        band: r.rule.band,
        values: (r.ours, value(after, r.rule.what)),
    };
    before.results.iter().filter(|r| cause.rules.contains(&r.rule.what)).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{calibration::calibrates, claims};

    #[test]
    fn causes_are_those_of_rules_that_count() {
        for cause in CAUSES {
            let claim = claims::ALL.iter().find(|c| c.id == cause.claim).unwrap();
            assert!(!cause.rules.is_empty() && !cause.cause.is_empty() && !cause.experiment.is_empty());
            for what in cause.rules {
                assert!(claim.rules.iter().any(|r| r.what == *what), "{} has no rule {what:?}", claim.id);
                assert!(calibrates(claim.id, what).is_none(), "{what}");
            }
        }
    }

    #[test]
    fn the_outcome_is_the_distance_to_the_band() {
        let band = Band { least: 2.0, most: 3.0 };
        let outcome = |before, after| Compared { what: "", band, values: (Some(before), after) }.outcome();
        assert_eq!(outcome(1.0, Some(2.0)), Effect::Confirmed);
        assert_eq!(outcome(1.0, Some(1.2)), Effect::InPart);
        assert_eq!(outcome(5.0, Some(1.5)), Effect::InPart);
        assert_eq!(outcome(1.0, Some(1.05)), Effect::Refuted);
        assert_eq!(outcome(1.0, Some(0.5)), Effect::Refuted);
        assert_eq!(outcome(1.0, None), Effect::Refuted);
    }
}
