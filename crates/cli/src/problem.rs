//! What went wrong with one file, as a sentence that says what to do.

use std::{fmt, io, path::Path};

/// What went wrong with one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    sentence: String,
    fatal: bool,
}

impl Problem {
    /// Something that concerns this file only.
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), fatal: false }
    }

    /// Something that the next file will meet too, so that going on makes no sense.
    pub(crate) fn fatal(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), fatal: true }
    }

    /// Whether going on makes no sense.
    pub(crate) fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// `what` ("read") failed for the local `path`.
    pub(crate) fn local(what: &str, path: &Path, e: &io::Error) -> Self {
        use io::ErrorKind as K;
        let path = path.display();
        let (reason, fatal) = match e.kind() {
            K::NotFound => ("it does not exist; check the name".into(), false),
            K::PermissionDenied => ("permission denied; check its owner and mode".into(), false),
            K::StorageFull => {
                ("the disk is full; free some space and run the same command again".into(), true)
            }
            K::QuotaExceeded => ("the disk quota is used up; free some space and run again".into(), true),
            K::ReadOnlyFilesystem => ("the file system is read-only; choose another target".into(), true),
            K::IsADirectory => ("it is a directory".into(), false),
            K::NotADirectory => ("a part of the path is not a directory".into(), false),
            K::InvalidFilename => ("the name is not possible on this file system".into(), false),
            _ => (e.to_string(), false),
        };
        Self { sentence: format!("cannot {what} {path}: {reason}"), fatal }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl From<Problem> for crate::failure::Failure {
    fn from(p: Problem) -> Self {
        Self::new(p.sentence)
    }
}
