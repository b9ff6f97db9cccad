//! Helpers of the tests that run the program: `millrace` is the command, `Server` a process `millrace serve`
//! that ends with the test, and `mounting` has mounts through FUSE.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

pub mod mounting;
mod program;

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

pub use program::*;
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

const NAME: &str = "millrace";
const PROGRAM: &str = env!("CARGO_BIN_EXE_millrace");

/// The command.
pub fn millrace() -> Command {
    program()
}

/// Runs the shell `script`, which must succeed, with the program as `$0` and `args` as `$1`... Returns its standard error.
pub fn shell(script: &str, args: &[&str]) -> String {
    let out = Command::new("sh").args(["-c", script, PROGRAM]).args(args).output().unwrap();
    assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stderr).unwrap()
}

/// A server process, killed when dropped.
pub struct Server {
    pub child: Child,
    pub ready: String,
    pub rdma: String,
    pub tcp: String,
    out: BufReader<std::process::ChildStdout>,
}

/// Address of a server that restarts. Not 127.0.0.1: there, another connection may get the free port as its local one.
pub const RESTARTS_AT: &str = "127.0.0.2:0";

impl Server {
    /// Starts `millrace serve` with `args` on free ports.
    pub fn start(args: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", "127.0.0.1:0", args)
    }

    pub fn start_at(rdma: &str, tcp: &str, args: &[&str]) -> Self {
        Self::start_with(rdma, tcp, args)
    }

    /// As `start_at`, with arguments that need not be UTF-8.
    pub fn start_with<S: AsRef<OsStr>>(rdma: &str, tcp: &str, args: &[S]) -> Self {
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
        Self { rdma: addr("rdma="), tcp: addr("tcp="), child, ready, out }
    }

    /// A URL for `path` (`/export/...`) over `proto`.
    pub fn url(&self, proto: &str, path: &str) -> String {
        let addr = if proto == "tcp" { &self.tcp } else { &self.rdma };
        format!("nfs://{addr}{path}?proto={proto}")
    }

    /// The metrics of a server with an address for them.
    pub fn metrics(&self) -> String {
        let addr = self.ready.split("metrics=").nth(1).unwrap().trim();
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// The next line on standard output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    /// Waits until the process exits.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        wait_for(&mut self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until a server process exits; a hang is a failure.
pub fn wait_for(child: &mut Child) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < HANG, "the server does not exit");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Pseudo-random bytes.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SplitMix64::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Sorted paths below `dir`; directories end with `/`, symbolic links with `@`.
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
