//! A number of items of all clients together.

use std::sync::atomic::{AtomicIsize, Ordering};

/// How many more items there may be.
#[derive(Debug)]
pub(crate) struct Budget(AtomicIsize);

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self(AtomicIsize::new(isize::try_from(limit).unwrap_or(isize::MAX)))
    }

    /// Takes one item, if there is one.
    pub(crate) fn take(&self) -> bool {
        let take = |left: isize| (left > 0).then(|| left - 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Gives items back.
    pub(crate) fn give_back(&self, items: usize) {
        self.0.fetch_add(items as isize, Ordering::Relaxed);
    }

    /// Takes `items`, or gives them back if the number is negative. Threads that take at the same time may exceed the
    /// limit by their number.
    pub(crate) fn change(&self, items: isize) {
        self.0.fetch_sub(items, Ordering::Relaxed);
    }

    /// The number of items left.
    pub(crate) fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed).max(0) as usize
    }
}
