//! The trace of a run. The same seed and program produce the same bytes.

use std::fmt::{self, Write};

use super::event::EndId;

/// Version of seeds and traces. Changes when the meaning of a seed or of a trace line changes.
pub const TRACE_VERSION: u32 = 3;

/// Why a run cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The text is neither a trace nor a seed of a simulated run.
    #[error(
        "{0:?} is no seed or trace of a simulated run, which begins with `simulated v{TRACE_VERSION} seed=N`"
    )]
    NotATrace(String),
    /// The seed or trace has another version.
    #[error(
        "the seed or trace is of version {found}, and this program simulates version {TRACE_VERSION}: a seed has \
         another meaning there; replay it with the program that printed it"
    )]
    OtherVersion {
        /// Its version.
        found: u32,
    },
}

/// The seed of a run, printed and parsed as `simulated v3 seed=42`. It determines the run completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated v{TRACE_VERSION} seed={}", self.0)
    }
}

impl std::str::FromStr for Seed {
    type Err = ReplayError;

    /// Parses a seed, or the first line of a trace.
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

/// Records events if enabled.
#[derive(Default)]
pub(super) struct Trace(Option<String>);

impl Trace {
    /// Starts the trace with a header line.
    pub(super) fn begin(&mut self, seed: u64, profile: &str) {
        self.0 = Some(format!("{} profile={profile}\n", Seed(seed)));
    }

    pub(super) fn text(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Records the event `what` of the end at `at` nanoseconds.
    pub(super) fn line(&mut self, at: u64, end: EndId, what: fmt::Arguments<'_>) {
        if let Some(text) = &mut self.0 {
            let side = if end.1 == 0 { 'a' } else { 'b' };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{at} {}{side} {what}", end.0);
        }
    }
}
