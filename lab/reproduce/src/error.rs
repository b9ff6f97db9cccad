//! Errors of reproductions and studies.

use std::{io, path::PathBuf};

/// A report or study that could not be produced. A failed claim is not an error.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// The claim does not exist.
    #[error("there is no claim {asked:?}; the claims are: {known}")]
    Unknown {
        /// The requested name.
        asked: String,
        /// The names of all claims.
        known: String,
    },
    /// The study does not exist.
    #[error("there is no study {asked:?}; the studies are: {known}")]
    UnknownStudy {
        /// The requested name.
        asked: String,
        /// The names of all studies.
        known: String,
    },
    /// A study failed.
    #[error(transparent)]
    Study(#[from] millrace_bench::BenchError),
    /// A plot could not be written.
    #[error(transparent)]
    Picture(#[from] millrace_plot::PlotError),
    /// A file of the report could not be written, or read back.
    #[error("cannot write {}: {source}; name another directory with --out", path.display())]
    File {
        /// The file, or its directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The figures could not be converted to JSON.
    #[error("cannot write the claims as JSON: {0}")]
    Json(#[from] serde_json::Error),
}
