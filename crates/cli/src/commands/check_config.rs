//! `millrace check-config`.

use std::path::Path;

use millrace_daemon::{Config, DaemonError, Diagnostic};
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use serde::Serialize;

use super::copy::STDIN;
use crate::args::CheckConfigArgs;

/// The result as JSON.
#[derive(Serialize)]
struct Report<'r> {
    file: &'r Path,
    valid: bool,
    exports: Vec<&'r str>,
    targets: Vec<&'r str>,
    errors: Vec<Found<'r>>,
    warnings: Vec<Found<'r>>,
}

#[derive(Serialize)]
struct Found<'r> {
    line: usize,
    column: usize,
    message: &'r str,
}

impl<'r> From<&'r Diagnostic> for Found<'r> {
    fn from(found: &'r Diagnostic) -> Self {
        Self { line: found.line, column: found.column, message: &found.message }
    }
}

pub(super) fn run(args: &CheckConfigArgs) -> CommandResult {
    let file = if args.file == Path::new("-") { Path::new(STDIN) } else { &args.file };
    let checked = Config::check_file(file);
    let (config, errors) = match checked {
        Ok(config) => (config, Vec::new()),
        Err(DaemonError::Config(errors)) if args.json => (Config::default(), errors),
        Err(e) => return Err(Failure::new(e.to_string())),
    };
    let exports: Vec<&str> = config.server.exports.iter().map(|e| e.name.as_str()).collect();
    let targets: Vec<&str> = config.server.targets.iter().map(|t| t.name.as_str()).collect();
    if errors.is_empty() && exports.is_empty() {
        return Err(Failure::new(format!("{}: no exports; add an [[export]]", file.display())));
    }
    if args.json {
        let valid = errors.is_empty();
        let [errors, warnings] =
            [&errors, &config.warnings].map(|list| list.iter().map(Found::from).collect());
        let report = Report { file, valid, exports, targets, errors, warnings };
        output::line(&serde_json::to_string(&report).unwrap_or_default())?;
        return Ok(if valid { Outcome::Done } else { Outcome::Failed });
    }
    for warning in &config.warnings {
        eprintln!("millrace: {warning}");
    }
    let mut line = format!("{}: valid; exports {}", file.display(), exports.join(", "));
    if !targets.is_empty() {
        line += &format!("; targets {}", targets.join(", "));
    }
    output::line(&line)?;
    Ok(Outcome::Done)
}
