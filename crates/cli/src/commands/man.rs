//! `millrace man`.

use clap::CommandFactory;
use millrace_cli_common::failure::{CommandResult, Failure, Outcome};

use crate::args::{Cli, ManArgs};

pub(super) fn run(args: &ManArgs) -> CommandResult {
    let written =
        std::fs::create_dir_all(&args.dir).and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir));
    written
        .map_err(|e| Failure::new(format!("cannot write the manual pages to {}: {e}", args.dir.display())))?;
    Ok(Outcome::Done)
}
