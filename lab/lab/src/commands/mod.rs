//! The commands of `millrace-lab`, one file each.
//!
//! `run` executes the command of a parsed command line (`args`) and returns its `CommandResult`, from which
//! `main` derives the exit status.

mod breakdown;
mod iozone;
mod reproduce;
mod serve;
mod simulate;
mod study;
mod wan;
mod workload;

use millrace_program::failure::CommandResult;

use crate::{
    args::{Cli, Command},
    security,
};

/// Executes the command line.
pub(crate) fn run(cli: &Cli) -> CommandResult {
    let global = &cli.global;
    match &cli.command {
        Command::Iozone(args) => iozone::run(global, args),
        Command::Breakdown(args) => breakdown::run(global, args),
        Command::Security(args) => security::run(args),
        Command::Fileop(args) => workload::run(global, &args.fileop(), &args.place),
        Command::Postmark(args) => workload::run(global, &args.postmark(), &args.place),
        Command::Untar(args) => workload::run(global, &args.untar(), &args.place),
        Command::Compile(args) => workload::run(global, &args.compile(), &args.place),
        Command::Oltp(args) => workload::run(global, &args.oltp(), &args.place),
        Command::Btio(args) => workload::run(global, &args.btio(), &args.place),
        Command::Tile(args) => workload::run(global, &args.tile(), &args.place),
        Command::Latency(args) => workload::run(global, &args.latency(), &args.place),
        Command::Clients(args) => workload::run(global, &args.clients(), &args.place),
        Command::Wan(args) => wan::run(global, args),
        Command::Simulate(args) => simulate::run(global, args),
        Command::Reproduce(args) => reproduce::run(args),
        Command::Study(args) => study::run(args),
        Command::Serve(args) => serve::run(global, args),
    }
}

fn warn_of_debug_build() {
    millrace_program::warn_of_debug_build("millrace-lab");
}
