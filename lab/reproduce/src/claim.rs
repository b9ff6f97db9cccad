//! A claim of a paper.

use millrace_bench::BenchError;
use millrace_iscsi::negotiation::Settings;
use millrace_simlab::Machines;

use crate::{
    Curves, Picture,
    calibration::{Testbed, Values},
    rule::Rule,
};

/// The conditions of an experiment.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The seed. The same seed produces the same figures.
    pub seed: u64,
    /// Whether to use less data and fewer operations, for tests of the program. The figures are less
    /// accurate.
    pub small: bool,
    /// The values of the parameters that raw numbers do not define, or `None` for raw numbers only.
    pub calibration: Option<Values>,
    /// A modification of the simulated machines, in an experiment about the cause of a failure.
    pub modification: Option<Modification>,
}

/// A modification of simulated machines, after their calibration.
#[derive(Debug, Clone, Copy)]
pub enum Modification {
    /// Of the machines. In C15, it has an effect on their profile only.
    Machines(fn(&mut Machines)),
    /// Of what the target of C15 wants over TCP.
    Session(fn(&mut Settings)),
}

impl Modification {
    /// Modifies machines.
    pub(crate) fn machines(self, machines: &mut Machines) {
        if let Self::Machines(modify) = self {
            modify(machines);
        }
    }

    /// Modifies what a target wants.
    pub(crate) fn session(self, settings: &mut Settings) {
        if let Self::Session(modify) = self {
            modify(settings);
        }
    }
}

impl Setting {
    /// Raw numbers only, with this seed.
    pub const fn raw(seed: u64, small: bool) -> Self {
        Self { seed, small, calibration: None, modification: None }
    }
}

/// A claim of a paper, and the definition of its reproduction.
#[derive(Clone, Copy)]
pub struct Claim {
    /// The name of the claim, such as "C2".
    pub id: &'static str,
    /// The claim, in a sentence.
    pub claim: &'static str,
    /// The source: the paper's short name and section or figure.
    pub source: &'static str,
    /// The paper's figures.
    pub figures: &'static str,
    /// The profiles of the simulated machines.
    pub profiles: &'static [&'static str],
    /// The hosts whose parameters the experiment uses.
    pub testbeds: &'static [Testbed],
    /// Choices that the paper leaves open, and deviations in size.
    pub conditions: &'static str,
    /// The rules. The claim holds if all of them hold.
    pub rules: &'static [Rule],
    /// The plots.
    pub pictures: &'static [Picture],
    /// The experiment: runs workloads on simulated machines.
    pub experiment: fn(Setting) -> Result<Curves, BenchError>,
    /// The known reasons in the models for a failure with raw numbers only. The report contains them if the
    /// claim fails.
    pub model_gaps: &'static str,
    /// The reasons for a failure with calibrated parameters, found by experiments
    /// (`docs/lab/reproduction.md`).
    pub calibrated_gaps: &'static str,
}
