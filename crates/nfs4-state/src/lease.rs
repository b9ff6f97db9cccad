//! The lease of a client with its requests in progress, in one atomic word.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Bits of the time of renewal, in milliseconds (34 years).
const TIME: u64 = (1 << 40) - 1;
/// One request in progress. 23 bits count them, which is more than a client has slots.
const REQUEST: u64 = 1 << 40;
/// The client is removed.
const ENDED: u64 = 1 << 63;

/// Time of the last renewal, number of requests in progress, and whether the client is removed. One word has all
/// three, so that a client is removed only if no request of it has begun since its lease expired.
#[derive(Debug)]
pub(crate) struct Lease(AtomicU64);

/// A time in milliseconds, as leases have it.
pub(crate) fn millis(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).map_or(TIME, |n| n.min(TIME))
}

fn renewed(word: u64, now: u64) -> u64 {
    (word & !TIME) | (word & TIME).max(now)
}

fn requests(word: u64) -> u64 {
    (word & !ENDED) / REQUEST
}

impl Lease {
    pub(crate) fn new(now: Duration) -> Self {
        Self(AtomicU64::new(millis(now)))
    }

    fn update(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Renews the lease and counts a request. Returns whether the client still exists.
    pub(crate) fn begin(&self, now: Duration) -> bool {
        let now = millis(now);
        self.update(|word| (word & ENDED == 0).then(|| renewed(word, now) + REQUEST))
    }

    /// Ends a request that [`begin`](Self::begin) counted.
    pub(crate) fn end(&self) {
        self.0.fetch_sub(REQUEST, Ordering::AcqRel);
    }

    /// Renews the lease. Returns whether the client still exists.
    pub(crate) fn renew(&self, now: Duration) -> bool {
        let now = millis(now);
        self.update(|word| (word & ENDED == 0).then(|| renewed(word, now)))
    }

    /// Time of the last renewal in milliseconds.
    pub(crate) fn renewed(&self) -> u64 {
        self.0.load(Ordering::Acquire) & TIME
    }

    /// Time since the last renewal.
    pub(crate) fn age(&self, now: Duration) -> Duration {
        Duration::from_millis(millis(now).saturating_sub(self.renewed()))
    }

    /// Whether more than `time` has passed since the last renewal and no request is in progress.
    pub(crate) fn has_expired(&self, now: Duration, time: Duration) -> bool {
        requests(self.0.load(Ordering::Acquire)) == 0 && self.age(now) > time
    }

    /// Whether requests are in progress.
    pub(crate) fn is_busy(&self) -> bool {
        requests(self.0.load(Ordering::Acquire)) != 0
    }

    /// Whether the client is removed.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) & ENDED != 0
    }

    /// Ends the lease if it has expired. Returns whether it has ended, now or before.
    pub(crate) fn end_if_expired(&self, now: Duration, time: Duration) -> bool {
        let now = millis(now);
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.update(|word| {
            let expired = requests(word) == 0 && now.saturating_sub(word & TIME) > time;
            let ended = word & ENDED != 0 && requests(word) == 0;
            (ended || expired).then_some(word | ENDED)
        })
    }

    /// Ends the lease unless requests are in progress. Returns whether it has ended, now or before.
    pub(crate) fn end_if_idle(&self) -> bool {
        self.update(|word| (requests(word) == 0).then_some(word | ENDED))
    }

    /// Ends the lease: no request begins any more. Returns whether those that were in progress have ended, too; the
    /// client can be removed only then.
    pub(crate) fn stop(&self) -> bool {
        requests(self.0.fetch_or(ENDED, Ordering::AcqRel)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_lease_expires_when_its_time_has_passed_without_a_request() {
        let lease = Lease::new(S(100));
        assert!(!lease.has_expired(S(190), S(90)));
        assert!(lease.has_expired(S(191), S(90)));
        assert!(lease.renew(S(150)));
        assert!(!lease.has_expired(S(240), S(90)));
        assert_eq!(lease.age(S(240)), S(90));
        assert!(lease.renew(S(120)), "an earlier time does not shorten the lease");
        assert_eq!(lease.age(S(240)), S(90));
    }

    #[test]
    fn a_request_in_progress_prevents_the_end() {
        let lease = Lease::new(S(0));
        assert!(lease.begin(S(1)) && lease.begin(S(2)));
        assert!(!lease.has_expired(S(500), S(90)));
        assert!(!lease.end_if_expired(S(500), S(90)) && !lease.end_if_idle());
        lease.end();
        assert!(!lease.end_if_expired(S(500), S(90)));
        lease.end();
        assert!(lease.end_if_expired(S(500), S(90)));
        assert!(lease.has_ended() && lease.end_if_idle());
        assert!(!lease.begin(S(500)) && !lease.renew(S(500)));
    }

    #[test]
    fn a_lease_that_is_stopped_ends_with_the_last_request() {
        let lease = Lease::new(S(0));
        assert!(lease.begin(S(1)));
        assert!(!lease.stop() && lease.has_ended() && !lease.begin(S(1)));
        assert!(!lease.end_if_idle() && !lease.end_if_expired(S(500), S(90)));
        lease.end();
        assert!(lease.end_if_expired(S(1), S(90)) && lease.end_if_idle() && lease.stop());
    }

    #[test]
    fn a_renewal_after_the_expiry_preserves_the_client() {
        let lease = Lease::new(S(0));
        assert!(lease.has_expired(S(500), S(90)));
        assert!(lease.renew(S(500)));
        assert!(!lease.end_if_expired(S(501), S(90)));
    }
}
