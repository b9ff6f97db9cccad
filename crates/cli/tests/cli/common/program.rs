//! Runs a program of this workspace. The parent module defines its path `PROGRAM` and its name `NAME`.

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

use super::{NAME, PROGRAM};

/// Time limit of a program; only a hang takes longer, also of a debug build on busy processors.
pub const HANG: Duration = Duration::from_secs(300);

/// The program, without input.
pub fn program() -> Command {
    let mut c = Command::new(PROGRAM);
    c.env_remove("RUST_LOG").stdin(Stdio::null());
    c
}

/// Runs the program to its end; a hang is a failure.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    let child = program().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
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

/// Runs the program, which must succeed, and returns its standard output.
pub fn ok<S: AsRef<std::ffi::OsStr> + std::fmt::Debug>(args: &[S]) -> String {
    let out = run(args);
    assert!(out.status.success(), "{args:?}: {:?}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Whether a line belongs to the excerpt of a file below an error.
fn is_excerpt(line: &str) -> bool {
    line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).starts_with('|')
}

/// Runs the program, which must fail with `code`, and returns its one sentence, with the excerpt of a file.
pub fn fails<S: AsRef<std::ffi::OsStr> + std::fmt::Debug>(code: i32, args: &[S]) -> String {
    let out = run(args);
    let message = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {message}");
    let sentences = message.lines().filter(|line| !is_excerpt(line)).count();
    assert_eq!(sentences, 1, "{args:?} says more than one sentence: {message}");
    assert!(message.starts_with(&format!("{NAME}: ")), "{message}");
    message
}

/// Sends a signal to a process.
pub fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap();
    assert!(status.success());
}
