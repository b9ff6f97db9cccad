//! `millrace completions`.

use clap::CommandFactory;

use crate::{
    args::{Cli, CompletionsArgs},
    failure::{CommandResult, Outcome},
};

pub(super) fn run(args: &CompletionsArgs) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "millrace", &mut script);
    crate::output::write(&script)?;
    Ok(Outcome::Done)
}
