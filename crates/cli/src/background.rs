//! Background operation: the command line is executed again in a child process.

use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};

/// Environment variable that marks the background process.
const BACKGROUND: &str = "MILLRACE_MOUNT_BACKGROUND";

/// Whether this process is the background process.
pub(crate) fn is_background_process() -> bool {
    std::env::var_os(BACKGROUND).is_some()
}

/// Runs `serve` in this process or, if `daemon`, in a background process, and then returns when it is ready or has failed.
/// `serve` calls [`ready`].
pub(crate) fn run(daemon: bool, serve: impl FnOnce() -> CommandResult) -> CommandResult {
    if daemon {
        if !is_background_process() {
            return start();
        }
        leave_terminal()?;
    }
    serve()
}

/// Prints the line `ready` with `what` is ready, and calls `serve`. If `daemon`, the starting process then exits, standard
/// error is closed, and the failure of `serve` is logged.
pub(crate) fn ready(daemon: bool, what: &str, serve: impl FnOnce() -> CommandResult) -> CommandResult {
    output::line(&format!("ready {what}"))?;
    if !daemon {
        return serve();
    }
    redirect_stdio();
    let end = serve();
    if let Err(failure) = &end {
        tracing::error!("{failure}");
    }
    end
}

/// Executes this command line again in this process, with `argument` replaced by `instead`, and with an environment
/// variable: all users can read the arguments of a process, and only its user the environment. Returns if that fails.
pub(crate) fn execute_without(argument: &str, instead: &str, (variable, value): (&str, &OsStr)) -> io::Error {
    let mut line = std::env::args_os();
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => return e,
    };
    let mut command = Command::new(program);
    command.arg0(line.next().unwrap_or_default()).env(variable, value);
    command.args(line.map(|arg| if arg == argument { instead.into() } else { arg }));
    command.exec()
}

/// Executes this command line again in a child process, and waits until the child is ready or has failed.
fn start() -> CommandResult {
    let failed = |e: io::Error| Failure::new(format!("cannot go to the background: {e}"));
    let mut line = std::env::args_os();
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg0(line.next().unwrap_or_default()).args(line).env(BACKGROUND, "1");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut line_read = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line_read).map_err(failed)?;
    }
    if line_read.starts_with("ready") {
        return Ok(Outcome::Done);
    }
    child.wait().map_err(failed)?;
    Err(Failure::silent()) // The child has printed the error.
}

/// Detaches from the controlling terminal; standard error stays open until [`redirect_stdio`].
fn leave_terminal() -> Result<(), Failure> {
    rustix::process::setsid().map_err(|e| Failure::new(format!("cannot leave the terminal: {e}")))?;
    Ok(())
}

/// Redirects standard input, output and error to /dev/null, and logs panics.
fn redirect_stdio() {
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}
