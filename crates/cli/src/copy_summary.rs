//! The outcome of the copies of a command, as text and as JSON.

use std::fmt;

use millrace_copy::Report;
use millrace_program::{failure::Outcome, units::ByteSize};
use serde::Serialize;

use crate::{describe::with_noun, file_error::FileError};

/// The outcome of the copies of a command.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct CopySummary {
    /// Regular files copied completely.
    pub(crate) files: u64,
    /// Directories created or found.
    pub(crate) directories: u64,
    /// Symbolic links created.
    pub(crate) symlinks: u64,
    /// Hard links created.
    pub(crate) hard_links: u64,
    /// Existing files and symbolic links that were not replaced.
    pub(crate) skipped: u64,
    /// Objects removed from the target.
    pub(crate) deleted: u64,
    /// Objects that `--delete` did not remove because of errors or an interruption.
    pub(crate) not_deleted: u64,
    /// Bytes of the files copied.
    pub(crate) bytes: u64,
    /// Files read back with the same checksum.
    pub(crate) verified: u64,
    /// Files and directories whose extended attributes were not copied.
    pub(crate) without_xattrs: u64,
    /// Files and directories whose ACL was not copied.
    pub(crate) without_acl: u64,
    /// Files and directories with other times than the source, because NFSv3 does not have these.
    pub(crate) without_times: u64,
    /// Elapsed time in seconds.
    pub(crate) seconds: f64,
    /// `bytes` divided by `seconds`.
    pub(crate) bytes_per_second: f64,
    /// Files that were not copied.
    pub(crate) failed: Vec<FailedFile>,
    /// Interrupted by the user.
    pub(crate) interrupted: bool,
    /// Stopped by an error that affects all further files.
    pub(crate) stopped: bool,
}

/// A file that was not copied.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailedFile {
    /// Path, as given on the command line or found in a directory.
    pub(crate) path: String,
    /// Reason and remedy.
    pub(crate) error: String,
}

impl From<millrace_copy::FailedFile> for FailedFile {
    fn from(f: millrace_copy::FailedFile) -> Self {
        Self { path: f.path, error: FileError::from(&f.error).to_string() }
    }
}

impl From<Report> for CopySummary {
    fn from(report: Report) -> Self {
        let mut summary = Self::default();
        summary.add(report);
        summary
    }
}

impl CopySummary {
    /// Adds the outcome of a copy.
    pub(crate) fn add(&mut self, other: Report) {
        self.files += other.files;
        self.directories += other.directories;
        self.symlinks += other.symlinks;
        self.hard_links += other.hard_links;
        self.skipped += other.skipped;
        self.deleted += other.deleted;
        self.not_deleted += other.not_deleted;
        self.without_times += other.without_times;
        self.bytes += other.bytes;
        self.verified += other.verified;
        self.without_xattrs += other.without_xattrs;
        self.without_acl += other.without_acl;
        self.failed.extend(other.failed.into_iter().map(FailedFile::from));
        self.interrupted |= other.interrupted;
        self.stopped |= other.stopped;
        self.seconds += other.elapsed.as_secs_f64();
        self.bytes_per_second = self.bytes as f64 / self.seconds.max(1e-9);
    }

    /// What the copies lack, and what was not removed. `xattrs`: the option to copy extended attributes was given.
    pub(crate) fn warnings(&self, xattrs: bool) -> Vec<String> {
        let count = |n: u64| with_noun(n, ("file or directory", "files and directories"));
        let remedy = match xattrs {
            true => "the target has none: a server needs NFSv4.2",
            false => "add --xattrs, with NFSv4.2",
        };
        let attributes = (self.without_xattrs > 0)
            .then(|| format!("extended attributes of {} ({remedy})", count(self.without_xattrs)));
        let acls =
            (self.without_acl > 0).then(|| format!("ACLs of {} (not supported)", count(self.without_acl)));
        let times = (self.without_times > 0).then(|| {
            let count = count(self.without_times);
            format!("times of {count} (NFSv3 has those of 1970 to 2106, the nearest was set: use vers=4.2)")
        });
        let lost: Vec<_> = attributes.into_iter().chain(acls).chain(times).collect();
        let lost = (!lost.is_empty()).then(|| format!("not copied: {}", lost.join("; ")));
        let kept = (self.not_deleted > 0).then(|| {
            let objects = with_noun(self.not_deleted, ("object", "objects"));
            let why = if self.interrupted { "the interruption" } else { "the errors" };
            format!("not removed: {objects} that the source lacks, because of {why}")
        });
        lost.into_iter().chain(kept).collect()
    }

    /// Outcome of the command: all files copied, some, or none.
    pub(crate) fn outcome(&self) -> Outcome {
        let some = self.files + self.symlinks + self.hard_links + self.skipped + self.deleted > 0;
        match (self.interrupted, self.failed.is_empty(), some) {
            (true, ..) => Outcome::Interrupted,
            (_, true, _) => Outcome::Done,
            (.., true) => Outcome::Partial,
            _ => Outcome::Failed,
        }
    }
}

/// The summary line at the end of a copy.
impl fmt::Display for CopySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", with_noun(self.files, ("file", "files")), ByteSize(self.bytes).human())?;
        for (n, noun) in [
            (self.symlinks, ("symbolic link", "symbolic links")),
            (self.hard_links, ("hard link", "hard links")),
        ] {
            if n > 0 {
                write!(f, ", {}", with_noun(n, noun))?;
            }
        }
        for (n, what) in [(self.skipped, "skipped"), (self.deleted, "removed")] {
            if n > 0 {
                write!(f, ", {n} {what}")?;
            }
        }
        if self.verified > 0 {
            f.write_str(", verified")?;
        }
        if !self.failed.is_empty() {
            write!(f, ", {} failed", self.failed.len())?;
        }
        // A rate needs no fractions of a byte.
        write!(f, " in {:.1} s ({}/s)", self.seconds, ByteSize(self.bytes_per_second as u64).human())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_line_warns_of_attributes_that_were_not_copied() {
        let mut r = CopySummary::default();
        assert_eq!(r.warnings(false), Vec::<String>::new());
        r.add(Report { without_xattrs: 2, ..Report::default() });
        let both = "not copied: extended attributes of 2 files and directories (add --xattrs, with NFSv4.2)";
        assert_eq!(r.warnings(false), [both]);
        r.add(Report { without_xattrs: 1, without_acl: 1, ..Report::default() });
        assert_eq!(
            r.warnings(true),
            [
                "not copied: extended attributes of 3 files and directories (the target has none: a server needs \
              NFSv4.2); ACLs of 1 file or directory (not supported)"
            ]
        );
        let r = CopySummary::from(Report { without_times: 1, not_deleted: 2, ..Report::default() });
        assert_eq!(
            r.warnings(true),
            [
                "not copied: times of 1 file or directory (NFSv3 has those of 1970 to 2106, the nearest was set: \
                 use vers=4.2)",
                "not removed: 2 objects that the source lacks, because of the errors"
            ]
        );
        let r = CopySummary::from(Report { not_deleted: 1, interrupted: true, ..Report::default() });
        assert_eq!(
            r.warnings(true),
            ["not removed: 1 object that the source lacks, because of the interruption"]
        );
    }

    #[test]
    fn summary_lists_what_was_copied() {
        let first = Report { files: 1, bytes: 2048, elapsed: Duration::from_secs(2), ..Report::default() };
        let mut r = CopySummary::from(first);
        assert_eq!(r.to_string(), "1 file, 2 KiB in 2.0 s (1 KiB/s)");
        r.add(Report { files: 2, symlinks: 1, verified: 3, ..Report::default() });
        r.failed.push(FailedFile { path: "x".into(), error: "y".into() });
        assert_eq!(r.to_string(), "3 files, 2 KiB, 1 symbolic link, verified, 1 failed in 2.0 s (1 KiB/s)");
        r.add(Report { skipped: 4, deleted: 5, ..Report::default() });
        assert!(r.to_string().contains("link, 4 skipped, 5 removed, verified"), "{r}");
    }
}
