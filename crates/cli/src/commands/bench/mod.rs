//! `millrace bench`.

mod raw;

use crate::{
    args::BenchCommand,
    failure::{CommandResult, Failure, Outcome},
};

pub(super) fn run(command: BenchCommand) -> CommandResult {
    match command {
        BenchCommand::Raw(args) => raw::run(&args),
        BenchCommand::RawPeer => {
            bench::raw::serve_peer()?;
            Ok(Outcome::Done)
        }
        BenchCommand::Iozone(_) | BenchCommand::Compare(_) => {
            Err(Failure::new("this bench is not there yet"))
        }
    }
}
