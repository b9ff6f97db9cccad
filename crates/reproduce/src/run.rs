//! The execution of claims.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use millrace_bench::BenchError;
use parking_lot::Mutex;

use crate::{
    Claim, Curves, Setting,
    calibration::{PARAMETERS, Testbed, Values, calibrates},
    rule::RuleResult,
    search::{self, Found},
};

/// Number of experiments that run concurrently: an experiment is one thread, and each keeps the files of its
/// server in memory.
const CONCURRENT: usize = 2;

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

/// The results of a run.
pub struct Results {
    /// The claims, in order.
    pub outcomes: Vec<Outcome>,
    /// The values of the parameters that the claims use; empty without calibration.
    pub found: Vec<Found>,
    /// The results with a changed value of each parameter; empty unless requested.
    pub sensitivity: Vec<Change>,
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A step of the run has started: the name of a claim or of a testbed.
    Began(&'static str),
    /// A testbed is calibrated.
    Calibrated(&'static str),
    /// A claim has ended, with this verdict.
    Ended(&'static str, Verdict),
}

/// The columns of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// Raw numbers only.
    Raw,
    /// Raw numbers only, and calibrated.
    Both,
    /// Both columns, and the sensitivity of the calibrated one.
    Sensitivity,
}

/// Claims to run.
pub struct Reproduction {
    /// The claims.
    pub claims: Vec<Claim>,
    /// The seed and the size of the experiments.
    pub setting: Setting,
    /// The columns.
    pub columns: Columns,
}

impl Reproduction {
    /// Runs all claims, two at a time, and returns their outcomes in order. A claim that fails, or whose
    /// experiment fails, does not stop the others.
    ///
    /// # Errors
    /// When an experiment that calibrates a parameter fails.
    pub fn run(&self, seen: impl Fn(Progress) + Sync) -> Result<Results, BenchError> {
        let raw = self.column(None, &seen);
        let mut results = Results { outcomes: Vec::new(), found: Vec::new(), sensitivity: Vec::new() };
        let calibrated = match self.columns {
            Columns::Raw => vec![None; raw.len()],
            Columns::Both | Columns::Sensitivity => {
                let (values, found) = self.calibrate(&seen)?;
                results.found = found;
                let columns = self.column(Some(values), &seen);
                if self.columns == Columns::Sensitivity {
                    results.sensitivity = self.sensitivity(&values, &results.found, &columns, &seen)?;
                }
                columns.into_iter().map(Some).collect()
            }
        };
        let claims = self.claims.iter().zip(raw).zip(calibrated);
        results.outcomes =
            claims.map(|((claim, raw), calibrated)| Outcome { claim: *claim, raw, calibrated }).collect();
        Ok(results)
    }

    fn column(&self, calibration: Option<Values>, seen: &(impl Fn(Progress) + Sync)) -> Vec<Column> {
        let setting = Setting { calibration, ..self.setting };
        in_pairs(&self.claims, |claim| {
            seen(Progress::Began(claim.id));
            let column = one(claim, setting);
            seen(Progress::Ended(claim.id, column.verdict));
            column
        })
    }

    fn calibrate(&self, seen: &(impl Fn(Progress) + Sync)) -> Result<(Values, Vec<Found>), BenchError> {
        let used = |t: &Testbed| self.claims.iter().any(|c| c.testbeds.contains(t));
        let testbeds: Vec<_> = Testbed::ALL.into_iter().filter(used).collect();
        let calibrated = in_pairs(&testbeds, |testbed| {
            seen(Progress::Began(testbed.name()));
            let calibrated = search::calibrate(*testbed, self.setting);
            seen(Progress::Calibrated(testbed.name()));
            calibrated
        });
        let (mut values, mut found) = (Values::smallest(), Vec::new());
        for (testbed, calibrated) in testbeds.into_iter().zip(calibrated) {
            let (of_testbed, of_its_parameters) = calibrated?;
            values.adopt(testbed, &of_testbed);
            found.extend(of_its_parameters);
        }
        Ok((values, found))
    }

    /// The rules that change when a parameter changes by 20 %, has its smallest value, or is calibrated against its
    /// alternative figure.
    fn sensitivity(
        &self,
        values: &Values,
        found: &[Found],
        columns: &[Column],
        seen: &(impl Fn(Progress) + Sync),
    ) -> Result<Vec<Change>, BenchError> {
        let mut changes = Vec::new();
        for one in found {
            let n = one.parameter;
            for (what, factor) in [(Variation::Less, 0.8), (Variation::More, 1.2)] {
                changes.push((n, what, Some(values.get(n) * factor)));
            }
            changes.push((n, Variation::Off, Some(PARAMETERS[n].range.0)));
            changes.push((n, Variation::Alternative, None));
        }
        let changes = in_pairs(&changes, |(n, what, value)| {
            seen(Progress::Began(PARAMETERS[*n].name));
            let value = match value {
                Some(value) => Some(*value),
                None => search::alternative(*n, values, self.setting)?.map(|found| found.value),
            };
            let Some(value) = value else { return Ok(None) };
            let setting = Setting { calibration: Some(values.with(*n, value)), ..self.setting };
            let mut change = Change { parameter: *n, variation: *what, value, rules: Vec::new() };
            for (claim, column) in self.claims.iter().zip(columns) {
                if claim.testbeds.contains(&PARAMETERS[*n].testbed) {
                    change.rules.extend(moved(claim, column, &one(claim, setting)));
                }
            }
            Ok::<_, BenchError>(Some(change))
        });
        Ok(changes.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }
}

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

/// Applies `f` to all items, two at a time, and returns the results in order.
fn in_pairs<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some((n, item)) = {
            let n = next.fetch_add(1, Relaxed);
            items.get(n).map(|item| (n, item))
        } {
            let result = f(item);
            done.lock().push((n, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..CONCURRENT {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, result)| result).collect()
}

fn one(claim: &Claim, setting: Setting) -> Column {
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
    use crate::rule::{Band, Measure, Rule};

    const RULE: Rule = Rule {
        what: "a at 1",
        measure: Measure::At("a", 1.0),
        paper: "4",
        band: Band { least: 2.0, most: 8.0 },
    };

    fn claim(experiment: fn(Setting) -> Result<Curves, BenchError>) -> Claim {
        let base = crate::claims::ALL[0];
        Claim {
            rules: &[RULE],
            experiment,
            model_gaps: "Disks are missing.",
            calibrated_gaps: "Disks are slow.",
            testbeds: &[],
            ..base
        }
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
        let run = Reproduction { claims, setting: Setting::raw(9, true), columns: Columns::Raw };
        let outcomes = run.run(|p| seen.lock().push(p)).unwrap().outcomes;
        let verdicts: Vec<_> = outcomes.iter().map(|o| o.raw.verdict).collect();
        use Verdict::{Fails, Holds};
        assert_eq!(verdicts, [Holds, Fails, Fails, Fails]);
        assert!(outcomes.iter().all(|o| o.calibrated.is_none()));
        let why = |n: usize| outcomes[n].raw.why.as_str();
        assert_eq!(why(0), "");
        assert_eq!(why(1), "a at 1 is 9 instead of 2 to 8. Disks are missing.");
        assert!(why(2).contains("no server") && why(3).contains("no value"));
        assert_eq!(seen.lock().len(), 8);
    }

    #[test]
    fn the_columns_have_their_own_results_and_reasons() {
        let value = |s: Setting| Ok(gives(if s.calibration.is_some() { 9.0 } else { 3.0 }));
        let run = Reproduction {
            claims: vec![claim(value)],
            setting: Setting::raw(1, true),
            columns: Columns::Both,
        };
        let results = run.run(|_| ()).unwrap();
        let Outcome { raw, calibrated, .. } = &results.outcomes[0];
        let calibrated = calibrated.as_ref().unwrap();
        assert_eq!((raw.verdict, calibrated.verdict), (Verdict::Holds, Verdict::Fails));
        assert_eq!(calibrated.why, "a at 1 is 9 instead of 2 to 8. Disks are slow.");
        assert!(results.found.is_empty() && results.sensitivity.is_empty());
    }

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
        // Nor is it listed among the rules that a parameter changes.
        let column = |ours| Column {
            curves: Curves::default(),
            results: vec![RuleResult { rule, ours }, RuleResult { rule: RULE, ours }],
            verdict: Verdict::Fails,
            why: String::new(),
        };
        let moved = moved(&claim, &column(Some(1.0)), &column(Some(3.0)));
        assert_eq!(moved.len(), 1);
        assert_eq!((moved[0].what, moved[0].holds), ("a at 1", (false, true)));
    }
}
