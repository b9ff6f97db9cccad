//! `millrace check-config`.

use millrace_server::Config;

use crate::{
    args::CheckConfigArgs,
    failure::{CommandResult, Failure, Outcome},
    output,
};

pub(super) fn run(args: &CheckConfigArgs) -> CommandResult {
    let config = Config::check_file(&args.file).map_err(|e| Failure::new(e.to_string()))?;
    let exports: Vec<&str> = config.exports.iter().map(|e| e.name.as_str()).collect();
    if exports.is_empty() {
        return Err(Failure::new(format!(
            "{}: there is nothing to serve; add an [[export]]",
            args.file.display()
        )));
    }
    output::line(&format!("{}: fine; exports {}", args.file.display(), exports.join(", ")))?;
    Ok(Outcome::Done)
}
