//! Counting limits: bytes and files.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{FsError, FsResult};

/// A quantity of which at most `limit` may be taken. Lock free.
pub(super) struct Quota {
    used: AtomicU64,
    limit: u64,
}

impl Quota {
    pub(super) fn new(limit: u64) -> Self {
        Self { used: AtomicU64::new(0), limit }
    }

    /// Takes `amount`, or nothing and [`FsError::NoSpc`].
    pub(super) fn take(&self, amount: u64) -> FsResult<()> {
        let grown = |used: u64| used.checked_add(amount).filter(|sum| *sum <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        taken.map(drop).map_err(|_| FsError::NoSpc)
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&self, amount: u64) {
        let before = self.used.fetch_sub(amount, Ordering::Relaxed);
        debug_assert!(before >= amount, "gave back more than was taken");
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_up_to_the_limit_and_all_or_nothing() {
        let q = Quota::new(10);
        assert_eq!(q.take(7), Ok(()));
        assert_eq!(q.take(4), Err(FsError::NoSpc));
        assert_eq!(q.take(u64::MAX), Err(FsError::NoSpc));
        assert_eq!(q.free(), 3);
        assert_eq!(q.take(3), Ok(()));
        q.give_back(10);
        assert_eq!(q.free(), 10);
    }
}
