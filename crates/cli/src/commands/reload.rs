//! `millrace reload`.

use millrace_cli_common::{
    failure::{CommandResult, Outcome},
    output,
};

use crate::{args::ReloadArgs, control};

pub(super) fn run(args: &ReloadArgs) -> CommandResult {
    output::line(&control::reload(&args.socket)?)?;
    Ok(Outcome::Done)
}
