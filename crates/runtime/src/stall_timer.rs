//! Detection of stalled transfers, by counters of bytes that do not change.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use crate::{RuntimeExt, RuntimeRef, Sleep};

/// Detects that a counter stops advancing. The timer keeps running when the counter changes, and the counter
/// is compared when the timer expires; thereby a timer is created at most once per time limit instead of at
/// each change. A stall is detected after one to two times the limit.
#[derive(Default)]
pub struct StallTimer(Option<(Sleep, u64)>);

impl StallTimer {
    /// Ready when `count` has not changed for `limit` while this was polled. If it was not polled for some
    /// time (because no progress was expected) and `count` differs, detection starts again.
    pub fn poll(&mut self, cx: &mut Context<'_>, rt: &RuntimeRef, limit: Duration, count: u64) -> Poll<()> {
        loop {
            let (sleep, at) = self.0.get_or_insert_with(|| (rt.sleep(limit), count));
            ready!(Pin::new(sleep).poll(cx));
            if *at == count {
                return Poll::Ready(());
            }
            self.0 = None;
        }
    }
}
