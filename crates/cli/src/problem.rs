//! What went wrong with one file, as a sentence that says what to do.

use std::{fmt, io, path::Path};

use millrace_client::Error;
use millrace_nfs::v3::Status;

/// What went wrong with one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    sentence: String,
    /// The path that the sentence names.
    names: Option<String>,
}

impl Problem {
    /// A problem that `sentence` describes.
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), names: None }
    }

    /// The sentence, said of `path` unless it names it already.
    pub(crate) fn of(&self, path: &str) -> String {
        if self.names.as_deref() == Some(path) {
            self.sentence.clone()
        } else {
            format!("{path}: {}", self.sentence)
        }
    }

    /// `what` ("read") failed for the local `path`.
    pub(crate) fn local(what: &str, path: &Path, e: &io::Error) -> Self {
        use io::ErrorKind as K;
        let path = path.display().to_string();
        let reason = match e.kind() {
            K::NotFound => "it does not exist; check the name".into(),
            K::PermissionDenied => "permission denied; check its owner and mode".into(),
            K::StorageFull => "the disk is full; free some space and run the same command again".into(),
            K::QuotaExceeded => "the disk quota is used up; free some space and run again".into(),
            K::ReadOnlyFilesystem => "the file system is read-only; choose another target".into(),
            K::IsADirectory => "it is a directory".into(),
            K::NotADirectory => "a part of the path is not a directory".into(),
            K::InvalidFilename => "the name is not possible on this file system".into(),
            _ => e.to_string(),
        };
        Self { sentence: format!("cannot {what} {path}: {reason}"), names: Some(path) }
    }
}

impl From<Error> for Problem {
    fn from(e: Error) -> Self {
        Self::new(sentence(&e))
    }
}

impl From<&millrace_copy::Error> for Problem {
    fn from(e: &millrace_copy::Error) -> Self {
        use millrace_copy::Error as E;
        let remedy = match e {
            E::Local { action, path, source } => return Self::local(action, path, source),
            E::Remote(e) => return Self::new(sentence(e)),
            E::IsDirectory => return Self::new("it is a directory; add -r to copy directories"),
            E::InvalidName(_) => "; do not trust this server",
            E::Shrunk => "; copy it again",
            E::Mismatch => "; nothing was left under its name, copy it again",
            E::DataLost => "; look at its log",
            _ => "",
        };
        Self::new(format!("{e}{remedy}"))
    }
}

/// Whether the object of the call is not there any more: no name leads to it, or its handle is stale.
pub(crate) fn is_gone(e: &Error) -> bool {
    matches!(e.status(), Some(Status::NoEnt | Status::Stale))
}

/// What a client's error means to the person at the keyboard.
fn sentence(e: &Error) -> String {
    let Error::Nfs { status, .. } = e else { return e.to_string() };
    let hint = match status {
        Status::NoEnt => "; check the path with `millrace ls`",
        Status::Access | Status::Perm => {
            "; check owner and mode with `millrace stat`, and the server's squash rule for the export"
        }
        Status::NoSpc => "; free some space there (see `millrace df`) and run the same command again",
        Status::DQuot => "; free some space there and run the same command again",
        Status::RoFs => "; the export is served read-only: choose another or ask its administrator",
        Status::NotDir => "; a part of the path is a file: check it with `millrace ls`",
        Status::Exist => "; remove it first or choose another name",
        Status::NotEmpty => "; add -r to remove what is in it",
        Status::Stale | Status::BadHandle => "; start again",
        Status::FBig => "; choose another target",
        Status::XDev => "; copy it with `millrace cp` and remove the original",
        Status::Io => "; look at the server's log",
        _ => "",
    };
    format!("{status}{hint}")
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl From<Problem> for millrace_cli_common::failure::Failure {
    fn from(p: Problem) -> Self {
        Self::new(p.sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_its_path_once() {
        let p = Problem::new("it is a directory; add -r to copy directories");
        // The path is part of many words.
        assert_eq!(p.of("d"), "d: it is a directory; add -r to copy directories");
        let p = Problem::local("read", Path::new("a/b"), &io::ErrorKind::NotFound.into());
        assert_eq!(p.of("a/b"), "cannot read a/b: it does not exist; check the name");
        assert_eq!(p.of("a"), "a: cannot read a/b: it does not exist; check the name");
    }
}
