//! Which completed writes a volatile write cache may have lost.

/// Counts completed writes, flushes, and resets of the device.
///
/// A device with a volatile write cache loses completed writes at a power loss, and reports it with a unit attention
/// condition at the next command. If it cannot write its cache to the medium, a flush fails, once. A local disk and its host fail together; here, the initiator survives the target.
/// Therefore writes that no flush had made durable at a reset are reported as a loss: by all flushes that were in
/// progress, or else by the next one.
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// Completed writes.
    changes: u64,
    /// Number of these that are durable, or were reported as lost.
    durable: u64,
    /// Resets and failed flushes that endangered writes.
    losses: u64,
    /// Number of these that a flush has reported.
    reported: u64,
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
    /// A write to the volatile cache is complete.
    pub(super) const fn changed(&mut self) {
        self.changes += 1;
    }

    /// The device was reset. Returns whether this endangers writes.
    pub(super) const fn reset(&mut self) -> bool {
        let endangered = self.changes > self.durable;
        if endangered {
            self.losses += 1;
            self.durable = self.changes;
        }
        endangered
    }

    /// A flush is requested.
    pub(super) fn requested(&self) -> Flush {
        Flush { reported: self.reported, ..Flush::default() }
    }

    /// The flush is sent, perhaps again.
    pub(super) const fn sent(&self, flush: &mut Flush) {
        flush.covers = self.changes;
    }

    /// The device has failed to write its cache, which the flush that failed reports.
    pub(super) const fn write_failed(&mut self) {
        self.reset();
        self.reported = self.losses;
    }

    /// The device has completed the flush. Returns whether the data of all writes before it is durable.
    pub(super) fn flushed(&mut self, flush: Flush) -> bool {
        self.durable = self.durable.max(flush.covers);
        let whole = self.losses == flush.reported;
        self.reported = self.losses;
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(d: &mut Durability) -> bool {
        let mut flush = d.requested();
        d.sent(&mut flush);
        d.flushed(flush)
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
        assert!(!d.flushed(a) && !d.flushed(b));
        assert!(flush(&mut d));
    }

    #[test]
    fn a_failed_flush_is_the_report_of_others_in_progress_but_not_of_later_ones() {
        let mut d = Durability::default();
        d.changed();
        let (mut a, mut b) = (d.requested(), d.requested());
        d.sent(&mut a);
        d.sent(&mut b);
        d.write_failed();
        assert!(!d.flushed(b));
        assert!(flush(&mut d));
        d.write_failed();
        assert!(flush(&mut d), "all writes were durable");
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
