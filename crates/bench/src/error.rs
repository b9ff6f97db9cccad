//! Why a measurement failed.

use std::{
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The peer process did not start or stopped early.
    #[error("the peer process failed: {0}")]
    Peer(String),
    /// A socket or file failed while doing the named thing.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried, as a phrase that follows "cannot".
        what: &'static str,
        /// What the machine said.
        source: io::Error,
    },
    /// A parameter makes no sense.
    #[error("{0}")]
    Parameter(String),
    /// The file system under test failed.
    #[error("{0}")]
    Client(String),
    /// A file for figures or a picture could not be written.
    #[error("cannot {what} {path}: {reason}")]
    File {
        /// What was tried.
        what: &'static str,
        /// The file, or its directory.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// There is no memory for the working set.
    #[error("{0}")]
    Memory(#[from] millrace_buffer::OutOfMemory),
}

impl BenchError {
    /// An [`Self::Io`] for `what`, to be used with `map_err`.
    pub fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// A [`Self::File`] for `path`, to be used with `map_err`.
    pub(crate) fn file<E: Display>(what: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |reason| Self::File { what, path: path.to_owned(), reason: reason.to_string() }
    }
}
