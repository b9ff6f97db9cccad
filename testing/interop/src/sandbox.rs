//! The sandbox of a case: network, process and mount namespaces. The kernel removes them, with every process
//! in them, when the process that created them ends in any way.

use std::process::Command;

use anyhow::{Result, bail};

use crate::program;

/// This program with `args` in a new sandbox. The sandbox ends with the calling thread.
///
/// # Errors
/// When the path of this program is unknown.
pub(crate) fn command(args: &[&str]) -> Result<Command> {
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .arg(std::env::current_exe()?)
        .args(args);
    Ok(command)
}

/// Prepares the sandbox from inside: the loopback device, and shared memory for the guests' RAM.
///
/// # Errors
/// When this process is not the first of a sandbox. The check prevents changes to the host's network.
pub(crate) fn prepare() -> Result<()> {
    if std::process::id() != 1 {
        bail!("this runs only inside a sandbox; use testing/interop/run");
    }
    program::must("ip", &["link", "set", "lo", "up"])?;
    program::must("mount", &["-t", "tmpfs", "-o", "mode=1777", "interop", "/dev/shm"])?;
    Ok(())
}
