//! The result of a command, and its exit code.

use std::{fmt, process::ExitCode};

/// The outcome of a command that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was done.
    Done,
    /// Some files failed; each was named on standard error.
    Partial,
    /// Nothing was done; the reasons are on standard error.
    Failed,
    /// The user interrupted it.
    Interrupted,
}

impl Outcome {
    /// The exit code: 0, 1, 3 or 130.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Partial => 3,
            Self::Interrupted => 130,
        })
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Done
    }
}

/// A failed command: one sentence with the failure and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    sentence: String,
    code: u8,
}

impl Failure {
    /// The operation failed (exit code 1).
    pub fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), code: 1 }
    }

    /// The command line is wrong (exit code 2).
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), code: 2 }
    }

    /// The reader of standard output has closed it. The command ends without a message, as other programs do
    /// on a broken pipe.
    pub fn silent() -> Self {
        Self { sentence: String::new(), code: 1 }
    }

    /// Whether there is no message.
    pub fn is_silent(&self) -> bool {
        self.sentence.is_empty()
    }

    /// The exit code: 1 or 2.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// The result of a command.
pub type CommandResult = Result<Outcome, Failure>;
