//! The guest's first process: prepares the guest and runs the host's commands.
//!
//! The host sends the number of a command on a terminal, `12\n`. The command's script is `guestN/12.sh` in
//! the directory of the case, which the guest has mounted below `/host` like all files of the host. Its
//! output goes to `12.out` and `12.err` beside it. When the command has ended, the agent sends `12 STATUS\n`.
//! Commands run concurrently.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, anyhow};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use crate::program::{must, status};

/// Directory where a guest mounts the host's files.
pub(crate) const HOST_FILES: &str = "/host";
/// File systems that every guest mounts: type, mount point, options.
const MOUNTS: [(&str, &str, &str); 10] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("tmpfs", "/run", "mode=755"),
    ("tmpfs", "/tmp", "mode=1777"),
    ("tmpfs", "/mnt", "mode=755"),
    ("tmpfs", "/var/lib/nfs", "mode=755"),
    ("tmpfs", "/etc/iscsi", "mode=755"),
    ("tmpfs", "/dev/shm", "mode=1777"),
    ("devpts", "/dev/pts", ""),
    ("configfs", "/sys/kernel/config", ""),
];

/// Runs the agent until the host closes its end or powers the guest off.
///
/// # Errors
/// When the guest cannot be prepared. The guest then ends.
pub(crate) fn run() -> Result<()> {
    prepare()?;
    let terminal = setting("terminal")?;
    let console = File::options().read(true).write(true).open(&terminal).context(terminal)?;
    let mut mode = tcgetattr(&console)?;
    mode.make_raw();
    tcsetattr(&console, OptionalActions::Now, &mode)?;
    let dir = PathBuf::from(format!("{HOST_FILES}{}", setting("commands")?));
    let answers = Arc::new(Mutex::new(console.try_clone()?));
    answer(&answers, "ready 0");
    for line in BufReader::new(console).lines() {
        let (id, dir, answers) = (line?, dir.clone(), Arc::clone(&answers));
        std::thread::spawn(move || {
            let status = execute(&dir, &id).unwrap_or_else(|e| {
                eprintln!("agent: command {id}: {e:#}");
                127
            });
            answer(&answers, &format!("{id} {status}"));
        });
    }
    Ok(())
}

/// A setting of the kernel's command line. The kernel passes parameters that it does not recognise,
/// `NAME=VALUE`, to its first process as environment variables.
fn setting(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| anyhow!("the kernel's command line has no {name}="))
}

fn prepare() -> Result<()> {
    for (kind, at, options) in MOUNTS {
        fs::create_dir_all(at).with_context(|| format!("cannot create {at}"))?;
        must("mount", &["-t", kind, "-o", if options.is_empty() { "defaults" } else { options }, kind, at])?;
    }
    for dir in ["/var/lib/nfs/v4recovery", "/run/rpcbind", "/run/sendsigs.omit.d", "/run/rpc_pipefs"] {
        fs::create_dir_all(dir)?;
    }
    // Shells implement `<( )` with /dev/fd.
    if !Path::new("/dev/fd").exists() {
        symlink("/proc/self/fd", "/dev/fd")?;
    }
    must("ip", &["link", "set", "lo", "up"])?;
    must("ip", &["addr", "add", &format!("{}/24", setting("address")?), "dev", "vec0"])?;
    must("ip", &["link", "set", "vec0", "up"])?;
    Ok(())
}

fn execute(dir: &Path, id: &str) -> Result<i32> {
    let file = |kind: &str| dir.join(format!("{id}.{kind}"));
    let (out, err) = (File::create(file("out"))?, File::create(file("err"))?);
    let exit = Command::new("bash")
        .arg(file("sh"))
        .current_dir("/tmp")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .status()?;
    // The host reads the files after the answer.
    out.sync_all()?;
    err.sync_all()?;
    Ok(status(exit))
}

fn answer(to: &Mutex<File>, text: &str) {
    if let Ok(mut console) = to.lock()
        && let Err(e) = console.write_all(format!("{text}\n").as_bytes())
    {
        eprintln!("agent: cannot answer: {e}");
    }
}
