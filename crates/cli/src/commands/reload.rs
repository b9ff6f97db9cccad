//! `millrace reload`.

use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};

use crate::{
    args::ReloadArgs,
    control::{Request, ask},
};

pub(super) fn run(args: &ReloadArgs) -> CommandResult {
    let done = ask(&args.socket, &Request::Reload)?;
    let done = done.map_err(|why| Failure::new(format!("the server changed nothing: {why}")))?;
    output::line(&done)?;
    Ok(Outcome::Done)
}
