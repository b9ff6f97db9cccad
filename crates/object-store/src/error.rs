//! Errors of the client as errors of object stores.

use std::io::ErrorKind as K;

use object_store::{Error, path::Path};

/// The name of the store in [`Error::Generic`].
pub(crate) const STORE: &str = "NFS";

/// The error of an operation on the object at `location`.
pub(crate) fn at(location: &Path, e: millrace_client::Error) -> Error {
    let (path, kind, source) = (location.to_string(), e.kind(), Box::new(e));
    match kind {
        K::NotFound => Error::NotFound { path, source },
        K::AlreadyExists => Error::AlreadyExists { path, source },
        K::PermissionDenied | K::ReadOnlyFilesystem => Error::PermissionDenied { path, source },
        K::Unsupported => Error::NotSupported { source },
        _ => Error::Generic { store: STORE, source },
    }
}

/// As [`at`], of an operation on an existing object: a directory is none, and no object is below another object.
pub(crate) fn of_existing(location: &Path, e: millrace_client::Error) -> Error {
    match e.kind() {
        K::NotADirectory | K::IsADirectory => {
            Error::NotFound { path: location.to_string(), source: Box::new(e) }
        }
        _ => at(location, e),
    }
}

/// As [`of_existing`], of a read.
pub(crate) fn of_read(location: &Path, e: millrace_client::Error) -> Error {
    if millrace_objects::is_replaced(&e) {
        return generic(format!(
            "{location} was replaced, removed or truncated while it was read ({e}): read it again"
        ));
    }
    of_existing(location, e)
}

/// The error of a conditional put of an object that has another version, or does not exist.
pub(crate) fn changed(location: &Path) -> Error {
    let source = "the object has another ETag, or does not exist: read it again".into();
    Error::Precondition { path: location.to_string(), source }
}

/// The error of a request for an earlier version.
pub(crate) fn no_versions() -> Error {
    Error::NotSupported { source: "an NFS export has no earlier versions of objects".into() }
}

/// An error of no other kind.
pub(crate) fn generic(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: STORE, source: source.into() }
}
