//! Checks of this host, of a server and of an iSCSI target, for `millrace doctor`.
//!
//! Each check returns a `Finding`: its state, the observation, and the remedy of a problem.

mod machine;
mod port;
mod server;
mod target;

pub(crate) use machine::machine;
pub(crate) use server::server;
pub(crate) use target::target;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// No problem.
    Fine,
    /// The checked function works, with a restriction.
    Note,
    /// The checked function does not work.
    Broken,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Note => "note",
            Self::Broken => "broken",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) state: State,
    /// Name of the check.
    pub(crate) check: &'static str,
    /// The observation, one sentence.
    pub(crate) found: String,
    /// A command or a change that fixes the problem; `None` if the state is `Fine`.
    pub(crate) remedy: Option<String>,
}

impl Finding {
    fn fine(check: &'static str, found: impl Into<String>) -> Self {
        Self { state: State::Fine, check, found: found.into(), remedy: None }
    }

    fn note(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Note, check, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// A restriction instead of a problem: another way works.
    fn into_note(self) -> Self {
        Self { state: State::Note, ..self }
    }

    fn broken(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Broken, check, found: found.into(), remedy: Some(remedy.into()) }
    }
}
