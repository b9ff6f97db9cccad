//! The amount of exposed memory in a domain.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Number and bytes of exposed regions. Written under the table's lock and read without it, once per call. A
/// reader may observe one count before the other.
#[derive(Default)]
pub(super) struct Tally {
    regions: AtomicUsize,
    bytes: AtomicUsize,
}

impl Tally {
    /// Regions and bytes.
    pub(super) fn get(&self) -> (usize, usize) {
        (self.regions.load(Ordering::Acquire), self.bytes.load(Ordering::Acquire))
    }

    fn set(&self, regions: usize, bytes: usize) {
        // The table's lock admits one writer at a time, so plain stores are enough.
        self.regions.store(regions, Ordering::Release);
        self.bytes.store(bytes, Ordering::Release);
    }

    pub(super) fn add(&self, len: usize) {
        let (regions, bytes) = self.get();
        self.set(regions + 1, bytes + len);
    }

    pub(super) fn subtract(&self, len: usize) {
        let (regions, bytes) = self.get();
        self.set(regions - 1, bytes - len);
    }

    pub(super) fn clear(&self) {
        self.set(0, 0);
    }
}
