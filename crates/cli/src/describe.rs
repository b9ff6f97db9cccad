//! Text and JSON representation of file attributes.

use std::{fmt::Write as _, io::IsTerminal, time::SystemTime};

use millrace_client::ops::{Attributes, FileType, NfsTime};
use millrace_runtime::percent_encode;
use serde::Serialize;

/// Attributes of a file, directory or other object; serialised for `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct ObjectInfo {
    /// Name or path; bytes that are not UTF-8 are replaced by U+FFFD.
    pub(crate) name: String,
    /// If `name` has replaced bytes: its bytes, those that are not UTF-8 and `%` as `%XX`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name_bytes: Option<String>,
    /// `file`, `directory`, `symlink`, `block`, `character`, `socket`, `fifo`.
    pub(crate) kind: &'static str,
    /// Permissions in octal, as text: `0644`.
    pub(crate) mode: String,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) used: u64,
    pub(crate) fsid: u64,
    pub(crate) fileid: u64,
    /// ISO 8601, UTC, nanoseconds.
    pub(crate) atime: String,
    pub(crate) mtime: String,
    pub(crate) ctime: String,
    /// Target of a symbolic link, as `name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// As `name_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_bytes: Option<String>,
}

/// `name` as text and, if it is not UTF-8, its bytes with `%XX`.
pub(crate) fn named(name: &[u8]) -> (String, Option<String>) {
    let text = String::from_utf8_lossy(name).into_owned();
    let bytes = std::str::from_utf8(name).is_err().then(|| percent_encode(name));
    (text, bytes)
}

impl ObjectInfo {
    pub(crate) fn new(name: &[u8], a: &Attributes, target: Option<&[u8]>) -> Self {
        let (name, name_bytes) = named(name);
        let (target, target_bytes) = match target.map(named) {
            Some((target, bytes)) => (Some(target), bytes),
            None => (None, None),
        };
        Self {
            name,
            name_bytes,
            kind: kind(a.file_type),
            mode: format!("{:04o}", a.mode & 0o7777),
            links: a.nlink,
            uid: a.uid,
            gid: a.gid,
            size: a.size,
            used: a.used,
            fsid: a.fsid,
            fileid: a.fileid,
            atime: iso(a.atime),
            mtime: iso(a.mtime),
            ctime: iso(a.ctime),
            target,
            target_bytes,
        }
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn kind(t: FileType) -> &'static str {
    match t {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Block => "block",
        FileType::Character => "character",
        FileType::Socket => "socket",
        FileType::Fifo => "fifo",
    }
}

/// Kind and permissions as `ls -l` writes them: `drwxr-x---`.
pub(crate) fn mode_text(a: &Attributes) -> String {
    let mut out = String::with_capacity(10);
    out.push(match a.file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Block => 'b',
        FileType::Character => 'c',
        FileType::Socket => 's',
        FileType::Fifo => 'p',
    });
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = a.mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (bits & 1 != 0, a.mode & special != 0) {
            (true, true) => set,
            (false, true) => unset,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    out
}

/// `2026-11-21T02:30:50.123456789Z`.
fn iso(t: NfsTime) -> String {
    let (date, time) = civil(t.seconds);
    format!("{date}T{time}.{:09}Z", t.nanoseconds)
}

/// `2026-11-21 02:30`, UTC.
pub(crate) fn minute(t: NfsTime) -> String {
    let (date, time) = civil(t.seconds);
    format!("{date} {}", &time[..5])
}

/// The date in UTC, or that of `SOURCE_DATE_EPOCH`, with which builds are reproducible.
pub(crate) fn today() -> String {
    let stated = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let now =
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    civil(stated.unwrap_or_else(now)).0
}

/// Date (Gregorian calendar) and time of day in UTC. The calculation uses years that begin in March, so that
/// a leap day is the last of its year.
fn civil(seconds: i64) -> (String, String) {
    let (days, of_day) = (seconds.div_euclid(86_400) + 719_468, seconds.rem_euclid(86_400));
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (
        format!("{year:04}-{month:02}-{day:02}"),
        format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60),
    )
}

/// Returns `name` for standard output, as ls(1): escaped if that is a terminal, so that a server cannot control it.
pub(crate) fn shown(name: &[u8]) -> Vec<u8> {
    if std::io::stdout().is_terminal() { printable(name).into_bytes() } else { name.to_vec() }
}

/// Returns `name` with control characters, and bytes that are not UTF-8 (`\351`), escaped.
pub(crate) fn printable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
        }
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(out, "\\{byte:03o}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_converted_to_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000005Z"),
            (951_782_400, "2000-02-29T00:00:00.000000005Z"),
            (1_709_164_799, "2024-02-28T23:59:59.000000005Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000005Z"),
            (4_294_967_295, "2106-02-07T06:28:15.000000005Z"),
            (7_258_118_400, "2200-01-01T00:00:00.000000005Z"),
            (-1, "1969-12-31T23:59:59.000000005Z"),
            (-312_508_800, "1960-02-06T00:00:00.000000005Z"),
        ] {
            assert_eq!(iso(NfsTime { seconds, nanoseconds: 5 }), text);
        }
        assert_eq!(minute(NfsTime { seconds: 1_709_164_799, nanoseconds: 0 }), "2024-02-28 23:59");
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("ä b".as_bytes()), "ä b");
        assert_eq!(printable(b"abc\xe9"), "abc\\351");
    }

    #[test]
    fn names_that_are_not_utf8_have_bytes() {
        assert_eq!(named("100% ä".as_bytes()), ("100% ä".into(), None));
        assert_eq!(named(b"100% abc\xe9"), ("100% abc\u{fffd}".into(), Some("100%25 abc%E9".into())));
    }
}
