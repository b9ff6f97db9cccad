//! The results of a run.

use std::{collections::BTreeSet, fmt};

use super::Capability;

/// The result of one case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The case passed, except for the parts that need [`CaseReport::skipped`].
    Passed,
    /// The case needs [`CaseReport::skipped`].
    Skipped,
    /// The case failed with this message.
    Failed(String),
}

/// One case of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseReport {
    /// Module and function of the case, such as `namespace::rename_moves_and_replaces`.
    pub name: &'static str,
    /// The result.
    pub outcome: Outcome,
    /// Capabilities that the file system does not have and that the case, or a part of it, needs.
    pub skipped: Vec<Capability>,
}

/// The results of a run. [`Display`](fmt::Display) prints a line for each case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// All cases, in the order in which they ran.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// The capabilities without which cases or parts of cases were skipped.
    pub fn skipped(&self) -> BTreeSet<Capability> {
        self.cases.iter().flat_map(|c| c.skipped.iter().copied()).collect()
    }

    /// Number of cases that passed.
    pub fn passed(&self) -> usize {
        self.cases.iter().filter(|c| c.outcome == Outcome::Passed).count()
    }

    /// Requires that no case failed.
    ///
    /// # Panics
    /// If cases failed, with their names and messages.
    #[track_caller]
    pub fn assert_passed(&self) {
        let failed = self.cases.iter().filter(|c| matches!(c.outcome, Outcome::Failed(_)));
        let failed: Vec<_> = failed.map(CaseReport::to_string).collect();
        assert!(failed.is_empty(), "the file system does not conform:\n{}", failed.join("\n"));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            writeln!(f, "{case}")?;
        }
        Ok(())
    }
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped: Vec<_> = self.skipped.iter().map(Capability::to_string).collect();
        let skipped = skipped.join(", ");
        match &self.outcome {
            Outcome::Passed if skipped.is_empty() => write!(f, "passed  {}", self.name),
            Outcome::Passed => write!(f, "passed  {} (without {skipped})", self.name),
            Outcome::Skipped => write!(f, "skipped {} (needs {skipped})", self.name),
            Outcome::Failed(message) => write!(f, "FAILED  {}: {message}", self.name),
        }
    }
}
