//! The write state of an inode: coalesced data, WRITE calls in flight, and failures. `write.rs` sends the data.

use std::{ops::Range, sync::Arc};

use millrace_buffer::{Buffer, View};
use millrace_client::handles::{Client, File};
use millrace_runtime::Instant;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use tokio::sync::Notify;

/// Coalesced data that is not yet sent.
pub(crate) struct PendingWrite {
    /// The writer.
    pub(crate) caller: Client,
    pub(crate) offset: u64,
    pub(crate) buffer: Buffer,
    pub(crate) len: usize,
    pub(crate) since: Instant,
}

/// A WRITE in flight.
pub(crate) struct InFlightWrite {
    pub(crate) number: u64,
    pub(crate) range: Range<u64>,
}

/// The writes of an inode that are not yet committed, and their failures.
#[derive(Default)]
pub(crate) struct QueueState {
    /// Retains uncommitted data, and reports discarded data once; exists from the first write to the last close.
    pub(crate) file: Option<Arc<File>>,
    pub(crate) pending: Option<PendingWrite>,
    pub(crate) last_len: usize,
    pub(crate) flights: Vec<InFlightWrite>,
    pub(crate) next_id: u64,
    /// Time of the first write since the last commit.
    pub(crate) first_unstable: Option<Instant>,
    failures: u64,
    /// Failures that were reported by fsync or close.
    reported: u64,
    last_error: Option<Errno>,
}

/// The write state of an inode.
#[derive(Default)]
pub(crate) struct WriteQueue {
    inner: Mutex<QueueState>,
    flight_done: Notify,
}

/// A WRITE to be sent.
pub(crate) struct OutgoingWrite {
    pub(crate) number: u64,
    pub(crate) caller: Client,
    pub(crate) offset: u64,
    pub(crate) data: View,
}

impl QueueState {
    /// Moves the coalesced data to a new WRITE in flight.
    pub(crate) fn start_pending(&mut self) -> Option<OutgoingWrite> {
        let mut g = self.pending.take()?;
        self.last_len = g.len;
        g.buffer.set_len(g.len);
        let number = self.next_id;
        self.next_id += 1;
        self.flights.push(InFlightWrite { number, range: g.offset..g.offset + g.len as u64 });
        Some(OutgoingWrite { number, caller: g.caller, offset: g.offset, data: g.buffer.freeze() })
    }

    /// Adds `data` to the write buffer if it overlaps or follows its content, has the same caller, and fits.
    pub(crate) fn merge(&mut self, caller: &Client, offset: u64, data: &[u8]) -> bool {
        let Some(g) = self.pending.as_mut().filter(|g| g.caller.is_same_caller(caller)) else { return false };
        let Some(at) = offset.checked_sub(g.offset).and_then(|at| usize::try_from(at).ok()) else {
            return false;
        };
        let Some(room) = g.buffer.len().checked_sub(at).filter(|_| at <= g.len) else { return false };
        if data.len() > room {
            return false;
        }
        millrace_buffer::copy(&mut g.buffer[at..at + data.len()], data);
        g.len = g.len.max(at + data.len());
        true
    }
}

impl WriteQueue {
    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.inner.lock()
    }

    /// Whether no data is buffered or in flight.
    pub(crate) fn is_clean(&self) -> bool {
        let w = self.lock();
        w.pending.is_none() && w.flights.is_empty()
    }

    /// Whether the queue is clean, and the file that retains uncommitted data.
    pub(crate) fn for_read(&self) -> (bool, Option<Arc<File>>) {
        let w = self.lock();
        (w.pending.is_none() && w.flights.is_empty(), w.file.clone())
    }

    /// Whether data may be uncommitted.
    pub(crate) fn is_unstable(&self) -> bool {
        let w = self.lock();
        w.first_unstable.is_some() || w.file.as_ref().is_some_and(|f| f.retained_bytes() > 0)
    }

    /// Whether the queue is clean and all data is committed.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_clean() && self.lock().file.is_none()
    }

    /// End offsets of the unacknowledged data and of the uncommitted data.
    pub(crate) fn ends(&self) -> (Option<u64>, Option<u64>) {
        let w = self.lock();
        let pending_end = w.pending.as_ref().map(|g| g.offset + g.len as u64);
        let unwritten = w.flights.iter().map(|f| f.range.end).chain(pending_end).max();
        (unwritten, w.file.as_ref().and_then(|file| file.retained_end()))
    }

    /// Number of failures, and the last one.
    pub(crate) fn failures(&self) -> (u64, Option<Errno>) {
        let w = self.lock();
        (w.failures, w.last_error)
    }

    /// Records that failures up to this number have been reported.
    pub(crate) fn mark_reported(&self, failures: u64) {
        let mut w = self.lock();
        w.reported = w.reported.max(failures);
    }

    /// Returns the last failure if one is unreported, and marks all as reported.
    pub(crate) fn take_unreported(&self) -> Option<Errno> {
        let mut w = self.lock();
        let unreported = w.failures > w.reported;
        w.reported = w.failures;
        w.last_error.filter(|_| unreported)
    }

    /// Records a failure. `is_new`: it concerns data that had not failed before.
    pub(crate) fn record_failure(&self, e: Errno, is_new: bool) {
        let mut w = self.lock();
        let all_reported = w.reported == w.failures;
        w.failures += 1;
        w.last_error = Some(e);
        if all_reported && !is_new {
            w.reported = w.failures;
        }
    }

    /// Waits until `blocks` is false for all WRITEs in flight.
    pub(crate) async fn wait_until_none(&self, blocks: impl Fn(&InFlightWrite) -> bool) {
        loop {
            let mut flight_done = std::pin::pin!(self.flight_done.notified());
            flight_done.as_mut().enable();
            if !self.lock().flights.iter().any(&blocks) {
                return;
            }
            flight_done.await;
        }
    }

    /// Removes a completed WRITE in flight.
    pub(crate) fn finish_flight(&self, number: u64) {
        self.lock().flights.retain(|f| f.number != number);
        self.flight_done.notify_waiters();
    }
}
