//! The other process of a measurement: this program again, with other arguments.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{BenchError, cpu};

/// A process that is killed when this is dropped.
pub struct Peer {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts this program again with `args`. Its standard output is ours to read; its standard error is shared.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::io("find this program's own file"))?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::io("start the peer process"))?;
        let out = child.stdout.take().ok_or_else(|| BenchError::Peer("no standard output".into()))?;
        Ok(Self { child, out: BufReader::new(out) })
    }

    /// The next line of its standard output, without the line end.
    ///
    /// # Errors
    /// When the peer ends instead.
    pub fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        let n = self.out.by_ref().take(4096).read_line(&mut line).map_err(BenchError::io("hear the peer"))?;
        if n == 0 {
            return Err(BenchError::Peer("it ended before it was ready (its message is above)".into()));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Waits until it ends by itself, so long at most; it is killed otherwise when this is dropped.
    pub fn end_within(&mut self, patience: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < patience && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processor time that it has used.
    pub fn cpu(&self) -> Option<Duration> {
        cpu::of(self.pid())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The value of `key` in a line like `ready rdma=127.0.0.1:41001 tcp=127.0.0.1:41002`.
pub fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn values_are_found_in_a_ready_line() {
        let line = "ready rdma=127.0.0.1:41001 tcp=127.0.0.1:41002";
        assert_eq!(value(line, "tcp"), Some("127.0.0.1:41002"));
        assert_eq!(value(line, "rdma"), Some("127.0.0.1:41001"));
        assert_eq!(value(line, "metrics"), None);
    }
}
