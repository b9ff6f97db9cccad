//! The system log: one datagram per line to the socket of syslog(3), which journald also serves; or standard
//! error, if it is connected to the journal.
//!
//! No crate provides all of these guarantees (as of November 2026):
//! - Sending a line to a blocked log takes at most [`SEND_TIMEOUT`]. `syslog` 7 and `tracing-journald` 0.3
//!   send on a blocking socket without a timeout, and `syslog-tracing` 0.3 calls syslog(3), which blocks
//!   likewise. A mount whose log is stored on the mount itself would deadlock.
//! - Logging continues after a restart of the log. `syslog` 7 keeps a connected socket and does not
//!   reconnect.
//! - A line in the journal is the same text or JSON as on standard error, with the fields of the event.
//!   `tracing-journald` puts them into journal fields, which `journalctl` shows only with `-o verbose` or `-o
//!   json`.

use std::{
    io::{self, Write},
    os::{fd::AsFd, unix::net::UnixDatagram},
    path::{Path, PathBuf},
    time::Duration,
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The socket of the system log.
const SOCKET: &str = "/dev/log";
/// The tag of this program's lines.
const NAME: &str = "millrace";
/// The facility of system daemons (RFC 3164 section 4.1.1).
const DAEMON: u8 = 3;
/// Time limit for sending a line to a blocked log; then the line is dropped. The log's files may be stored on
/// the mount that writes to it, so a longer wait could block the mount.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// A sender to the system log. Its socket is not connected, so that the log can be restarted.
#[derive(Debug)]
pub(crate) struct SystemLog {
    socket: UnixDatagram,
    path: PathBuf,
}

impl SystemLog {
    /// Opens the system log of this host.
    ///
    /// # Errors
    /// The socket does not exist, or no process receives from it. The error names the socket.
    pub(crate) fn find() -> io::Result<Self> {
        Self::at(Path::new(SOCKET))
    }

    fn at(path: &Path) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        UnixDatagram::unbound()?.connect(path).map_err(named)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { socket, path: path.to_owned() })
    }

    fn entry(&self, level: Level) -> Entry<'_> {
        Entry { log: self, severity: severity(level) }
    }
}

/// The severity of syslog(3) for a level.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Whether standard error is connected to the journal, according to JOURNAL_STREAM (systemd.exec(5)).
pub(crate) fn stderr_is_journal() -> bool {
    std::env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stream(&stream, &io::stderr()))
}

/// Whether `to` is the file that `stream` names by device and inode.
fn is_stream(stream: &str, to: &impl AsFd) -> bool {
    let stat = rustix::fs::fstat(to.as_fd());
    stat.is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Standard error connected to the journal: each line begins with its severity (sd-daemon(3)).
pub(crate) struct Journal;

impl<'l> MakeWriter<'l> for Journal {
    type Writer = JournalLine<io::Stderr>;

    fn make_writer(&'l self) -> Self::Writer {
        JournalLine { severity: severity(Level::INFO), to: io::stderr() }
    }

    fn make_writer_for(&'l self, metadata: &Metadata<'_>) -> Self::Writer {
        JournalLine { severity: severity(*metadata.level()), to: io::stderr() }
    }
}

/// Writer of one line to standard error; each write is one line.
pub(crate) struct JournalLine<W> {
    severity: u8,
    to: W,
}

impl<W: Write> Write for JournalLine<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut whole = format!("<{}>", self.severity).into_bytes();
        whole.extend_from_slice(line);
        self.to.write_all(&whole).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<'l> MakeWriter<'l> for SystemLog {
    type Writer = Entry<'l>;

    fn make_writer(&'l self) -> Entry<'l> {
        self.entry(Level::INFO)
    }

    fn make_writer_for(&'l self, metadata: &Metadata<'_>) -> Entry<'l> {
        self.entry(*metadata.level())
    }
}

/// Writer of one line to the system log; each write is one datagram. The log adds the time.
pub(crate) struct Entry<'l> {
    log: &'l SystemLog,
    severity: u8,
}

impl Write for Entry<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut datagram =
            format!("<{}>{NAME}[{}]: ", DAEMON << 3 | self.severity, std::process::id()).into_bytes();
        datagram.extend_from_slice(line.trim_ascii_end());
        self.log.socket.send_to(&datagram, &self.log.path).map(|_| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(socket: &UnixDatagram) -> String {
        let mut got = [0; 1000];
        let n = socket.recv(&mut got).unwrap();
        String::from_utf8(got[..n].to_vec()).unwrap()
    }

    #[test]
    fn a_line_is_one_datagram_with_its_severity_also_after_a_restart_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert!(SystemLog::at(&path).unwrap_err().to_string().contains(path.to_str().unwrap()));
        let first = UnixDatagram::bind(&path).unwrap();
        let log = SystemLog::at(&path).unwrap();
        let layer = tracing_subscriber::fmt::layer().with_writer(log).with_ansi(false).without_time();
        let subscriber =
            tracing_subscriber::layer::SubscriberExt::with(tracing_subscriber::registry(), layer);
        tracing::subscriber::with_default(subscriber, || {
            let start = |priority: u8| format!("<{priority}>millrace[{}]: ", std::process::id());
            tracing::error!("an error");
            let line = next(&first);
            assert!(line.starts_with(&start(27)) && line.ends_with("an error"), "{line}");
            drop(first);
            assert!(SystemLog::at(&path).is_err(), "the log has no receiver");
            std::fs::remove_file(&path).unwrap();
            let second = UnixDatagram::bind(&path).unwrap();
            tracing::info!("an event");
            tracing::debug!("a detail");
            assert!(next(&second).starts_with(&start(30)));
            assert!(next(&second).starts_with(&start(31)));
        });
    }

    #[test]
    fn the_journal_is_identified_by_device_and_inode_and_receives_the_severity() {
        let file = tempfile::tempfile().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        assert!(is_stream(&format!("{}:{}", stat.st_dev, stat.st_ino), &file));
        for other in [format!("{}:{}", stat.st_dev, stat.st_ino + 1), "8:".to_owned(), String::new()] {
            assert!(!is_stream(&other, &file), "{other}");
        }
        let mut line = JournalLine { severity: severity(Level::WARN), to: Vec::new() };
        line.write_all(b"a warning\n").unwrap();
        assert_eq!(line.to, b"<4>a warning\n");
    }

    #[test]
    fn a_blocked_log_delays_a_line_only_for_the_send_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let _full = UnixDatagram::bind(&path).unwrap();
        let log = SystemLog::at(&path).unwrap();
        let refused = (0..100_000).find_map(|_| log.entry(Level::INFO).write(b"line\n").err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
