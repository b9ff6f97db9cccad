//! Errors of file operations: one sentence with the reason and the remedy.

use std::{fmt, io, path::Path};

use millrace_client::{Error, ops::Status};

/// The failure of an operation on one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileError {
    sentence: String,
    /// The path that the sentence names.
    names: Option<String>,
}

impl FileError {
    /// An error described by `sentence`.
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), names: None }
    }

    /// The sentence, prefixed with `path` unless it already contains that path.
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
            K::StorageFull => "the disk is full; free some space and run the command again".into(),
            K::QuotaExceeded => {
                "the disk quota is exhausted; free some space and run the command again".into()
            }
            K::ReadOnlyFilesystem => "the file system is read-only; choose another target".into(),
            K::IsADirectory => "it is a directory".into(),
            K::NotADirectory => "a part of the path is not a directory".into(),
            K::NotConnected => {
                "the process of the mount there has ended; remove it with `millrace umount` and mount it again".into()
            }
            K::InvalidFilename => "the name is not valid on this file system".into(),
            _ => e.to_string(),
        };
        Self { sentence: format!("cannot {what} {path}: {reason}"), names: Some(path) }
    }
}

impl From<Error> for FileError {
    fn from(e: Error) -> Self {
        Self::new(sentence(&e))
    }
}

impl From<&millrace_copy::Error> for FileError {
    fn from(e: &millrace_copy::Error) -> Self {
        use millrace_copy::Error as E;
        let remedy = match e {
            E::Local { action, path, source } => return Self::local(action, path, source),
            E::Remote(Error::Xattr { .. }) | E::Xattr { .. } | E::LargeXattrs => "; copy it without --xattrs",
            E::Remote(e) => return Self::new(sentence(e)),
            E::IsDirectory => return Self::new("it is a directory; add -r to copy directories"),
            E::InvalidName(_) => "; do not trust this server",
            E::Shrunk => "; copy it again",
            E::Mismatch => "; copy the file again",
            E::TargetIsDirectory | E::SpecialTarget(_) | E::IntoItself => "; choose another target",
            E::SameFile => "; if they are two files, add --atomic",
            E::Incomplete => "; copy it again",
            E::DataLost => "; check its log",
            _ => "",
        };
        Self::new(format!("{e}{remedy}"))
    }
}

/// Whether the object no longer exists: its name was not found, or its handle is stale.
pub(crate) fn is_gone(e: &Error) -> bool {
    matches!(e.status(), Some(Status::NoEnt | Status::Stale))
}

/// Text of a client error, with a remedy.
fn sentence(e: &Error) -> String {
    let Error::Nfs { status, .. } = e else { return e.to_string() };
    let hint = match status {
        Status::NoEnt => "; check the path with `millrace ls`",
        Status::Access | Status::Perm => {
            "; check owner and mode with `millrace stat`, and the server's squash rule and xprtsec of the export"
        }
        Status::NoSpc => "; free some space there (see `millrace df`) and run the command again",
        Status::DQuot => "; free some space there and run the command again",
        Status::RoFs => "; the export is read-only: choose another, or ask its administrator",
        Status::NotDir => "; a component of the path is a file: check it with `millrace ls`",
        Status::Exist => "; remove it first or choose another name",
        Status::NotEmpty => "; add -r to remove its contents",
        Status::Stale | Status::BadHandle => "; run the command again",
        Status::FBig => "; choose another target",
        Status::XDev => "; copy it with `millrace cp` and remove the original",
        Status::Io => "; check the server's log",
        _ => "",
    };
    format!("{status}{hint}")
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl From<FileError> for millrace_program::failure::Failure {
    fn from(p: FileError) -> Self {
        Self::new(p.sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_path_once() {
        let p = FileError::new("it is a directory; add -r to copy directories");
        // The path "d" is a substring of the sentence.
        assert_eq!(p.of("d"), "d: it is a directory; add -r to copy directories");
        let p = FileError::local("read", Path::new("a/b"), &io::ErrorKind::NotFound.into());
        assert_eq!(p.of("a/b"), "cannot read a/b: it does not exist; check the name");
        assert_eq!(p.of("a"), "a: cannot read a/b: it does not exist; check the name");
    }
}
