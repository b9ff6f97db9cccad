//! What a copy did.

use std::time::Duration;

use serde::Serialize;

use crate::failure::Outcome;

/// What a copy did.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    /// Regular files copied whole.
    pub(crate) files: u64,
    /// Directories made, or found.
    pub(crate) directories: u64,
    /// Symbolic links made.
    pub(crate) symlinks: u64,
    /// Hard links made.
    pub(crate) hard_links: u64,
    /// Bytes of the files copied.
    pub(crate) bytes: u64,
    /// Files read back and found equal.
    pub(crate) verified: u64,
    /// How long it took.
    pub(crate) seconds: f64,
    /// `bytes` over `seconds`.
    pub(crate) bytes_per_second: f64,
    /// What failed.
    pub(crate) failed: Vec<FailedFile>,
    /// Ended by the user.
    pub(crate) interrupted: bool,
    /// Ended by something that the next file would have met too.
    pub(crate) stopped: bool,
}

/// A file that was not copied.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailedFile {
    /// Which one, as it was named or found.
    pub(crate) path: String,
    /// Why, and what to do.
    pub(crate) error: String,
}

impl Report {
    /// Adds what another copy did.
    pub(crate) fn add(&mut self, other: Self) {
        self.files += other.files;
        self.directories += other.directories;
        self.symlinks += other.symlinks;
        self.hard_links += other.hard_links;
        self.bytes += other.bytes;
        self.verified += other.verified;
        self.failed.extend(other.failed);
        self.interrupted |= other.interrupted;
        self.stopped |= other.stopped;
        self.took(Duration::from_secs_f64(self.seconds + other.seconds));
    }

    /// Completes the figures.
    pub(crate) fn took(&mut self, time: Duration) {
        self.seconds = time.as_secs_f64();
        self.bytes_per_second = self.bytes as f64 / self.seconds.max(1e-9);
    }

    /// Whether all, some or nothing was copied.
    pub(crate) fn outcome(&self) -> Outcome {
        let some = self.files + self.symlinks + self.hard_links > 0;
        match (self.interrupted, self.failed.is_empty(), some) {
            (true, ..) => Outcome::Interrupted,
            (_, true, _) => Outcome::Done,
            (.., true) => Outcome::Partial,
            _ => Outcome::Failed,
        }
    }
}
