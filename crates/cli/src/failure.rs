//! How a command ends. The numbers are part of the interface and are in `millrace --help`.

use std::{fmt, process::ExitCode};

/// A command that came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything was done.
    Done,
    /// Some files failed; each was named on standard error.
    Partial,
    /// Nothing was done; the reasons are on standard error.
    Failed,
    /// The user stopped it.
    Interrupted,
}

impl Outcome {
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Partial => 3,
            Self::Interrupted => 130,
        })
    }
}

/// A command that could not go on: one sentence that says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    sentence: String,
    code: u8,
}

impl Failure {
    /// The operation failed (exit code 1).
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), code: 1 }
    }

    /// The command line is wrong (exit code 2).
    pub(crate) fn usage(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), code: 2 }
    }

    /// Nobody reads our output any more: end without a word, as other programs do when the pipe breaks.
    pub(crate) fn silent() -> Self {
        Self { sentence: String::new(), code: 1 }
    }

    /// Whether there is nothing to say.
    pub(crate) fn is_silent(&self) -> bool {
        self.sentence.is_empty()
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl From<millrace_bench::BenchError> for Failure {
    fn from(e: millrace_bench::BenchError) -> Self {
        match e {
            millrace_bench::BenchError::Parameter(_) => Self::usage(e.to_string()),
            _ => Self::new(e.to_string()),
        }
    }
}

/// What commands give.
pub(crate) type CommandResult = Result<Outcome, Failure>;
