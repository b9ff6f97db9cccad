//! `millrace check-config`.

use std::path::Path;

use millrace_cli_common::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_daemon::Config;

use super::copy::STDIN;
use crate::args::CheckConfigArgs;

pub(super) fn run(args: &CheckConfigArgs) -> CommandResult {
    let file = if args.file == Path::new("-") { Path::new(STDIN) } else { &args.file };
    let config = Config::check_file(file).map_err(|e| Failure::new(e.to_string()))?;
    for warning in &config.warnings {
        eprintln!("millrace: {}: {warning}", file.display());
    }
    let exports: Vec<&str> = config.server.exports.iter().map(|e| e.name.as_str()).collect();
    if exports.is_empty() {
        return Err(Failure::new(format!("{}: no exports; add an [[export]]", file.display())));
    }
    let mut line = format!("{}: valid; exports {}", file.display(), exports.join(", "));
    let targets: Vec<&str> = config.server.targets.iter().map(|t| t.name.as_str()).collect();
    if !targets.is_empty() {
        line += &format!("; targets {}", targets.join(", "));
    }
    output::line(&line)?;
    Ok(Outcome::Done)
}
