//! A place of its own for each case: network, process and mount namespaces, which the kernel takes down, with every
//! process in them, when the process that asked for them ends in whatever way.

use std::process::Command;

use anyhow::{Result, bail};

use crate::program;

/// This program with `args`, to be run in a new sandbox. The sandbox goes when the calling thread ends.
///
/// # Errors
/// When this program's own path is not known.
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
/// When this process is not alone in a sandbox, so that nobody's network is touched by mistake.
pub(crate) fn prepare() -> Result<()> {
    if std::process::id() != 1 {
        bail!("this runs only inside a sandbox; use interop/run");
    }
    program::must("ip", &["link", "set", "lo", "up"])?;
    program::must("mount", &["-t", "tmpfs", "-o", "mode=1777", "interop", "/dev/shm"])?;
    Ok(())
}
