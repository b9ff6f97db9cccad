//! The logical clock of a mount.

use std::sync::atomic::{AtomicU64, Ordering};

/// A tick of the [`LogicalClock`].
pub(crate) type Epoch = u64;

/// Orders requests and local changes, so that outdated replies are recognized (as `attr_version` in fs/fuse).
#[derive(Debug, Default)]
pub(crate) struct LogicalClock(AtomicU64);

impl LogicalClock {
    /// Returns an epoch later than all earlier ones.
    pub(crate) fn tick(&self) -> Epoch {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}
