//! Text and JSON representation of file attributes.

use std::{collections::HashMap, fmt::Write as _, io::IsTerminal};

use jiff::{Timestamp, tz::TimeZone};
use millrace_client::ops::{Attributes, FileType, NfsTime};
use millrace_runtime::percent_encode;
use nix::unistd::{Group, User};
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

fn timestamp(t: NfsTime) -> Option<Timestamp> {
    // Servers may send any nanoseconds.
    Timestamp::new(t.seconds, i32::try_from(t.nanoseconds.min(999_999_999)).ok()?).ok()
}

/// A time that the calendar does not have, as date(1) reads it.
fn beyond(t: NfsTime) -> String {
    format!("@{}", t.seconds)
}

/// `2026-11-21T02:30:50.123456789Z`.
fn iso(t: NfsTime) -> String {
    timestamp(t).map_or_else(|| beyond(t), |at| format!("{at:.9}"))
}

/// `2026-11-21 02:30`, in the time zone.
pub(crate) fn minute(t: NfsTime, zone: &TimeZone) -> String {
    let text = |at: Timestamp| at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M").to_string();
    timestamp(t).map_or_else(|| beyond(t), text)
}

/// The names of users and groups on this host.
#[derive(Default)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    /// The name of the user, or the number of one without a name.
    pub(crate) fn user(&mut self, uid: u32) -> &str {
        let name = || User::from_uid(uid.into()).ok().flatten().map_or_else(|| uid.to_string(), |u| u.name);
        self.users.entry(uid).or_insert_with(name)
    }

    /// The name of the group, or the number of one without a name.
    pub(crate) fn group(&mut self, gid: u32) -> &str {
        let name = || Group::from_gid(gid.into()).ok().flatten().map_or_else(|| gid.to_string(), |g| g.name);
        self.groups.entry(gid).or_insert_with(name)
    }
}

/// The date in UTC, or that of `SOURCE_DATE_EPOCH`, with which builds are reproducible.
pub(crate) fn today() -> String {
    let stated = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let at = stated.and_then(|seconds| Timestamp::from_second(seconds).ok());
    at.unwrap_or_else(Timestamp::now).strftime("%Y-%m-%d").to_string()
}

/// A number with a noun in the singular or plural.
pub(crate) fn with_noun(n: u64, (singular, plural): (&str, &str)) -> String {
    format!("{n} {}", if n == 1 { singular } else { plural })
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
        let of = |seconds, nanoseconds| NfsTime { seconds, nanoseconds };
        assert_eq!(minute(of(1_709_164_799, 0), &TimeZone::UTC), "2024-02-28 23:59");
        // Values of a server that no calendar has.
        assert_eq!(iso(of(-1, u32::MAX)), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(
            (iso(of(i64::MIN, 0)), minute(of(i64::MAX, 5), &TimeZone::UTC)),
            ("@-9223372036854775808".into(), "@9223372036854775807".into())
        );
    }

    #[test]
    fn owners_without_a_name_on_this_host_have_their_number() {
        let mut names = Names::default();
        for _ in 0..2 {
            assert_eq!(names.user(0), "root");
            assert_eq!(names.user(3_999_999_999), "3999999999");
            assert_eq!(names.group(3_999_999_998), "3999999998");
        }
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
