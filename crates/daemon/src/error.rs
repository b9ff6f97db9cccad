//! Errors of a daemon.

use std::{io, net::SocketAddr, path::PathBuf};

use millrace_server::ServerError;

use crate::{AccessError, Diagnostic};

/// The reason why a configuration is invalid or a daemon cannot start. Each message is one sentence for the
/// administrator; those of a configuration file have an excerpt of it below.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The text of a configuration file is invalid.
    #[error("{}", listed(.0))]
    Config(Vec<Diagnostic>),
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    ReadConfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The metrics endpoint cannot listen.
    #[error("cannot listen on {addr} (metrics): {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The certificate or the token of the metrics endpoint cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The server cannot start, or its configuration is invalid.
    #[error(transparent)]
    Server(#[from] ServerError),
}

fn listed(errors: &[Diagnostic]) -> String {
    let lines = errors.iter().flat_map(|e| [Some(e.to_string()), e.excerpt.clone()]);
    lines.flatten().collect::<Vec<_>>().join("\n")
}
