//! The peer process of a measurement: this program with other arguments.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use millrace_program::cpu;

use crate::BenchError;

/// A child process that is killed on drop.
pub struct Peer {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts this program with `args`. Its standard output is piped to this value; its standard error is
    /// inherited.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Result<Self, BenchError> {
        let program =
            std::env::current_exe().map_err(BenchError::io("find the executable of this program"))?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::io("start the peer process"))?;
        let out = child.stdout.take().ok_or_else(|| BenchError::Peer("no standard output".into()))?;
        Ok(Self { child, out: BufReader::new(out) })
    }

    /// Reads the next line of its standard output, without the line end.
    ///
    /// # Errors
    /// The peer process has ended.
    pub fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        let n = self
            .out
            .by_ref()
            .take(4096)
            .read_line(&mut line)
            .map_err(BenchError::io("read the output of the peer process"))?;
        if n == 0 {
            return Err(BenchError::Peer("it ended before it was ready (see its message above)".into()));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Waits for its end for at most `limit`. If it continues to run, it is killed on drop.
    pub fn end_within(&mut self, limit: Duration) {
        let started = Instant::now();
        while started.elapsed() < limit && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time used so far.
    pub fn cpu(&self) -> Option<Duration> {
        cpu::of(self.pid())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // `kill` and `wait` fail only if the process has ended.
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
    fn values_of_a_ready_line_are_parsed() {
        let line = "ready rdma=127.0.0.1:41001 tcp=127.0.0.1:41002";
        assert_eq!(value(line, "tcp"), Some("127.0.0.1:41002"));
        assert_eq!(value(line, "rdma"), Some("127.0.0.1:41001"));
        assert_eq!(value(line, "metrics"), None);
    }
}
