//! What happened, line by line: the same seed and the same program give the same text to the byte.

use std::fmt::{self, Write};

use super::event::EndId;

/// Changes when the meaning of a seed or of a line changes: a seed of another version tells another story.
pub const TRACE_VERSION: u32 = 3;

/// Why a run cannot be told again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The text does not begin as a trace or a seed of a simulated run does.
    #[error("{0:?} is not what a simulated run prints: it begins with `simulated v{TRACE_VERSION} seed=N`")]
    NotATrace(String),
    /// Of another version.
    #[error(
        "the seed or trace is of version {found}, and this program simulates version {TRACE_VERSION}: the same seed \
         tells another story here; replay it with the program that printed it"
    )]
    OtherVersion {
        /// Its version.
        found: u32,
    },
}

/// The seed of a run, as it is printed and read: `simulated v3 seed=42`. Nothing else tells a run of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated v{TRACE_VERSION} seed={}", self.0)
    }
}

impl std::str::FromStr for Seed {
    type Err = ReplayError;

    /// Reads a seed, or that of a whole trace: its first line.
    fn from_str(s: &str) -> Result<Self, ReplayError> {
        let line = s.lines().next().unwrap_or_default();
        let not = || ReplayError::NotATrace(line.chars().take(60).collect());
        let (version, rest) =
            line.strip_prefix("simulated v").and_then(|r| r.split_once(' ')).ok_or_else(not)?;
        let found = version.parse().map_err(|_| not())?;
        if found != TRACE_VERSION {
            return Err(ReplayError::OtherVersion { found });
        }
        let number = rest.strip_prefix("seed=").and_then(|r| r.split(' ').next()).ok_or_else(not)?;
        number.parse().map(Self).map_err(|_| not())
    }
}

/// Writes down what happens, if anybody wants it.
#[derive(Default)]
pub(super) struct Trace(Option<String>);

impl Trace {
    /// Begins with a line that says what this is.
    pub(super) fn begin(&mut self, seed: u64, profile: &str) {
        self.0 = Some(format!("{} profile={profile}\n", Seed(seed)));
    }

    pub(super) fn text(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// At `at` nanoseconds `what` happened to that end of a connection.
    pub(super) fn line(&mut self, at: u64, end: EndId, what: fmt::Arguments<'_>) {
        if let Some(text) = &mut self.0 {
            let side = if end.1 == 0 { 'a' } else { 'b' };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{at} {}{side} {what}", end.0);
        }
    }
}
