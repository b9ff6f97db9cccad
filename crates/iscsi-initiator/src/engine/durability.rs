//! Which completed writes a volatile write cache may have lost.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Losses of data: the device's task counts them, and flushes report them to their callers.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Resets and failed flushes that endangered writes.
    found: AtomicU64,
    /// Number of these that were reported to the caller of a flush.
    reported: AtomicU64,
}

impl Losses {
    /// Number of losses so far.
    pub(crate) fn found(&self) -> u64 {
        self.found.load(Ordering::Acquire)
    }

    /// Counts all losses so far as reported to the caller of a flush. The outcome of a flush whose future is dropped
    /// reports nothing.
    pub(crate) fn report(&self) {
        self.reported.store(self.found(), Ordering::Release);
    }
}

/// Counts completed writes, flushes, and resets of the device.
///
/// A device with a volatile write cache loses completed writes at a power loss, and reports it with a unit attention
/// condition at the next command. If it cannot write its cache to the medium, a flush fails, once. A local disk and its
/// host fail together; here, the initiator survives the target.
/// Therefore writes that no flush had made durable at a reset are reported as a loss: by all flushes that were in
/// progress, or else by the next one, whose caller receives the outcome.
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// Completed writes.
    changes: u64,
    /// Number of these that are durable, or were reported as lost.
    durable: u64,
    losses: Arc<Losses>,
}

/// A flush in progress.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flush {
    /// Completed writes when the flush was sent.
    covers: u64,
    /// Losses that were reported before the flush was requested.
    reported: u64,
}

impl Durability {
    /// Nothing was written; the device's handles share `losses`.
    pub(super) fn new(losses: Arc<Losses>) -> Self {
        Self { losses, ..Self::default() }
    }

    /// A write to the volatile cache is complete.
    pub(super) const fn changed(&mut self) {
        self.changes += 1;
    }

    /// The device was reset. Returns whether this endangers writes.
    pub(super) fn reset(&mut self) -> bool {
        let endangered = self.changes > self.durable;
        if endangered {
            self.losses.found.fetch_add(1, Ordering::AcqRel);
            self.durable = self.changes;
        }
        endangered
    }

    /// A flush is requested.
    pub(super) fn requested(&self) -> Flush {
        Flush { reported: self.losses.reported.load(Ordering::Acquire), ..Flush::default() }
    }

    /// The flush is sent, perhaps again.
    pub(super) const fn sent(&self, flush: &mut Flush) {
        flush.covers = self.changes;
    }

    /// The device has completed the flush. Returns whether the data of all writes before it is durable.
    pub(super) fn flushed(&mut self, flush: Flush) -> bool {
        self.durable = self.durable.max(flush.covers);
        self.losses.found() == flush.reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(d: &mut Durability) -> bool {
        let mut flush = d.requested();
        d.sent(&mut flush);
        let whole = d.flushed(flush);
        if !whole {
            d.losses.report();
        }
        whole
    }

    #[test]
    fn a_reset_endangers_writes_that_are_not_flushed() {
        let mut d = Durability::default();
        assert!(!d.reset(), "there were no writes");
        d.changed();
        assert!(flush(&mut d));
        assert!(!d.reset(), "the write is durable");
        d.changed();
        assert!(d.reset());
        assert!(!flush(&mut d), "the next flush reports the loss");
        assert!(flush(&mut d), "once");
    }

    #[test]
    fn all_flushes_in_progress_report_a_loss() {
        let mut d = Durability::default();
        d.changed();
        let (mut a, mut b) = (d.requested(), d.requested());
        d.sent(&mut a);
        assert!(d.reset());
        d.sent(&mut a);
        d.sent(&mut b);
        assert!(!d.flushed(a));
        d.losses.report();
        assert!(!d.flushed(b));
        assert!(flush(&mut d));
    }

    #[test]
    fn a_loss_that_no_caller_learns_of_is_reported_by_the_next_flush() {
        let mut d = Durability::default();
        d.changed();
        assert!(d.reset());
        let mut dropped = d.requested();
        d.sent(&mut dropped);
        assert!(!d.flushed(dropped));
        assert!(!flush(&mut d));
        assert!(flush(&mut d));
    }

    #[test]
    fn a_flush_does_not_cover_later_writes() {
        let mut d = Durability::default();
        d.changed();
        let mut early = d.requested();
        d.sent(&mut early);
        d.changed();
        assert!(d.flushed(early));
        assert!(d.reset(), "the second write was not flushed");
        assert!(!flush(&mut d));
    }
}
