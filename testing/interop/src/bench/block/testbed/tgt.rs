//! tgtd on the host.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{DISK, Subject, target};
use crate::{network::HOST, program};

/// The port of tgtd.
pub(super) const PORT: u16 = 3262;
/// The LUN of each disk; LUN 0 of tgt is a controller.
pub(super) const LUN: u32 = 1;
/// Time limit of tgtd's start.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A running tgtd, which ends when this is dropped.
pub(super) struct Tgt(Child);

impl Tgt {
    /// Starts it with a disk in `dir` and one in memory. The disks are plain files with the default backing store.
    ///
    /// # Errors
    /// When tgtd is missing, or refuses a command.
    pub(super) fn start(dir: &Path) -> Result<Self> {
        // The control socket of tgtd is in /run/tgtd.
        program::must("mount", &["-t", "tmpfs", "interop", "/run"])?;
        fs::create_dir_all("/run/tgtd")?;
        let log = File::create(dir.join("tgtd-log"))?;
        let tgtd = Command::new("tgtd")
            .args(["--foreground", "--iscsi", &format!("portal={HOST}:{PORT}")])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start tgtd (package tgt)")?;
        let tgt = Self(tgtd);
        let deadline = Instant::now() + START_LIMIT;
        while tgtadm("--op show --mode target").is_err() {
            if Instant::now() > deadline {
                bail!("tgtd is not ready: {}", fs::read_to_string(dir.join("tgtd-log"))?);
            }
            thread::sleep(Duration::from_millis(50));
        }
        let disks = [
            (Subject::TgtLocal, dir.join("tgt-disk")),
            (Subject::TgtMemory, Path::new("/dev/shm/tgt-disk").to_owned()),
        ];
        for (id, (subject, file)) in (1..).zip(disks) {
            File::create(&file)?.set_len(DISK)?;
            tgtadm(&format!("--op new --mode target --tid {id} -T {}", target(subject)))?;
            tgtadm(&format!("--op new --mode logicalunit --tid {id} --lun {LUN} -b {}", file.display()))?;
            tgtadm(&format!("--op bind --mode target --tid {id} -I ALL"))?;
        }
        Ok(tgt)
    }

    /// The process ID.
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        // An error means that tgtd has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tgtadm(command: &str) -> Result<()> {
    let args: Vec<&str> = ["--lld", "iscsi"].into_iter().chain(command.split(' ')).collect();
    program::must("tgtadm", &args).map(drop)
}
