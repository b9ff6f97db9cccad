//! Processes that mount.

#[path = "../../../../fuse-session/tests/common/mounts.rs"]
mod mounts;

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

pub use mounts::{fuse_is_available, is_mounted};

use super::HANG;

/// A process that mounts, ended when dropped.
pub struct Mounting {
    pub child: Child,
    pub at: PathBuf,
    /// The line that it printed when the mount was ready.
    pub ready: String,
    pub err: Option<BufReader<ChildStderr>>,
}

impl Mounting {
    /// Runs `command`, which mounts on `at`, and waits until the mount is ready.
    pub fn start(mut command: Command, at: &Path) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let err = child.stderr.take().map(BufReader::new);
        let mut mounting = Self { child, at: at.canonicalize().unwrap(), ready: String::new(), err };
        let mut out = BufReader::new(mounting.child.stdout.take().unwrap());
        out.read_line(&mut mounting.ready).unwrap();
        if !mounting.ready.starts_with("ready ") {
            let log = mounting.end().1;
            panic!("{}{log}", mounting.ready);
        }
        mounting
    }

    /// Waits for the next line of its log that contains `words`.
    pub fn wait_for_log(&mut self, words: &str) -> String {
        let lines = self.err.as_mut().unwrap().lines();
        lines.map(|l| l.unwrap()).find(|l| l.contains(words)).unwrap()
    }

    /// Waits until it exits; returns its status and the rest of its log.
    pub fn end(&mut self) -> (ExitStatus, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < HANG, "the process does not exit");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut message = String::new();
        self.err.take().unwrap().read_to_string(&mut message).unwrap();
        assert!(!is_mounted(&self.at), "{message}");
        (status, message)
    }
}

impl Drop for Mounting {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if is_mounted(&self.at) {
            drop(Command::new("umount").arg("-l").arg(&self.at).status());
        }
    }
}
