//! Whether this machine and a server are fit for use: findings, each with what mends it.

mod machine;
mod server;

pub(crate) use machine::machine;
pub(crate) use server::server;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// As it should be.
    Fine,
    /// It works, but could be better or does not suit everything.
    Note,
    /// It does not work.
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

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) state: State,
    /// What was looked at: one word.
    pub(crate) check: &'static str,
    /// What was found: one sentence.
    pub(crate) found: String,
    /// A command or a change that mends it; nothing if it is fine.
    pub(crate) mend: Option<String>,
}

impl Finding {
    fn fine(check: &'static str, found: impl Into<String>) -> Self {
        Self { state: State::Fine, check, found: found.into(), mend: None }
    }

    fn note(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: State::Note, check, found: found.into(), mend: Some(mend.into()) }
    }

    fn broken(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { state: State::Broken, check, found: found.into(), mend: Some(mend.into()) }
    }
}
