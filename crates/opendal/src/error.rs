//! Errors of the client as errors of OpenDAL.

use std::io::ErrorKind as K;

use opendal_core::{Error, ErrorKind};

/// The error of an operation.
pub(crate) fn convert(e: millrace_client::Error) -> Error {
    let kind = match e.kind() {
        K::NotFound => ErrorKind::NotFound,
        K::AlreadyExists => ErrorKind::AlreadyExists,
        K::PermissionDenied | K::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        K::IsADirectory => ErrorKind::IsADirectory,
        K::NotADirectory => ErrorKind::NotADirectory,
        K::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Unexpected,
    };
    let error = Error::new(kind, e.to_string());
    let error = if e.is_unreachable() { error.set_temporary() } else { error };
    error.set_source(e)
}

/// As [`convert`], of an operation on an existing file: no file is below another file.
pub(crate) fn of_existing(e: millrace_client::Error) -> Error {
    match e.kind() {
        K::NotADirectory => Error::new(ErrorKind::NotFound, e.to_string()).set_source(e),
        _ => convert(e),
    }
}

/// As [`convert`], of an operation with the condition that the target does not exist.
pub(crate) fn if_not_exists(e: millrace_client::Error) -> Error {
    match e.kind() {
        K::AlreadyExists => Error::new(ErrorKind::ConditionNotMatch, e.to_string()).set_source(e),
        _ => convert(e),
    }
}

/// The error of a write on the condition that the file has an ETag, if it has another one or does not exist.
pub(crate) fn changed() -> Error {
    Error::new(ErrorKind::ConditionNotMatch, "the file has another ETag, or does not exist: read it again")
}

/// The error of an operation that is not supported.
pub(crate) fn unsupported(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}
