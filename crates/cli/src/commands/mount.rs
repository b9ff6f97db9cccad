//! `millrace mount`.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::Duration,
};

use fuse::{Mount, MountError, MountOptions};

use super::serve::Signals;
use crate::{
    args::MountArgs,
    failure::{CommandResult, Failure, Outcome},
    output, session,
};

/// In the environment of the process that goes to the background.
const BACKGROUND: &str = "MILLRACE_MOUNT_BACKGROUND";

pub(super) fn run(args: &MountArgs) -> CommandResult {
    let url = session::parse(&args.url)?;
    let mut options = MountOptions::default();
    for list in &args.options {
        options.read(list, args.sloppy).map_err(|e| failure(&e))?;
    }
    if args.fake {
        return Ok(Outcome::Done);
    }
    let in_background = std::env::var_os(BACKGROUND).is_some();
    if args.daemon && !in_background {
        return start_in_background();
    }
    if in_background {
        rustix::process::setsid().map_err(|e| Failure::new(format!("cannot leave the terminal: {e}")))?;
    }
    // Signals have an executor of their own: the mount brings its threads itself.
    let rt = crate::executor::small()?;
    let mut signals = rt.block_on(async { Signals::new() })?;
    let mount = Mount::new(&url, &args.dir, &options, session::options()).map_err(|e| failure(&e))?;
    let path = mount.path().to_owned();
    output::line(&format!("ready {}", path.display()))?;
    if in_background {
        silence();
    }
    rt.block_on(async {
        tokio::select! {
            name = signals.end() => {
                tracing::info!("{name}: writing what is not written, then unmounting; a second signal ends at once");
            }
            () = mount.ended() => tracing::info!("{} was unmounted", path.display()),
        }
    });
    let (say, done) = tokio::sync::oneshot::channel();
    let grace = Duration::from_secs(args.grace);
    std::thread::spawn(move || say.send(mount.unmount(grace)));
    rt.block_on(async {
        tokio::select! {
            done = done => match done {
                Ok(done) => done.map(|()| Outcome::Done).map_err(|e| failure(&e)),
                Err(_) => Err(Failure::new("unmounting broke off")),
            },
            name = signals.end() => {
                tracing::warn!("{name} again: what is not written is lost");
                let _ = fuse::detach(&path);
                std::process::exit(1)
            }
        }
    })
}

fn failure(e: &MountError) -> Failure {
    match e {
        MountError::Option { .. } => Failure::usage(e.to_string()),
        _ => Failure::new(e.to_string()),
    }
}

/// Runs this command line again in a process of its own, and waits until its mount can be used or it has said why not.
fn start_in_background() -> CommandResult {
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

/// Nobody reads what a process in the background says.
fn silence() {
    let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}
