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

/// As [`at`], of an operation on an existing object: an object cannot be below another object.
pub(crate) fn of_existing(location: &Path, e: millrace_client::Error) -> Error {
    match e.kind() {
        K::NotADirectory => Error::NotFound { path: location.to_string(), source: Box::new(e) },
        _ => at(location, e),
    }
}

/// Whether the file of an open handle has been removed or replaced.
pub(crate) fn is_stale(e: &millrace_client::Error) -> bool {
    e.kind() == K::StaleNetworkFileHandle
}

/// The error if there is something else than an object at `location`.
pub(crate) fn not_an_object(location: &Path, what: millrace_client::FileType) -> Error {
    let source = format!("not a regular file but a {what:?}").to_lowercase().into();
    Error::NotFound { path: location.to_string(), source }
}

/// The error if an object is replaced, removed or truncated while it is read.
pub(crate) fn changed(location: &Path) -> Error {
    let source = format!("{location} was replaced, removed or truncated while it was read: read it again");
    Error::Generic { store: STORE, source: source.into() }
}
