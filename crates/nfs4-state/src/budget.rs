//! A number of items of all clients together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many more items there may be.
#[derive(Debug)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self(AtomicUsize::new(limit))
    }

    /// Takes one item, if there is one.
    pub(crate) fn take(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Gives items back.
    pub(crate) fn give_back(&self, items: usize) {
        self.0.fetch_add(items, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
