//! Fair sharing of a shard among its connections.

use std::time::Duration;

use millrace_runtime::Instant;

/// Maximum number of calls started per turn.
const MAX_CALLS: usize = 64;
/// Maximum time of a turn.
const MAX_TIME: Duration = Duration::from_millis(2);
/// Calls between two readings of the clock. Reading it for each call would take a hundredth of the time of a small one.
const UNTIMED_CALLS: usize = 4;
/// Maximum weighted bytes of calls and replies per turn.
const MAX_BYTES: usize = 2 << 20;
/// Cost of a byte of a reply's head relative to a byte of bulk data, which is sent without a copy: a READDIR
/// of 1 MiB takes several milliseconds, a READ of 1 MiB some hundred microseconds.
const HEAD_WEIGHT: usize = 16;
/// Maximum number of turns to skip. Skipping a turn costs about 100 ns, and a full turn at least some hundred
/// microseconds.
const MAX_SKIPPED: usize = 64;

/// Bytes of reply heads in one turn, as of a long listing, from which the next turn of the connection is
/// delayed.
const LONG_HEADS: usize = MAX_BYTES / HEAD_WEIGHT;
/// Length of the delay relative to the turn, which leaves two thirds of the shard's time to others.
const DELAY_FACTOR: u32 = 2;
/// Maximum delay.
const MAX_DELAY: Duration = Duration::from_millis(50);

/// Minimum number of calls whose replies are sent before the rest of a batch.
const PART: usize = 8;

/// Calls that a connection receives together. The replies are sent in two parts: the client processes the first part
/// while the server executes the calls of the second one.
#[derive(Debug, Default)]
pub struct Batch {
    calls: usize,
    /// Calls of the previous batch, the estimate for this one.
    previous: usize,
}

impl Batch {
    /// Counts a processed call. Returns whether the replies so far are to be sent before the next call.
    pub fn call(&mut self) -> bool {
        self.calls += 1;
        self.calls == PART.max(self.previous / 2)
    }

    /// Ends the batch: no further call has been received.
    pub fn end(&mut self) {
        if self.calls > 0 {
            *self = Self { calls: 0, previous: self.calls };
        }
    }
}

/// Work of a connection since it last yielded to the other tasks of its shard.
#[derive(Debug, Default)]
pub struct Turn {
    /// Time at which the first call was started.
    started: Instant,
    calls: usize,
    bytes: usize,
    /// Bytes of reply heads.
    heads: usize,
    /// Whether it has taken [`MAX_TIME`].
    is_late: bool,
}

impl Turn {
    /// Counts a call that starts. `now` is called for the first call of the turn and for every `UNTIMED_CALLS` later.
    pub fn call(&mut self, now: impl FnOnce() -> Instant) {
        if self.calls == 0 {
            self.started = now();
        } else if self.calls.is_multiple_of(UNTIMED_CALLS) {
            self.is_late = now().duration_since(self.started) >= MAX_TIME;
        }
        self.calls += 1;
    }

    /// Counts received bytes of calls.
    pub fn received(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Counts the reply to a call: the bytes of its head, which are encoded, and of its bulk data.
    pub fn reply(&mut self, head: usize, bulk: usize) {
        self.heads += head;
        self.bytes += HEAD_WEIGHT * head + bulk;
    }

    /// Whether the connection must yield to others.
    pub fn is_over(&self) -> bool {
        self.calls >= MAX_CALLS || self.bytes >= MAX_BYTES || self.is_late
    }

    /// Whether replies with long heads were encoded, which take milliseconds.
    pub fn is_long(&self) -> bool {
        self.heads >= LONG_HEADS
    }

    /// The delay after a long turn that ends at `now`, so that all `connections` of the client together use a
    /// third of the shard's time. Without the delay, each small call of another client would wait for a whole
    /// listing.
    pub fn delay(&self, now: Instant, connections: usize) -> Duration {
        let factor = u32::try_from(connections).unwrap_or(u32::MAX).max(1).saturating_mul(DELAY_FACTOR);
        now.duration_since(self.started).saturating_mul(factor).min(MAX_DELAY)
    }

    /// Number of turns that the connection skips after this one. A client with `connections` connections has
    /// as many turns as a client with one.
    pub fn skipped_turns(&self, connections: usize) -> usize {
        if self.is_over() { connections.saturating_sub(1).min(MAX_SKIPPED) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn half_of_the_replies_of_a_batch_are_sent_before_the_rest() {
        let mut batch = Batch::default();
        // An end without calls does not change the estimate.
        for (calls, first_part) in [(7, None), (16, Some(8)), (64, Some(8)), (64, Some(32)), (20, None)] {
            let sent: Vec<_> = (1..=calls).filter(|_| batch.call()).collect();
            assert!(sent.len() <= 1);
            assert_eq!(sent.first().copied(), first_part);
            batch.end();
            batch.end();
        }
    }

    #[test]
    fn calls_that_take_long_end_the_turn() {
        for (micros, calls) in [(10, MAX_CALLS), (400, 9), (600, 5), (5000, 5)] {
            let mut turn = Turn::default();
            let started = (0..).take_while(|nth| {
                let was_over = turn.is_over();
                turn.call(|| at(nth * micros));
                !was_over
            });
            assert_eq!(started.count(), calls, "{micros} us");
        }
    }

    #[test]
    fn a_long_listing_ends_the_turn_and_delays_the_next_one() {
        let mut turn = Turn::default();
        turn.call(|| at(100));
        turn.call(|| at(999));
        turn.reply(4000, 0);
        assert!(!turn.is_over() && !turn.is_long());
        turn.reply(LONG_HEADS, 0);
        assert!(turn.is_over() && turn.is_long());
        assert_eq!(turn.delay(at(600), 1), Duration::from_micros(1000));
        assert_eq!(turn.delay(at(600), 3), Duration::from_micros(3000));
        assert_eq!(turn.delay(at(1_000_000), 1), MAX_DELAY);
    }
}
