//! The program `millrace`: command line parsing, commands, and their output.

mod activation;
mod args;
mod background;
mod commands;
mod control;
mod copy_summary;
mod demo;
mod describe;
mod doctor;
mod file_error;
mod interrupt;
mod logging;
mod manual;
mod progress;
mod reachable;
mod scratch;
mod session;
mod state;
mod system_log;
mod top;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;

fn main() -> ExitCode {
    let line = args::expand_mount_helper(std::env::args_os().collect());
    let cli = Cli::parse_from(args::expand_find(line));
    session::set_global(&cli.global);
    let started = logging::start(&cli.global, &cli.command);
    match started.and_then(|()| commands::run(cli.command)) {
        Ok(outcome) => outcome.exit_code(),
        Err(failure) => {
            if !failure.is_silent() {
                eprintln!("millrace: {failure}");
            }
            failure.exit_code()
        }
    }
}
