//! The `millrace-lab` program: research on RPC-over-RDMA designs, memory registration and simulated machines.

mod args;
mod breakdown;
mod commands;
mod consent;
mod matrix;
mod plots;
mod security;
mod settings;

use std::process::ExitCode;

use clap::Parser;
use millrace_program::{coloured_log, failure::Failure};
use tracing_subscriber::EnvFilter;

use crate::args::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let checked = cli.check().map_err(Failure::usage);
    match checked.and_then(|()| start_log(cli.global.log.as_deref())).and_then(|()| commands::run(&cli)) {
        Ok(outcome) => outcome.exit_code(),
        Err(failure) => {
            if !failure.is_silent() {
                eprintln!("millrace-lab: {failure}");
            }
            failure.exit_code()
        }
    }
}

/// Initialises logging to standard error.
fn start_log(filter: Option<&str>) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter.filter(|f| !f.trim().is_empty()).unwrap_or("error"))
        .map_err(|e| Failure::usage(format!("--log: {e}; specify a level such as debug, or module=level")))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(coloured_log()).init();
    Ok(())
}
