//! The execution of claims.

use millrace_bench::BenchError;

use crate::{
    Claim, Setting,
    calibration::{Testbed, Values},
    causes::{self, Tested},
    column::{Column, Outcome, Verdict, column},
    pairs::in_pairs,
    search::{self, Found},
    sensitivity::{Change, sensitivity},
};

/// The results of a run.
#[derive(Default)]
pub struct Results {
    /// The claims, in order.
    pub outcomes: Vec<Outcome>,
    /// The values of the parameters that the claims use; empty without calibration.
    pub found: Vec<Found>,
    /// The results with a changed value of each parameter; empty unless requested.
    pub sensitivity: Vec<Change>,
    /// The experiments about the causes of failures; empty unless requested.
    pub causes: Vec<Tested>,
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
    /// An experiment with a changed parameter or mechanism has ended: the name of the parameter or of the claim.
    Changed(&'static str),
}

/// The columns of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// Raw numbers only.
    Raw,
    /// Raw numbers only, and calibrated.
    Both {
        /// Whether to change the parameters of the calibrated column.
        sensitivity: bool,
        /// Whether to test the causes of its failures.
        causes: bool,
    },
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
        let mut results = Results::default();
        let calibrated = match self.columns {
            Columns::Raw => vec![None; raw.len()],
            Columns::Both { sensitivity: wanted, causes } => {
                let (values, found) = self.calibrate(&seen)?;
                results.found = found;
                let columns = self.column(Some(values), &seen);
                let claims = (&self.claims[..], &columns[..]);
                if causes {
                    let setting = Setting { calibration: Some(values), ..self.setting };
                    results.causes = causes::test(claims, setting, |claim| seen(Progress::Changed(claim)));
                }
                if wanted {
                    let changed = |name| seen(Progress::Changed(name));
                    results.sensitivity =
                        sensitivity(claims, (&values, &results.found), self.setting, changed)?;
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
            let column = column(claim, setting);
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
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        Curves,
        rule::{Band, Measure, Rule},
    };

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
            columns: Columns::Both { sensitivity: false, causes: false },
        };
        let results = run.run(|_| ()).unwrap();
        let Outcome { raw, calibrated, .. } = &results.outcomes[0];
        let calibrated = calibrated.as_ref().unwrap();
        assert_eq!((raw.verdict, calibrated.verdict), (Verdict::Holds, Verdict::Fails));
        assert_eq!(calibrated.why, "a at 1 is 9 instead of 2 to 8. Disks are slow.");
        assert!(results.found.is_empty() && results.sensitivity.is_empty());
    }
}
