//! The command, as a user has it.

#![allow(dead_code, unreachable_pub)] // Not every test file uses everything.
#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

/// A command that takes longer hangs.
const HANG: Duration = Duration::from_secs(60);

/// Runs the command to its end; a hang is a failure.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    command.env_remove("RUST_LOG").stdin(Stdio::null()).args(args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let (done, finished) = std::sync::mpsc::channel();
    let watchdog = std::thread::spawn(move || {
        if finished.recv_timeout(HANG).is_err() {
            drop(Command::new("kill").args(["-KILL", &pid.to_string()]).status());
        }
    });
    let out = child.wait_with_output().unwrap();
    let _ = done.send(());
    watchdog.join().unwrap();
    out
}

/// Runs the command, which must succeed, and returns its standard output.
pub fn ok<S: AsRef<std::ffi::OsStr> + std::fmt::Debug>(args: &[S]) -> String {
    let out = run(args);
    assert!(out.status.success(), "{args:?}: {:?}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Runs the command, which must fail with `code`, and returns its one sentence.
pub fn fails<S: AsRef<std::ffi::OsStr> + std::fmt::Debug>(code: i32, args: &[S]) -> String {
    let out = run(args);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{args:?} says more than one sentence: {said}");
    assert!(said.starts_with("millrace-lab: "), "{said}");
    said
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
