//! Logs, on standard error.

use tracing_subscriber::EnvFilter;

use crate::{args::Command, failure::Failure};

/// Starts logging with `filter`, or with what suits `command`: servers and mounts tell what they do, the others only warn.
pub(crate) fn start(filter: Option<&str>, command: &Command) -> Result<(), Failure> {
    let default = match command {
        Command::Serve(_) | Command::Mount(_) => "info",
        _ => "error",
    };
    let filter = EnvFilter::try_new(filter.filter(|f| !f.trim().is_empty()).unwrap_or(default))
        .map_err(|e| Failure::usage(format!("--log: {e}; write a level such as debug, or module=level")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    Ok(())
}
