//! A claim of a paper.

use millrace_bench::BenchError;

use crate::{Curves, Picture, rule::Rule};

/// Under which conditions an experiment runs.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The seed: the same gives the same figures.
    pub seed: u64,
    /// Less data and fewer operations, for tests of the program; figures are rougher.
    pub small: bool,
}

/// Where the figures of a claim come from.
#[derive(Clone, Copy)]
pub enum Experiment {
    /// Runs workloads on simulated machines.
    Simulated(fn(Setting) -> Result<Curves, BenchError>),
    /// There is none, and why.
    Open(&'static str),
}

/// A claim: what a paper says, and when it counts as reproduced.
#[derive(Clone, Copy)]
pub struct Claim {
    /// Its name: "C2".
    pub id: &'static str,
    /// What is claimed, in a sentence.
    pub claim: &'static str,
    /// Where: the paper's short name and section or figure.
    pub source: &'static str,
    /// The paper's figures.
    pub figures: &'static str,
    /// The profiles of the simulated machines.
    pub profiles: &'static [&'static str],
    /// What was chosen where the paper leaves it open, and what is smaller than there.
    pub conditions: &'static str,
    /// When the claim holds: all of them must.
    pub rules: &'static [Rule],
    /// What to draw.
    pub pictures: &'static [Picture],
    /// How the figures come about.
    pub experiment: Experiment,
    /// Said when the claim fails: what the models lack for it, as far as it is known.
    pub lacks: &'static str,
}
