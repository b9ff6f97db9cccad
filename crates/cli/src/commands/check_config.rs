//! `millrace check-config`.

use millrace_cli_common::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_daemon::Config;

use crate::args::CheckConfigArgs;

pub(super) fn run(args: &CheckConfigArgs) -> CommandResult {
    let config = Config::check_file(&args.file).map_err(|e| Failure::new(e.to_string()))?;
    for warning in &config.warnings {
        eprintln!("millrace: {}: {warning}", args.file.display());
    }
    let exports: Vec<&str> = config.server.exports.iter().map(|e| e.name.as_str()).collect();
    if exports.is_empty() {
        return Err(Failure::new(format!("{}: no exports; add an [[export]]", args.file.display())));
    }
    let mut line = format!("{}: valid; exports {}", args.file.display(), exports.join(", "));
    let targets: Vec<&str> = config.server.targets.iter().map(|t| t.name.as_str()).collect();
    if !targets.is_empty() {
        line += &format!("; targets {}", targets.join(", "));
    }
    output::line(&line)?;
    Ok(Outcome::Done)
}
