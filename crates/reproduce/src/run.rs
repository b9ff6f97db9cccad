//! Running claims.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use parking_lot::Mutex;

use crate::{Claim, Curves, Experiment, Setting, rule::Judged};

/// Claims that run at the same time: an experiment is one thread, and each holds the files that it serves in memory.
const AT_ONCE: usize = 2;

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every rule holds.
    Holds,
    /// A rule does not hold, or the experiment did not come to its end.
    Fails,
    /// There is no experiment.
    Open,
}

impl Verdict {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Open => "open",
        }
    }
}

/// A claim, and what became of it.
#[derive(Clone)]
pub struct Outcome {
    /// The claim.
    pub claim: Claim,
    /// What the experiment gave.
    pub curves: Curves,
    /// Its rules, judged.
    pub judged: Vec<Judged>,
    /// Whether it holds.
    pub verdict: Verdict,
    /// Why it does not; empty where it does.
    pub why: String,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A claim is being run.
    Began(&'static str),
    /// A claim is done.
    Ended(&'static str, Verdict),
}

/// Claims to run.
pub struct Reproduction {
    /// The claims.
    pub claims: Vec<Claim>,
    /// Under which conditions.
    pub setting: Setting,
}

impl Reproduction {
    /// Runs all claims, two at a time, and gives what became of them, in their order. A claim that fails, or whose
    /// experiment does, stops no other.
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
            for _ in 0..AT_ONCE {
                scope.spawn(work);
            }
        });
        let mut done = done.into_inner();
        done.sort_by_key(|(n, _)| *n);
        done.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

fn one(claim: &Claim, setting: Setting) -> Outcome {
    let outcome = |curves, judged, verdict, why| Outcome { claim: *claim, curves, judged, verdict, why };
    match claim.experiment {
        Experiment::Open(why) => outcome(Curves::default(), Vec::new(), Verdict::Open, why.to_owned()),
        Experiment::Simulated(run) => match run(setting) {
            Err(e) => {
                let why = format!("the experiment did not come to its end: {e}");
                outcome(Curves::default(), Vec::new(), Verdict::Fails, why)
            }
            Ok(curves) => {
                let judged: Vec<_> = claim.rules.iter().map(|r| r.judge(&curves)).collect();
                let why = why(claim, &judged);
                let verdict = if why.is_empty() { Verdict::Holds } else { Verdict::Fails };
                outcome(curves, judged, verdict, why)
            }
        },
    }
}

/// Which rules do not hold, and what is known about it; empty where all hold.
fn why(claim: &Claim, judged: &[Judged]) -> String {
    let failed: Vec<_> = judged.iter().filter(|j| !j.holds()).collect();
    if failed.is_empty() {
        return String::new();
    }
    let each = |j: &&Judged| format!("{} is {}, not {}", j.rule.what, j.ours(), j.rule.band);
    let mut text = failed.iter().map(each).collect::<Vec<_>>().join("; ") + ".";
    if !claim.lacks.is_empty() {
        text.push(' ');
        text.push_str(claim.lacks);
    }
    text
}

#[cfg(test)]
mod tests {
    use millrace_bench::BenchError;

    use super::*;
    use crate::rule::{Band, Measure, Rule};

    fn claim(experiment: Experiment) -> Claim {
        const RULE: Rule = Rule {
            what: "a at 1",
            measure: Measure::At("a", 1.0),
            paper: "4",
            band: Band { least: 2.0, most: 8.0 },
        };
        let base = crate::claims::ALL[0];
        Claim { rules: &[RULE], experiment, lacks: "Disks are missing.", ..base }
    }

    fn gives(value: f64) -> Curves {
        let mut c = Curves::default();
        c.put("a", 1.0, value);
        c
    }

    #[test]
    fn a_claim_holds_or_fails_by_its_rules_and_says_why() {
        let claims = vec![
            claim(Experiment::Simulated(|_| Ok(gives(5.0)))),
            claim(Experiment::Simulated(|s| Ok(gives(s.seed as f64)))),
            claim(Experiment::Simulated(|_| Err(BenchError::Client("no server".into())))),
            claim(Experiment::Simulated(|_| Ok(Curves::default()))),
            claim(Experiment::Open("not yet")),
        ];
        let seen = Mutex::new(Vec::new());
        let run = Reproduction { claims, setting: Setting { seed: 9, small: true } };
        let outcomes = run.run(|p| seen.lock().push(p));
        let verdicts: Vec<_> = outcomes.iter().map(|o| o.verdict).collect();
        use Verdict::{Fails, Holds, Open};
        assert_eq!(verdicts, [Holds, Fails, Fails, Fails, Open]);
        assert_eq!(outcomes[0].why, "");
        assert_eq!(outcomes[1].why, "a at 1 is 9, not 2 to 8. Disks are missing.");
        assert!(outcomes[2].why.contains("no server") && outcomes[3].why.contains("not there"));
        assert_eq!(outcomes[4].why, "not yet");
        assert_eq!(seen.lock().len(), 10);
    }
}
