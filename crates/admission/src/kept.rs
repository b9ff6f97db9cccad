//! Shared memory that a connection keeps while it needs none, so that its next calls take no lock.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum bytes that a connection keeps.
pub(crate) const MAXIMUM: usize = 256 << 10;

/// The value while the connection may keep nothing.
const PROHIBITED: usize = usize::MAX;

/// Bytes that a connection's task keeps for its next calls, and that the ledger takes back when memory is scarce. The
/// bytes are all that both share, so no order of other memory accesses is needed.
#[derive(Debug, Default)]
pub(crate) struct Kept(AtomicUsize);

impl Kept {
    /// Bytes that the connection keeps.
    pub(crate) fn bytes(&self) -> usize {
        match self.0.load(Ordering::Relaxed) {
            PROHIBITED => 0,
            bytes => bytes,
        }
    }

    /// Keeps as many of `bytes` as are permitted. Returns their number.
    pub(crate) fn keep(&self, bytes: usize) -> usize {
        let sum = |now: usize| if now == PROHIBITED { now } else { (now + bytes).min(MAXIMUM) };
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(sum(now))) {
            Ok(before) | Err(before) => sum(before) - before,
        }
    }

    /// Takes all kept bytes for a call.
    pub(crate) fn take(&self) -> usize {
        let none = |now| (now != PROHIBITED).then_some(0);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, none).unwrap_or(0)
    }

    /// Takes all kept bytes back, and prohibits that the connection keeps others.
    pub(crate) fn prohibit(&self) -> usize {
        match self.0.swap(PROHIBITED, Ordering::Relaxed) {
            PROHIBITED => 0,
            bytes => bytes,
        }
    }

    /// Permits that the connection keeps bytes. Kept ones remain.
    pub(crate) fn permit(&self) {
        let _ = self.0.compare_exchange(PROHIBITED, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_up_to_the_maximum_while_permitted() {
        let kept = Kept::default();
        assert_eq!((kept.keep(1000), kept.keep(2000), kept.bytes()), (1000, 2000, 3000));
        assert_eq!((kept.keep(MAXIMUM), kept.bytes()), (MAXIMUM - 3000, MAXIMUM));
        assert_eq!((kept.keep(1), kept.take(), kept.take()), (0, MAXIMUM, 0));
        assert_eq!((kept.keep(7), kept.prohibit(), kept.prohibit()), (7, 7, 0));
        assert_eq!((kept.keep(7), kept.take(), kept.bytes()), (0, 0, 0));
        kept.permit();
        assert_eq!((kept.keep(7), kept.bytes()), (7, 7));
        kept.permit();
        assert_eq!(kept.take(), 7);
    }

    /// Each byte is kept by one side at a time, however a task and the ledger are interleaved.
    #[test]
    fn no_byte_is_lost_or_counted_twice_between_threads() {
        const BYTES: usize = 1000;
        let kept = Kept::default();
        let (by_task, by_ledger) = std::thread::scope(|scope| {
            let task =
                scope.spawn(|| (0..100_000).map(|_| (kept.keep(BYTES), kept.take())).collect::<Vec<_>>());
            let mut by_ledger = 0;
            while !task.is_finished() {
                by_ledger += kept.prohibit();
                kept.permit();
            }
            (task.join().unwrap(), by_ledger + kept.prohibit())
        });
        let offered: usize = by_task.iter().map(|(kept, _)| kept).sum();
        let taken: usize = by_task.iter().map(|(_, taken)| taken).sum();
        assert_eq!(offered, taken + by_ledger);
    }
}
