//! `millrace completions`.

use clap::CommandFactory;
use millrace_cli_common::failure::{CommandResult, Outcome};

use crate::args::{Cli, CompletionsArgs};

pub(super) fn run(args: &CompletionsArgs) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "millrace", &mut script);
    millrace_cli_common::output::write(&script)?;
    Ok(Outcome::Done)
}
