//! The execution of claims.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use parking_lot::Mutex;

use crate::{Claim, Curves, Setting, rule::RuleResult};

/// Number of claims that run concurrently: an experiment is one thread, and each keeps the files of its
/// server in memory.
const CONCURRENT: usize = 2;

/// The result of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every rule holds.
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

/// A claim with its result.
#[derive(Clone)]
pub struct Outcome {
    /// The claim.
    pub claim: Claim,
    /// The results of the experiment.
    pub curves: Curves,
    /// Its rules with their values.
    pub results: Vec<RuleResult>,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason why the claim does not hold, or empty.
    pub why: String,
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A claim has started.
    Began(&'static str),
    /// A claim has ended.
    Ended(&'static str, Verdict),
}

/// Claims to run.
pub struct Reproduction {
    /// The claims.
    pub claims: Vec<Claim>,
    /// The conditions.
    pub setting: Setting,
}

impl Reproduction {
    /// Runs all claims, two at a time, and returns their outcomes in order. A claim that fails, or whose
    /// experiment fails, does not stop the others.
    pub fn run(&self, seen: impl Fn(Progress) + Sync) -> Vec<Outcome> {
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        let work = || {
            while let Some((n, claim)) = {
                let n = next.fetch_add(1, Relaxed);
                self.claims.get(n).map(|c| (n, c))
            } {
                seen(Progress::Began(claim.id));
                let outcome = one(claim, self.setting);
                seen(Progress::Ended(claim.id, outcome.verdict));
                done.lock().push((n, outcome));
            }
        };
        thread::scope(|scope| {
            for _ in 0..CONCURRENT {
                scope.spawn(work);
            }
        });
        let mut done = done.into_inner();
        done.sort_by_key(|(n, _)| *n);
        done.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

fn one(claim: &Claim, setting: Setting) -> Outcome {
    let outcome = |curves, results, verdict, why| Outcome { claim: *claim, curves, results, verdict, why };
    match (claim.experiment)(setting) {
        Err(e) => {
            let why = format!("the experiment failed: {e}");
            outcome(Curves::default(), Vec::new(), Verdict::Fails, why)
        }
        Ok(curves) => {
            let results: Vec<_> = claim.rules.iter().map(|r| r.evaluate(&curves)).collect();
            let why = why(claim, &results);
            let verdict = if why.is_empty() { Verdict::Holds } else { Verdict::Fails };
            outcome(curves, results, verdict, why)
        }
    }
}

/// The rules that do not hold, with the known reasons; empty if all hold.
fn why(claim: &Claim, results: &[RuleResult]) -> String {
    let failed: Vec<_> = results.iter().filter(|j| !j.holds()).collect();
    if failed.is_empty() {
        return String::new();
    }
    let each = |j: &&RuleResult| format!("{} is {} instead of {}", j.rule.what, j.ours(), j.rule.band);
    let mut text = failed.iter().map(each).collect::<Vec<_>>().join("; ") + ".";
    if !claim.model_gaps.is_empty() {
        text.push(' ');
        text.push_str(claim.model_gaps);
    }
    text
}

#[cfg(test)]
mod tests {
    use millrace_bench::BenchError;

    use super::*;
    use crate::rule::{Band, Measure, Rule};

    fn claim(experiment: fn(Setting) -> Result<Curves, BenchError>) -> Claim {
        const RULE: Rule = Rule {
            what: "a at 1",
            measure: Measure::At("a", 1.0),
            paper: "4",
            band: Band { least: 2.0, most: 8.0 },
        };
        let base = crate::claims::ALL[0];
        Claim { rules: &[RULE], experiment, model_gaps: "Disks are missing.", ..base }
    }

    fn gives(value: f64) -> Curves {
        let mut c = Curves::default();
        c.put("a", 1.0, value);
        c
    }

    #[test]
    fn the_rules_of_a_claim_decide_it_and_give_the_reason() {
        let claims = vec![
            claim(|_| Ok(gives(5.0))),
            claim(|s| Ok(gives(s.seed as f64))),
            claim(|_| Err(BenchError::Client("no server".into()))),
            claim(|_| Ok(Curves::default())),
        ];
        let seen = Mutex::new(Vec::new());
        let run = Reproduction { claims, setting: Setting { seed: 9, small: true } };
        let outcomes = run.run(|p| seen.lock().push(p));
        let verdicts: Vec<_> = outcomes.iter().map(|o| o.verdict).collect();
        use Verdict::{Fails, Holds};
        assert_eq!(verdicts, [Holds, Fails, Fails, Fails]);
        assert_eq!(outcomes[0].why, "");
        assert_eq!(outcomes[1].why, "a at 1 is 9 instead of 2 to 8. Disks are missing.");
        assert!(outcomes[2].why.contains("no server") && outcomes[3].why.contains("no value"));
        assert_eq!(seen.lock().len(), 8);
    }
}
