//! Errors of measurements.

use std::{
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

use millrace_program::failure::Failure;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The peer process did not start, or ended early.
    #[error("the peer process failed: {0}")]
    Peer(String),
    /// An operation on a socket or file failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The operation, as a phrase after "cannot".
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// A parameter is invalid.
    #[error("{0}")]
    Parameter(String),
    /// The file system under test failed.
    #[error("{0}")]
    Client(String),
    /// A file for figures or a plot cannot be written.
    #[error("cannot {what} {path}: {reason}")]
    File {
        /// The operation, as a phrase after "cannot".
        what: &'static str,
        /// Path of the file or its directory.
        path: PathBuf,
        /// Reason of the failure.
        reason: String,
    },
    /// Memory for the working set cannot be allocated.
    #[error("{0}")]
    Memory(#[from] millrace_buffer::OutOfMemory),
}

impl BenchError {
    /// Returns a function for `map_err` that creates [`Self::Io`] for `what`.
    pub fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// Returns a function for `map_err` that creates [`Self::File`] for `path`.
    pub(crate) fn file<E: Display>(what: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |reason| Self::File { what, path: path.to_owned(), reason: reason.to_string() }
    }
}

impl From<BenchError> for Failure {
    fn from(e: BenchError) -> Self {
        match e {
            BenchError::Parameter(_) => Self::usage(e.to_string()),
            _ => Self::new(e.to_string()),
        }
    }
}
