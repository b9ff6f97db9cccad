//! A claim of a paper.

use millrace_bench::BenchError;

use crate::{Curves, Picture, rule::Rule};

/// The conditions of an experiment.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The seed. The same seed produces the same figures.
    pub seed: u64,
    /// Whether to use less data and fewer operations, for tests of the program. The figures are less
    /// accurate.
    pub small: bool,
}

/// A claim of a paper, and the definition of its reproduction.
#[derive(Clone, Copy)]
pub struct Claim {
    /// Its name: "C2".
    pub id: &'static str,
    /// The claim, in a sentence.
    pub claim: &'static str,
    /// The source: the paper's short name and section or figure.
    pub source: &'static str,
    /// The paper's figures.
    pub figures: &'static str,
    /// The profiles of the simulated machines.
    pub profiles: &'static [&'static str],
    /// Choices that the paper leaves open, and deviations in size.
    pub conditions: &'static str,
    /// The rules. The claim holds if all of them hold.
    pub rules: &'static [Rule],
    /// The plots.
    pub pictures: &'static [Picture],
    /// The experiment: runs workloads on simulated machines.
    pub experiment: fn(Setting) -> Result<Curves, BenchError>,
    /// The known reasons in the models for a failure. The report contains them if the claim fails.
    pub model_gaps: &'static str,
}
