//! Runs programs on the host.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// The result of a program, or of a command in a guest.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// The command, for messages.
    pub(crate) what: String,
    /// Exit status; 128 + N for signal N, 124 after a timeout.
    pub(crate) status: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Output {
    /// The output of a successful program.
    ///
    /// # Errors
    /// With the program's error output when its status is not zero.
    pub(crate) fn ok(self) -> Result<Self> {
        if self.status != 0 {
            let text = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
            bail!("`{}` ended with status {}: {}", self.what, self.status, tail(text));
        }
        Ok(self)
    }

    /// Standard error of a failed program.
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

/// The last lines of `text`, joined in one line.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let from = lines.len().saturating_sub(5);
    lines.get(from..).unwrap_or_default().join(" | ")
}

/// Runs `program` to its end, or kills it after `limit`.
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

/// The exit status as a shell reports it.
pub(crate) fn status(s: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    s.code().unwrap_or_else(|| 128 + s.signal().unwrap_or(0))
}

/// Runs a short system command, such as `ip`, which must succeed.
///
/// # Errors
/// When it fails.
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

    /// Ends the server orderly, by SIGTERM.
    ///
    /// # Errors
    /// When it ends with another status than 0.
    pub(crate) fn stop(mut self) -> Result<()> {
        must("kill", &[&self.0.id().to_string()])?;
        let ended = self.0.wait()?;
        if !ended.success() {
            bail!("the server ended with {ended}");
        }
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // An error means that the program has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
