//! The division of the client's arena, so that no number of operations exhausts it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use millrace_client::{Client, View, buffer::copied};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes of one permit.
const UNIT: usize = 1024;

/// The client's arena: at most a quarter is used by READs in flight, a quarter by WRITEs in flight and uncommitted data,
/// and a quarter is lent to callers. Operations wait; further data for callers is copied. Clones share the limits.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    reads: Budget,
    writes: Budget,
    lent: AtomicUsize,
    /// Limit of `lent` in bytes.
    lendable: usize,
}

#[derive(Debug)]
struct Budget {
    free: Semaphore,
    units: u32,
}

/// Memory of the client's arena that a caller holds.
struct Lent {
    view: View,
    shared: Arc<Shared>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.view
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.shared.lent.fetch_sub(self.view.capacity(), Ordering::Relaxed);
    }
}

impl Budget {
    fn new(bytes: usize) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        Self { free: Semaphore::new(units as usize), units }
    }

    /// Waits for the memory of an operation. One that needs more than everything gets everything.
    async fn take(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.units);
        // The semaphore is never closed.
        self.free.acquire_many(units).await.ok()
    }
}

impl Memory {
    pub(crate) fn new(client: &Client) -> Self {
        let quarter = client.options().arena_limit / 4;
        let (reads, writes) = (Budget::new(quarter), Budget::new(quarter));
        Self { shared: Arc::new(Shared { reads, writes, lent: AtomicUsize::new(0), lendable: quarter }) }
    }

    /// Waits for memory for a READ of `bytes` bytes, until the permit is dropped.
    pub(crate) async fn for_reading(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        self.shared.reads.take(bytes).await
    }

    /// Waits for memory for `bytes` bytes that are written and committed until the permit is dropped.
    pub(crate) async fn for_writing(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        self.shared.writes.take(bytes).await
    }

    /// Passes memory of the arena to a caller, or a copy if callers hold their part of the arena.
    pub(crate) fn lend(&self, view: View) -> Bytes {
        let size = view.capacity();
        if self.shared.lent.fetch_add(size, Ordering::Relaxed) + size <= self.shared.lendable {
            return Bytes::from_owner(Lent { view, shared: Arc::clone(&self.shared) });
        }
        self.shared.lent.fetch_sub(size, Ordering::Relaxed);
        copied::count(view.len());
        Bytes::copy_from_slice(&view)
    }
}
