//! The results of a claim's experiment.

use crate::{Claim, Curves, Setting, calibration::calibrates, rule::RuleResult};

/// The result of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every rule holds that counts.
    Holds,
    /// A rule does not hold, or the experiment failed.
    Fails,
}

impl Verdict {
    /// The name of the verdict.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
        }
    }
}

/// The results of a claim's experiment.
#[derive(Clone)]
pub struct Column {
    /// The results of the experiment.
    pub curves: Curves,
    /// Its rules with their values; empty if the experiment failed.
    pub results: Vec<RuleResult>,
    /// The verdict, by the rules that count.
    pub verdict: Verdict,
    /// The reason why the claim does not hold, or empty.
    pub why: String,
}

/// A claim with its results.
#[derive(Clone)]
pub struct Outcome {
    /// The claim.
    pub claim: Claim,
    /// The results with raw numbers only.
    pub raw: Column,
    /// The results with calibrated parameters, if they were requested. Rules that use a calibration figure
    /// ([`calibrates`]) do not count.
    pub calibrated: Option<Column>,
}

/// Runs the experiment of a claim.
pub(crate) fn column(claim: &Claim, setting: Setting) -> Column {
    match (claim.experiment)(setting) {
        Err(e) => {
            let why = format!("the experiment failed: {e}");
            Column { curves: Curves::default(), results: Vec::new(), verdict: Verdict::Fails, why }
        }
        Ok(curves) => {
            let results: Vec<_> = claim.rules.iter().map(|r| r.evaluate(&curves)).collect();
            let why = why(claim, &results, setting.calibration.is_some());
            let verdict = if why.is_empty() { Verdict::Holds } else { Verdict::Fails };
            Column { curves, results, verdict, why }
        }
    }
}

/// The rules that do not hold, with the known reasons; empty if all hold that count.
fn why(claim: &Claim, results: &[RuleResult], calibrated: bool) -> String {
    let counts = |j: &&RuleResult| !calibrated || calibrates(claim.id, j.rule.what).is_none();
    let failed: Vec<_> = results.iter().filter(counts).filter(|j| !j.holds()).collect();
    if failed.is_empty() {
        return String::new();
    }
    let each = |j: &&RuleResult| format!("{} is {} instead of {}", j.rule.what, j.ours(), j.rule.band);
    let mut text = failed.iter().map(each).collect::<Vec<_>>().join("; ") + ".";
    let reasons = if calibrated { claim.calibrated_gaps } else { claim.model_gaps };
    if !reasons.is_empty() {
        text.push(' ');
        text.push_str(reasons);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::PARAMETERS;

    #[test]
    fn a_rule_that_uses_a_calibration_figure_does_not_count() {
        let (id, what) = PARAMETERS[0].rules[0];
        let base = crate::claims::ALL.into_iter().find(|c| c.id == id).unwrap();
        let rule = *base.rules.iter().find(|r| r.what == what).unwrap();
        let claim = Claim { calibrated_gaps: "", ..base };
        let results = [rule.evaluate(&Curves::default())];
        assert!(!results[0].holds());
        assert!(why(&claim, &results, false).contains(what));
        assert_eq!(why(&claim, &results, true), "");
    }
}
