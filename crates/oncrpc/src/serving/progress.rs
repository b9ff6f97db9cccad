//! Transfers that are too slow.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use millrace_runtime::{Instant, RuntimeRef, Sleep};

/// The least bytes per second at which a peer sends a call, answers RDMA Reads or takes replies. With 1 MiB in a minute
/// it is what a limit of a minute for each transfer would allow.
pub const MIN_RATE: u64 = 16 << 10;

/// Notices a transfer that is slower than [`MIN_RATE`] for too long.
///
/// It counts down from a limit while something is awaited; bytes that are moved count it up again, each by the time that
/// it may take at the least rate, but not beyond the limit. So it notices a peer that stops, after the limit, and one
/// that moves a byte now and then soon after. Its timer is left to run when the transfer is done, so that one is
/// made once in that time and not for each transfer.
#[derive(Default)]
pub struct Progress {
    /// When it was last looked at, and the bytes that had been moved by then; nothing while nothing is awaited.
    seen: Option<(Instant, u64)>,
    left: Duration,
    timer: Option<Sleep>,
}

impl Progress {
    /// Ready when the transfer that is awaited, of which `moved` bytes have been moved, is too slow. To be polled as
    /// long as it is awaited; `moved` never decreases.
    pub fn poll(&mut self, cx: &mut Context<'_>, rt: &RuntimeRef, limit: Duration, moved: u64) -> Poll<()> {
        loop {
            let (at, before) = match self.seen {
                Some(seen) => seen,
                None => {
                    self.left = limit;
                    *self.seen.insert((rt.now(), moved))
                }
            };
            let timer = self.timer.get_or_insert_with(|| rt.sleep_until(at + self.left));
            ready!(Pin::new(timer).poll(cx));
            self.timer = None;
            let now = rt.now();
            let gained = Duration::from_secs_f64(moved.saturating_sub(before) as f64 / MIN_RATE as f64);
            self.left = self.left.saturating_add(gained).min(limit + now.duration_since(at));
            self.left = self.left.saturating_sub(now.duration_since(at));
            self.seen = Some((now, moved));
            if self.left.is_zero() {
                return Poll::Ready(());
            }
            // Not a timer for each byte that trickles in.
            self.timer = Some(rt.sleep_until(now + self.left.max(limit / 32)));
        }
    }

    /// Nothing is awaited any more.
    pub fn rest(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use millrace_runtime::{RuntimeExt, virtual_time::VirtualTime};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// After how many seconds a transfer of so many bytes each so many seconds is found to be too slow, if within an hour.
    fn noticed(bytes: u64, every: u64) -> Option<u64> {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let (start, mut progress, mut moved) = (rt.now(), Progress::default(), 0);
            while rt.now().duration_since(start) < Duration::from_secs(3600) {
                let mut step = rt.sleep(Duration::from_secs(every));
                let slow = poll_fn(|cx| match progress.poll(cx, &rt, LIMIT, moved) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending => step.as_mut().poll(cx).map(|()| false),
                });
                if slow.await {
                    return Some(rt.now().duration_since(start).as_secs());
                }
                moved += bytes;
            }
            None
        })
        .unwrap()
    }

    #[test]
    fn a_transfer_that_stops_or_trickles_is_noticed_and_one_at_the_least_rate_is_not() {
        assert_eq!(noticed(0, 3600), Some(60));
        for (bytes, every) in [(1, 45), (1, 1), (1000, 1)] {
            let after = noticed(bytes, every);
            assert!(after.is_some_and(|s| (60..=66).contains(&s)), "{bytes} each {every} s: {after:?}");
        }
        let half = noticed(MIN_RATE / 2, 1);
        assert!(half.is_some_and(|s| (115..=130).contains(&s)), "{half:?}");
        assert_eq!(noticed(MIN_RATE, 1), None);
        assert_eq!(noticed(MIN_RATE * 30, 30), None);
        assert_eq!(noticed(1 << 20, 59), None, "a transfer of 1 MiB that takes nearly the limit");
    }

    #[test]
    fn what_was_fast_before_gives_no_more_than_the_limit() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        let stopped = time.block_on(async {
            let mut progress = Progress::default();
            let mut poll = async |moved: u64, seconds: u64| {
                let mut step = rt.sleep(Duration::from_secs(seconds));
                poll_fn(|cx| match progress.poll(cx, &rt, LIMIT, moved) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending => step.as_mut().poll(cx).map(|()| false),
                })
                .await
            };
            assert!(!poll(0, 1).await);
            assert!(!poll(100 << 30, 118).await);
            poll(100 << 30, 5).await
        });
        assert!(stopped.unwrap(), "100 GiB came, and then nothing for two minutes");
    }

    #[test]
    fn a_rest_between_two_transfers_does_not_count() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        let slow = time.block_on(async {
            let mut progress = Progress::default();
            for n in 0..20 {
                let mut step = rt.sleep(Duration::from_secs(10));
                let slow = poll_fn(|cx| match progress.poll(cx, &rt, LIMIT, n) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending => step.as_mut().poll(cx).map(|()| false),
                });
                if slow.await {
                    return true;
                }
                progress.rest();
                rt.sleep(Duration::from_secs(100)).await;
            }
            false
        });
        assert!(!slow.unwrap());
    }
}
