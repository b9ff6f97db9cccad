//! `millrace completions`.

use clap::CommandFactory;
use millrace_program::failure::{CommandResult, Outcome};

use crate::args::{Cli, CompletionsArgs};

pub(super) fn run(args: &CompletionsArgs) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "millrace", &mut script);
    millrace_program::output::write(&script)?;
    Ok(Outcome::Done)
}
