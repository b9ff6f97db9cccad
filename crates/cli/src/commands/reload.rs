//! `millrace reload`.

use crate::{
    args::ReloadArgs,
    control,
    failure::{CommandResult, Outcome},
    output,
};

pub(super) fn run(args: &ReloadArgs) -> CommandResult {
    output::line(&control::reload(&args.socket)?)?;
    Ok(Outcome::Done)
}
