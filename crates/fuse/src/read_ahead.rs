//! The read-ahead of an open file description: which blocks to prefetch. `prefetch.rs` requests them.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{channel::oneshot::Receiver, future::Shared};
use millrace_buffer::View;
use millrace_runtime::Instant;
use parking_lot::{Mutex, MutexGuard};

use crate::inode::DataVersion;

/// Maximum read-ahead per open file.
const MAX_WINDOW: u64 = 4 << 20;
/// Bytes read sequentially before read-ahead starts.
const SEQUENTIAL_THRESHOLD: u64 = 256 << 10;
/// The kernel's threads may send adjacent reads out of order.
const REORDER_WINDOW: u64 = 256 << 10;
/// Idle time after which prefetched data is dropped.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Data of a READ and its EOF flag; `None` if the READ failed.
pub(crate) type Fetched = Option<(View, bool)>;

/// Bytes counted in `total` until dropped.
pub(crate) struct Reservation {
    pub(crate) total: Arc<AtomicUsize>,
    pub(crate) len: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// A block that is or was prefetched.
#[derive(Clone)]
pub(crate) struct PrefetchedBlock {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// State of the file when the block was requested.
    pub(crate) version: DataVersion,
    pub(crate) data: Shared<Receiver<Fetched>>,
    pub(crate) _reservation: Arc<Reservation>,
}

/// The reads of a description, and the blocks prefetched for it.
#[derive(Default)]
pub(crate) struct ReadAheadState {
    /// End of the last read.
    end: u64,
    /// Bytes read sequentially.
    sequential: u64,
    /// Contiguous blocks.
    pub(crate) blocks: VecDeque<PrefetchedBlock>,
    last_use: Option<Instant>,
}

/// Read-ahead of an open file description.
#[derive(Default)]
pub(crate) struct ReadAhead(Mutex<ReadAheadState>);

impl ReadAhead {
    /// Drops prefetched data that has not been used for a while.
    pub(crate) fn drop_if_idle(&self, now: Instant) {
        let mut r = self.0.lock();
        if r.last_use.is_some_and(|used| now.duration_since(used) >= IDLE_TIMEOUT) {
            *r = ReadAheadState::default();
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ReadAheadState> {
        self.0.lock()
    }

    pub(crate) fn clear(&self) {
        self.0.lock().blocks.clear();
    }
}

impl ReadAheadState {
    /// Records a read.
    pub(crate) fn note_read(&mut self, start: u64, end: u64, now: Instant) {
        self.last_use = Some(now);
        if start.abs_diff(self.end) > REORDER_WINDOW {
            *self = Self { end, last_use: self.last_use, ..Self::default() };
            return;
        }
        self.sequential += end - start;
        self.end = self.end.max(end);
        while self.blocks.front().is_some_and(|p| p.end + REORDER_WINDOW <= start) {
            self.blocks.pop_front();
        }
    }

    /// Range of the next block to prefetch, if any. `size`: the file's size.
    pub(crate) fn next(&self, size: u64, block: u64) -> Option<(u64, u64)> {
        if self.sequential < SEQUENTIAL_THRESHOLD {
            return None;
        }
        let start = self.blocks.back().map_or(self.end, |p| p.end).max(self.end);
        let wanted = self.end.saturating_add(self.sequential.min(MAX_WINDOW));
        // Ends at a multiple of the block size, so that few reads span two blocks.
        (start < size && start < wanted).then(|| (start, (start / block + 1) * block))
    }
}
