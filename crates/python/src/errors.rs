//! Errors as Python exceptions.

use std::{io::ErrorKind, path::Path};

use millrace_client::Error;
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};

/// The reason why an operation failed, outside of the GIL.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the client, with the path of the object.
    Client(Error, Option<String>),
    /// An error of a copy that is not one of the client, with the path of the source or of a local file.
    Copy(millrace_copy::Error, String),
    /// The object with the path does not have the extended attribute.
    NoXattr(String),
    /// The client, or the file, is closed.
    Closed(&'static str),
    /// An invalid argument.
    Value(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error, None)
    }
}

/// An error of a stream contains the client's error.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(error) => error.into(),
            Err(error) => Error::Source(error).into(),
        }
    }
}

/// Text of a path for errors.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The error of a copy from `source` to or from the path `remote` of the export.
pub(crate) fn of_copy(error: millrace_copy::Error, source: &Path, remote: &Path) -> Failure {
    use millrace_copy::Error as E;
    match error {
        E::Remote(error) => Failure::Client(error, Some(text(remote))),
        E::Local { ref path, .. } | E::Xattr { ref path, .. } => {
            let path = text(path);
            Failure::Copy(error, path)
        }
        error => Failure::Copy(error, text(source)),
    }
}

/// Adds the path to the error of an operation.
pub(crate) fn at(path: &str) -> impl Fn(Error) -> Failure {
    move |error| Failure::Client(error, Some(path.to_owned()))
}

impl Failure {
    /// Adds the path of the object, unless the error has one.
    pub(crate) fn or_at(self, path: &Path) -> Self {
        match self {
            Self::Client(error, None) => Self::Client(error, Some(text(path))),
            other => other,
        }
    }

    /// Puts the name of the export before the path.
    pub(crate) fn below(self, export: &str) -> Self {
        let export = export.trim_end_matches('/');
        let below = |path: String| match path.trim_matches('/') {
            "" if !export.is_empty() => export.to_owned(),
            path => format!("{export}/{path}"),
        };
        match self {
            Self::Client(error, Some(path)) => Self::Client(error, Some(below(path))),
            Self::NoXattr(path) => Self::NoXattr(below(path)),
            other => other,
        }
    }

    /// The exception: the subclass of OSError for the errno, ValueError for invalid arguments.
    pub(crate) fn exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Closed(what) => PyValueError::new_err(format!("I/O operation on closed {what}")),
            Self::Client(Error::Closed, _) => PyValueError::new_err("I/O operation on closed client"),
            Self::NoXattr(path) => {
                os_error(py, libc::ENODATA, "the extended attribute does not exist".into(), Some(path))
            }
            Self::Value(text) => PyValueError::new_err(text),
            Self::Client(error @ Error::Url { .. }, _) => PyValueError::new_err(error.to_string()),
            Self::Client(error, None) => os_error(py, errno(&error), error.to_string(), None),
            Self::Client(error, path) => os_error(py, errno(&error), reason(&error), path),
            Self::Copy(error, path) => {
                let text = match &error {
                    millrace_copy::Error::Local { source, .. } => source.to_string(),
                    error => error.to_string(),
                };
                os_error(py, errno_of_copy(&error), text, Some(path))
            }
        }
    }
}

/// The text of an error without the object, which `OSError.filename` has.
fn reason(error: &Error) -> String {
    match error {
        Error::Path { reason, .. } => reason.clone(),
        Error::Nfs { procedure, status, .. } => format!("{status} ({procedure})"),
        error => error.to_string(),
    }
}

/// OSError selects its subclass by errno.
fn os_error(py: Python<'_>, errno: i32, text: String, path: Option<String>) -> PyErr {
    let class = py.get_type::<PyOSError>();
    let instance = match path {
        Some(path) => class.call1((errno, text, path)),
        None => class.call1((errno, text)),
    };
    instance.map_or_else(|e| e, PyErr::from_value)
}

fn errno_of_copy(error: &millrace_copy::Error) -> i32 {
    use millrace_copy::Error as E;
    match error {
        E::Local { source, .. } | E::Xattr { source, .. } => {
            source.raw_os_error().unwrap_or_else(|| errno_of_kind(source.kind()))
        }
        E::IsDirectory | E::TargetIsDirectory => libc::EISDIR,
        E::NotDirectory => libc::ENOTDIR,
        E::Special | E::SpecialTarget(_) | E::SameFile => libc::EINVAL,
        E::OutOfMemory(_) => libc::ENOMEM,
        E::Stopped => libc::ECANCELED,
        _ => libc::EIO,
    }
}

/// The errno that the same operation on a mount returns.
fn errno(error: &Error) -> i32 {
    match (error.raw_os_error(), error) {
        (Some(errno), _) => errno,
        (_, Error::Source(e) | Error::Sink(e)) => e.raw_os_error().unwrap_or_else(|| errno_of_kind(e.kind())),
        _ => errno_of_kind(error.kind()),
    }
}

fn errno_of_kind(kind: ErrorKind) -> i32 {
    use ErrorKind as K;
    match kind {
        K::NotFound => libc::ENOENT,
        K::PermissionDenied => libc::EACCES,
        K::ConnectionRefused => libc::ECONNREFUSED,
        K::ConnectionReset => libc::ECONNRESET,
        K::ConnectionAborted => libc::ECONNABORTED,
        K::NotConnected => libc::ENOTCONN,
        K::HostUnreachable => libc::EHOSTUNREACH,
        K::NetworkUnreachable => libc::ENETUNREACH,
        K::BrokenPipe => libc::EPIPE,
        K::AlreadyExists => libc::EEXIST,
        K::WouldBlock => libc::EAGAIN,
        K::NotADirectory => libc::ENOTDIR,
        K::IsADirectory => libc::EISDIR,
        K::DirectoryNotEmpty => libc::ENOTEMPTY,
        K::ReadOnlyFilesystem => libc::EROFS,
        K::StaleNetworkFileHandle => libc::ESTALE,
        K::InvalidInput => libc::EINVAL,
        K::TimedOut => libc::ETIMEDOUT,
        K::StorageFull => libc::ENOSPC,
        K::QuotaExceeded => libc::EDQUOT,
        K::FileTooLarge => libc::EFBIG,
        K::ResourceBusy => libc::EBUSY,
        K::Deadlock => libc::EDEADLK,
        K::CrossesDevices => libc::EXDEV,
        K::TooManyLinks => libc::EMLINK,
        K::InvalidFilename => libc::ENAMETOOLONG,
        K::Unsupported => libc::EOPNOTSUPP,
        K::OutOfMemory => libc::ENOMEM,
        _ => libc::EIO,
    }
}
