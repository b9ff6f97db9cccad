//! Detection of transfers that are too slow.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use millrace_runtime::{Instant, RuntimeRef, Sleep};

/// Minimum rate in bytes per second at which a peer sends a call, answers RDMA Reads or receives replies. At
/// this rate, 1 MiB takes about a minute.
pub const MIN_RATE: u64 = 16 << 10;

/// Detects transfers that are slower than [`MIN_RATE`].
///
/// A transfer in progress falls behind as time passes. Each transferred byte makes up for the time of a byte at the minimum
/// rate. A peer that stops is therefore detected after the limit, and one that sends occasional bytes shortly afterwards.
/// The timer is not reset at the end of a transfer, so that timers are created once per limit instead of once per transfer.
#[derive(Default)]
pub struct RateMonitor {
    /// Time and number of bytes at the last check; `None` while no transfer is in progress.
    seen: Option<(Instant, u64)>,
    /// The time by which the transfer had fallen behind then.
    behind: Duration,
    /// The limit at the last call.
    limit: Duration,
    timer: Option<Sleep>,
}

impl RateMonitor {
    /// Ready when the transfer in progress has fallen behind by `limit`, which may differ from that of the last call.
    /// `moved` is the total of transferred bytes, which never decreases. To be polled while a transfer is in progress.
    pub fn poll(&mut self, cx: &mut Context<'_>, rt: &RuntimeRef, limit: Duration, moved: u64) -> Poll<()> {
        if std::mem::replace(&mut self.limit, limit) != limit {
            self.timer = None;
        }
        loop {
            let (at, before) = match self.seen {
                Some(seen) => seen,
                None => {
                    self.behind = Duration::ZERO;
                    *self.seen.insert((rt.now(), moved))
                }
            };
            let left = limit.saturating_sub(self.behind);
            let timer = self.timer.get_or_insert_with(|| rt.sleep_until(at + left));
            ready!(Pin::new(timer).poll(cx));
            self.timer = None;
            let now = rt.now();
            let gained = Duration::from_secs_f64(moved.saturating_sub(before) as f64 / MIN_RATE as f64);
            self.behind = (self.behind + now.duration_since(at)).saturating_sub(gained);
            self.seen = Some((now, moved));
            if self.behind >= limit {
                return Poll::Ready(());
            }
            // Limits the number of timers of slow transfers.
            self.timer = Some(rt.sleep_until(now + (limit - self.behind).max(limit / 32)));
        }
    }

    /// Ends the transfer in progress.
    pub fn pause(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use millrace_runtime::{RuntimeExt, virtual_time::VirtualTime};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Seconds until a transfer of `bytes` bytes each `every` seconds is detected as too slow, if it is
    /// within an hour.
    fn detected_after(bytes: u64, every: u64) -> Option<u64> {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let (start, mut progress, mut moved) = (rt.now(), RateMonitor::default(), 0);
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
    fn stalled_and_slow_transfers_are_detected() {
        assert_eq!(detected_after(0, 3600), Some(60));
        for (bytes, every) in [(1, 45), (1, 1), (1000, 1)] {
            let after = detected_after(bytes, every);
            assert!(after.is_some_and(|s| (60..=66).contains(&s)), "{bytes} each {every} s: {after:?}");
        }
        let half = detected_after(MIN_RATE / 2, 1);
        assert!(half.is_some_and(|s| (115..=130).contains(&s)), "{half:?}");
        assert_eq!(detected_after(MIN_RATE, 1), None);
        assert_eq!(detected_after(MIN_RATE * 30, 30), None);
        assert_eq!(detected_after(1 << 20, 59), None, "a transfer of 1 MiB that takes nearly the limit");
    }

    #[test]
    fn a_fast_start_extends_the_time_only_to_the_limit() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        let stopped = time.block_on(async {
            let mut progress = RateMonitor::default();
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
        assert!(stopped.unwrap(), "100 GiB, then no data for two minutes");
    }

    #[test]
    fn a_shorter_limit_applies_at_once_and_ends() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let mut progress = RateMonitor::default();
            let mut behind = async |limit: u64, moved: u64, seconds: u64| {
                let mut step = rt.sleep(Duration::from_secs(seconds));
                poll_fn(|cx| match progress.poll(cx, &rt, Duration::from_secs(limit), moved) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending => step.as_mut().poll(cx).map(|()| false),
                })
                .await
            };
            assert!(!behind(60, 0, 3).await);
            assert!(!behind(5, 0, 1).await, "3 seconds behind");
            assert!(!behind(60, 0, 55).await, "the longer limit applies again");
            assert!(!behind(5, 58 * MIN_RATE, 0).await, "a second behind");
            assert!(!behind(60, 58 * MIN_RATE, 10).await);
            assert!(behind(5, 58 * MIN_RATE, 0).await, "11 seconds behind");
        })
        .unwrap();
    }

    #[test]
    fn pauses_between_transfers_are_not_counted() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        let slow = time.block_on(async {
            let mut progress = RateMonitor::default();
            for n in 0..20 {
                let mut step = rt.sleep(Duration::from_secs(10));
                let slow = poll_fn(|cx| match progress.poll(cx, &rt, LIMIT, n) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending => step.as_mut().poll(cx).map(|()| false),
                });
                if slow.await {
                    return true;
                }
                progress.pause();
                rt.sleep(Duration::from_secs(100)).await;
            }
            false
        });
        assert!(!slow.unwrap());
    }
}
