//! Going to the background: the command line is run again in a process of its own.

use millrace_cli_common::failure::{CommandResult, Failure, Outcome};
use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use crate::system_log::{NAME, SystemLog};

/// In the environment of the process that goes to the background.
const BACKGROUND: &str = "MILLRACE_MOUNT_BACKGROUND";

/// Whether this is the process that goes to the background.
pub(crate) fn is_here() -> bool {
    std::env::var_os(BACKGROUND).is_some()
}

/// Runs this command line again in a process of its own, and waits until that one is ready or has said why not.
pub(crate) fn start() -> CommandResult {
    let failed = |e: std::io::Error| Failure::new(format!("cannot go to the background: {e}"));
    let mut line = std::env::args_os();
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg0(line.next().unwrap_or_default()).args(line).env(BACKGROUND, "1");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut said).map_err(failed)?;
    }
    if said.starts_with("ready") {
        return Ok(Outcome::Done);
    }
    child.wait().map_err(failed)?;
    Err(Failure::silent()) // It has said why.
}

/// Leaves the terminal, which sees the log until [`silence`].
pub(crate) fn leave_terminal() -> Result<(), Failure> {
    rustix::process::setsid().map_err(|e| Failure::new(format!("cannot leave the terminal: {e}")))?;
    Ok(())
}

/// Says where the log goes from now on, while somebody reads it here.
pub(crate) fn say_where_it_logs() {
    match SystemLog::find() {
        Ok(_) => tracing::info!(
            "in the background; the log goes on in the system log, as {NAME}[{}] (journald: journalctl -t {NAME})",
            std::process::id()
        ),
        Err(e) => tracing::warn!(
            "there is no system log ({e}), so nobody will see what goes wrong in the background; \
             to see it, leave out --daemon, which keeps the mount in the foreground"
        ),
    }
}

/// Nobody reads what a process in the background writes to its standard output and error; a panic is logged instead.
pub(crate) fn silence() {
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}
