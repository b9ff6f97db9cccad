//! A running server and the command, as a user has them.

#![allow(dead_code, unreachable_pub)] // Not every test file uses everything.
#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Nothing that a test waits for takes so long unless it hangs.
const HANG: Duration = Duration::from_secs(60);

/// The command.
pub fn millrace() -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_millrace"));
    c.env_remove("RUST_LOG").stdin(Stdio::null());
    c
}

/// Runs the command to its end; a hang is a failure.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    let child = millrace().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let (done, finished) = std::sync::mpsc::channel();
    let watchdog = std::thread::spawn(move || {
        if finished.recv_timeout(HANG).is_err() {
            kill(pid, "KILL");
        }
    });
    let out = child.wait_with_output().unwrap();
    let _ = done.send(());
    watchdog.join().unwrap();
    out
}

/// Runs the command, which must succeed, and gives its standard output.
pub fn ok<S: AsRef<std::ffi::OsStr> + std::fmt::Debug>(args: &[S]) -> String {
    let out = run(args);
    assert!(out.status.success(), "{args:?}: {:?}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Runs the command, which must fail with `code`, and gives its one sentence.
pub fn fails<S: AsRef<std::ffi::OsStr> + std::fmt::Debug>(code: i32, args: &[S]) -> String {
    let out = run(args);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{args:?} says more than one sentence: {said}");
    assert!(said.starts_with("millrace: "), "{said}");
    said
}

pub fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

/// A server process, killed when dropped.
pub struct Server {
    pub child: Child,
    pub ready: String,
    pub rdma: String,
    pub tcp: String,
    _out: BufReader<std::process::ChildStdout>,
}

impl Server {
    /// Starts `millrace serve` with `args` on free ports.
    pub fn start(args: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", "127.0.0.1:0", args)
    }

    pub fn start_at(rdma: &str, tcp: &str, args: &[&str]) -> Self {
        let mut child = millrace()
            .args(["serve", "--log", "error", "--listen-rdma", rdma, "--listen-tcp", tcp])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        out.read_line(&mut ready).unwrap();
        let addr = |key: &str| {
            let word = ready.split_whitespace().find_map(|w| w.strip_prefix(key));
            word.unwrap_or_else(|| panic!("no {key} in {ready:?}")).to_owned()
        };
        Self { rdma: addr("rdma="), tcp: addr("tcp="), child, ready, _out: out }
    }

    /// A URL for `path` (`/export/...`) over `proto`.
    pub fn url(&self, proto: &str, path: &str) -> String {
        let addr = if proto == "tcp" { &self.tcp } else { &self.rdma };
        format!("nfs://{addr}{path}?proto={proto}")
    }

    /// Waits until the process ends by itself.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < HANG, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Bytes without a pattern that a mistake could hide in.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Names below `dir`, in order, with kinds of entries told by a trailing `/` or `@`.
pub fn names(dir: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(at) = todo.pop() {
        for e in fs::read_dir(dir.join(&at)).unwrap() {
            let e = e.unwrap();
            let path = at.join(e.file_name());
            let t = e.file_type().unwrap();
            let mark = if t.is_dir() {
                "/"
            } else if t.is_symlink() {
                "@"
            } else {
                ""
            };
            out.push(format!("{}{mark}", path.display()));
            if t.is_dir() {
                todo.push(path);
            }
        }
    }
    out.sort();
    out
}
