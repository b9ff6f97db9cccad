//! Errors as Python exceptions.

use std::{io::ErrorKind, path::Path};

use millrace_client::Error;
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};

/// A path that an operation was given.
#[derive(Debug)]
pub(crate) enum Place {
    Export(String),
    Local(String),
}

/// The paths of an operation in the order of its arguments, as `OSError.filename` and `filename2` have them.
type Paths = Vec<Place>;

/// The reason why an operation failed, outside of the GIL.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the client.
    Client(Error, Paths),
    /// An error of a copy that is not one of the client.
    Copy(millrace_copy::Error, Paths),
    /// The client, or the file, is closed.
    Closed(&'static str),
    /// An invalid argument.
    Value(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error, Paths::new())
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

/// Adds the path to the error of an operation.
pub(crate) fn at(path: &Path) -> impl Fn(Error) -> Failure {
    move |error| Failure::Client(error, vec![Place::export(path)])
}

/// Adds the two paths to the error of an operation.
pub(crate) fn between(from: &Path, to: &Path) -> impl Fn(Error) -> Failure {
    move |error| Failure::Client(error, vec![Place::export(from), Place::export(to)])
}

impl Place {
    pub(crate) fn export(path: &Path) -> Self {
        Self::Export(text(path))
    }

    pub(crate) fn local(path: &Path) -> Self {
        Self::Local(text(path))
    }

    /// Puts the name of the export before a path in it.
    fn below(self, export: &str) -> Self {
        match self {
            Self::Export(path) => Self::Export(match path.trim_matches('/') {
                "" if !export.is_empty() => export.to_owned(),
                path => format!("{export}/{path}"),
            }),
            Self::Local(path) => Self::Local(path),
        }
    }

    fn into_text(self) -> String {
        let (Self::Export(path) | Self::Local(path)) = self;
        path
    }
}

impl Failure {
    /// The error of a copy.
    pub(crate) fn of_copy(error: millrace_copy::Error, from: Place, to: Place) -> Self {
        let paths = vec![from, to];
        match error {
            millrace_copy::Error::Remote(error) => Self::Client(error, paths),
            error => Self::Copy(error, paths),
        }
    }

    /// Adds the path of the object, unless the error has one.
    pub(crate) fn or_at(self, path: &Path) -> Self {
        match self {
            Self::Client(error, paths) if paths.is_empty() => at(path)(error),
            other => other,
        }
    }

    /// Puts the name of the export before the paths in it.
    pub(crate) fn below(self, export: &str) -> Self {
        let export = export.trim_end_matches('/');
        let below = |paths: Paths| paths.into_iter().map(|path| path.below(export)).collect();
        match self {
            Self::Client(error, paths) => Self::Client(error, below(paths)),
            Self::Copy(error, paths) => Self::Copy(error, below(paths)),
            other => other,
        }
    }

    /// The exception: the subclass of OSError for the errno, ValueError for invalid arguments.
    pub(crate) fn exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Closed(what) => PyValueError::new_err(format!("I/O operation on closed {what}")),
            Self::Client(Error::Closed, _) => PyValueError::new_err("I/O operation on closed client"),
            Self::Value(text) => PyValueError::new_err(text),
            Self::Client(error @ Error::Url { .. }, _) => PyValueError::new_err(error.to_string()),
            Self::Client(error, paths) if paths.is_empty() => {
                os_error(py, errno(&error), error.to_string(), paths)
            }
            Self::Client(error, paths) => os_error(py, errno(&error), error.reason(), paths),
            Self::Copy(error, paths) => os_error(py, errno_of_copy(&error), reason_of_copy(&error), paths),
        }
    }
}

/// The text of an error without the paths, which `OSError` has.
fn reason_of_copy(error: &millrace_copy::Error) -> String {
    use millrace_copy::Error as E;
    match error {
        E::Local { action, source, .. } => format!("cannot {action} the local file: {source}"),
        E::Xattr { action, name, source, .. } => {
            format!("cannot {action} the extended attribute user.{name} of the local file: {source}")
        }
        error => error.to_string(),
    }
}

/// OSError selects its subclass by errno.
fn os_error(py: Python<'_>, errno: i32, text: String, paths: Paths) -> PyErr {
    let class = py.get_type::<PyOSError>();
    let mut paths = paths.into_iter().map(Place::into_text);
    let instance = match (paths.next(), paths.next()) {
        // The fourth argument is the error of Windows.
        (Some(path), Some(second)) => class.call1((errno, text, path, py.None(), second)),
        (Some(path), None) => class.call1((errno, text, path)),
        (None, _) => class.call1((errno, text)),
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
