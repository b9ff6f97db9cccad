//! The system log: one datagram for each line to the socket of syslog(3), which journald serves too; or standard error,
//! where that is the journal.
//!
//! This module is written by hand, because no crate keeps all of its guarantees (read in November 2026):
//! - A line waits at most [`PATIENCE`] for a log that takes none. `syslog` 7 and `tracing-journald` 0.3 send on a
//!   blocking socket without a timeout, and `syslog-tracing` 0.3 calls syslog(3), which blocks likewise. A mount whose
//!   log is stored on the mount itself would deadlock.
//! - Logging goes on after a restart of the log. `syslog` 7 keeps a connected socket and does not reconnect.
//! - A missing log is an error with the name of the socket, which `millrace mount --daemon` reports. syslog(3) drops
//!   lines without an error.
//! - A line in the journal is the same text or JSON as on standard error, with the fields of the event.
//!   `tracing-journald` puts them into journal fields, which `journalctl` shows only with `-o verbose` or `-o json`.

use std::{
    io::{self, Write},
    os::{fd::AsFd, unix::net::UnixDatagram},
    path::{Path, PathBuf},
    time::Duration,
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Where programs send what they have to say.
const SOCKET: &str = "/dev/log";
/// The name under which lines stand there.
pub(crate) const NAME: &str = "millrace";
/// The facility of services that have none of their own (RFC 3164 section 4.1.1).
const DAEMON: u8 = 3;
/// How long a line waits for a log that takes none; then it is lost. A log may be kept on the very mount that writes to
/// it, so nothing waits for it for long.
const PATIENCE: Duration = Duration::from_millis(100);

/// A way to the system log. It holds no connection, so that the log may be started anew.
#[derive(Debug)]
pub(crate) struct SystemLog {
    socket: UnixDatagram,
    path: PathBuf,
}

impl SystemLog {
    /// This machine's, if somebody takes lines there.
    ///
    /// # Errors
    /// There is no socket, or nobody at it; with the socket's name.
    pub(crate) fn find() -> io::Result<Self> {
        Self::at(Path::new(SOCKET))
    }

    fn at(path: &Path) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        UnixDatagram::unbound()?.connect(path).map_err(named)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
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

/// Whether standard error is a stream to the journal, as systemd tells the services that it starts (systemd.exec(5)).
pub(crate) fn stderr_is_journal() -> bool {
    std::env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stream(&stream, &io::stderr()))
}

/// Whether `to` is the file that `stream` names by device and inode.
fn is_stream(stream: &str, to: &impl AsFd) -> bool {
    let stat = rustix::fs::fstat(to.as_fd());
    stat.is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Standard error that is the journal: each line begins with its severity (sd-daemon(3)), so that it can be chosen by it.
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

/// A line in the making; it is ended with each write.
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

/// A line in the making; it is sent with each write. The log itself adds the time.
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
    fn a_line_is_one_datagram_with_its_severity_also_after_the_log_was_started_anew() {
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
            tracing::error!("it burns");
            let said = next(&first);
            assert!(said.starts_with(&start(27)) && said.ends_with("it burns"), "{said}");
            drop(first);
            assert!(SystemLog::at(&path).is_err(), "nobody is there");
            std::fs::remove_file(&path).unwrap();
            let second = UnixDatagram::bind(&path).unwrap();
            tracing::info!("it was put out");
            tracing::debug!("with water");
            assert!(next(&second).starts_with(&start(30)));
            assert!(next(&second).starts_with(&start(31)));
        });
    }

    #[test]
    fn the_journal_is_known_by_device_and_inode_and_told_the_severity() {
        let file = tempfile::tempfile().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        assert!(is_stream(&format!("{}:{}", stat.st_dev, stat.st_ino), &file));
        for other in [format!("{}:{}", stat.st_dev, stat.st_ino + 1), "8:".to_owned(), String::new()] {
            assert!(!is_stream(&other, &file), "{other}");
        }
        let mut line = JournalLine { severity: severity(Level::WARN), to: Vec::new() };
        line.write_all(b"it smokes\n").unwrap();
        assert_eq!(line.to, b"<4>it smokes\n");
    }

    #[test]
    fn a_log_that_takes_nothing_holds_nobody_up_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let _full = UnixDatagram::bind(&path).unwrap();
        let log = SystemLog::at(&path).unwrap();
        let refused = (0..100_000).find_map(|_| log.entry(Level::INFO).write(b"line\n").err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
