//! Running programs on the host side.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// What a program, or a command in a guest, left behind.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// What ran, for messages.
    pub(crate) what: String,
    /// Exit status; 128 + N for signal N, 124 when its time was up.
    pub(crate) status: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Output {
    /// The output of a success.
    ///
    /// # Errors
    /// With the program's own words when its status is not zero.
    pub(crate) fn ok(self) -> Result<Self> {
        if self.status != 0 {
            let words = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
            bail!("`{}` ended with status {}: {}", self.what, self.status, tail(words));
        }
        Ok(self)
    }

    /// Standard error of a failure.
    ///
    /// # Errors
    /// When the program succeeded.
    pub(crate) fn failed(self) -> Result<String> {
        if self.status == 0 {
            bail!("`{}` succeeded and should have failed", self.what);
        }
        Ok(self.stderr)
    }
}

/// The last lines of `text`, on one line.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let from = lines.len().saturating_sub(5);
    lines.get(from..).unwrap_or_default().join(" | ")
}

/// Runs `program` to its end, killed when it takes longer than `limit`.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn run(program: &str, args: &[&str], limit: Duration) -> Result<Output> {
    let what = format!("{program} {}", args.join(" "));
    let out = Command::new("timeout")
        .args(["--kill-after=5", &limit.as_secs().to_string(), program])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{what}`"))?;
    Ok(Output {
        what,
        status: status(out.status),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}

/// An exit status as a shell gives it.
pub(crate) fn status(s: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    s.code().unwrap_or_else(|| 128 + s.signal().unwrap_or(0))
}

/// Runs a short system command, such as `ip`, that has to succeed.
///
/// # Errors
/// When it does not.
pub(crate) fn must(program: &str, args: &[&str]) -> Result<Output> {
    run(program, args, Duration::from_secs(20))?.ok()
}

/// A server program, which is killed when this is dropped.
pub(crate) struct Background(Child);

impl Background {
    /// Starts `command`, with standard error in the file `log`, and waits for its line `ready ...`.
    ///
    /// # Errors
    /// When it cannot be started, or prints something else.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut server = Self(command.spawn().with_context(|| format!("cannot start {command:?}"))?);
        let mut line = String::new();
        if let Some(out) = server.0.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        if !line.starts_with("ready ") {
            bail!("{command:?} is not ready: {}", fs::read_to_string(log)?);
        }
        Ok(server)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
