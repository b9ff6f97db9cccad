//! The commands, one file each.

mod bench;
mod completions;

use crate::{
    args::Command,
    failure::{CommandResult, Failure},
};

/// Does what the command line says.
pub(crate) fn run(command: Command) -> CommandResult {
    match command {
        Command::Bench(args) => bench::run(args.command),
        Command::Completions(args) => completions::run(&args),
        _ => Err(Failure::new("this command is not there yet")),
    }
}
