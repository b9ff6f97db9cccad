//! Why there is no report.

use std::{io, path::PathBuf};

/// Why there is no report. A claim that fails is none of these.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// There is no claim of that name.
    #[error("there is no claim {asked:?}; there are: {known}")]
    Unknown {
        /// What was asked for.
        asked: String,
        /// All claims.
        known: String,
    },
    /// There is no study of that name.
    #[error("there is no study {asked:?}; there are: {known}")]
    UnknownStudy {
        /// What was asked for.
        asked: String,
        /// All studies.
        known: String,
    },
    /// A study did not come to its end.
    #[error(transparent)]
    Study(#[from] millrace_bench::BenchError),
    /// A picture could not be written.
    #[error(transparent)]
    Picture(#[from] millrace_plot::PlotError),
    /// A file of the report could not be written, or read back.
    #[error("cannot write {}: {source}; name another directory with --out", path.display())]
    File {
        /// The file, or its directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The figures could not be put into JSON.
    #[error("cannot write the claims as JSON: {0}")]
    Json(#[from] serde_json::Error),
}
