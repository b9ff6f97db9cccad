//! How much one connection does before the others of its shard.

use std::time::Duration;

use millrace_runtime::Instant;
use millrace_xdr::Message;

/// The most calls that are begun.
const CALLS: usize = 64;
/// The most bytes of calls and replies.
const BYTES: usize = 2 << 20;
/// A byte of a reply's head costs so many times as much time as one of bulk data, which is sent from where it lies:
/// a READDIR of 1 MiB takes several milliseconds, a READ of 1 MiB some hundred microseconds.
const HEAD: usize = 16;
/// The most turns that are passed over. Passing one over costs about 100 ns, and the least that a turn does before is some
/// hundred microseconds of work.
const MOST_PASSED: usize = 64;

/// A turn that encodes at least this many bytes of reply heads, as for a long listing, delays the next turn of its
/// connection.
const LONG: usize = BYTES / HEAD;
/// The delay, as a multiple of the time that the turn took: others have two thirds of the time of a shard.
const DELAY: u32 = 2;
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_millis(50);

/// What a connection has done since other tasks of its shard had their turn.
#[derive(Debug, Default)]
pub struct Turn {
    /// When the first call was begun.
    begun: Instant,
    calls: usize,
    bytes: usize,
    /// Bytes of reply heads.
    heads: usize,
}

impl Turn {
    /// Counts a call that is begun. `now` is called for the first one of the turn.
    pub(super) fn call(&mut self, now: impl FnOnce() -> Instant) {
        if self.calls == 0 {
            self.begun = now();
        }
        self.calls += 1;
    }

    /// So many bytes of calls were received.
    pub fn received(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// A call was answered.
    pub fn reply(&mut self, reply: &Message) {
        let bulk: usize = reply.payloads.iter().map(|p| p.data.len()).sum();
        self.heads += reply.head.len();
        self.bytes += HEAD * reply.head.len() + bulk;
    }

    /// Whether it is the turn of others.
    pub fn is_over(&self) -> bool {
        self.calls >= CALLS || self.bytes >= BYTES
    }

    /// Whether replies with long heads were encoded, which cost the shard milliseconds.
    pub(super) fn is_long(&self) -> bool {
        self.heads >= LONG
    }

    /// The time after a long turn, which ends at `now`, for which the connection leaves its shard to others; all
    /// `connections` of its client together get a third of the shard. Without the delay, another client that makes one
    /// small call after the other waits for a whole listing with each call.
    pub(super) fn delay(&self, now: Instant, connections: usize) -> Duration {
        let factor = u32::try_from(connections).unwrap_or(u32::MAX).max(1).saturating_mul(DELAY);
        now.duration_since(self.begun).saturating_mul(factor).min(MAX_DELAY)
    }

    /// How many turns the connection passes over after this one, if its client has so many connections: together they have
    /// as many turns as a client with one.
    pub(super) fn passes(&self, connections: usize) -> usize {
        if self.is_over() { connections.saturating_sub(1).min(MOST_PASSED) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_xdr::Encoder;

    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn reply(words: usize) -> Message {
        let arena = Arena::new(ArenaConfig { limit: 8 << 20, huge_pages: false });
        let mut head = Encoder::new(&arena, 4 * words);
        (0..words).for_each(|_| head.put_u32(0));
        head.finish().unwrap()
    }

    #[test]
    fn a_long_listing_ends_the_turn_and_delays_the_next_one() {
        let mut turn = Turn::default();
        turn.call(|| at(100));
        turn.call(|| at(999));
        turn.reply(&reply(1000));
        assert!(!turn.is_over() && !turn.is_long());
        turn.reply(&reply(LONG / 4));
        assert!(turn.is_over() && turn.is_long());
        assert_eq!(turn.delay(at(600), 1), Duration::from_micros(1000));
        assert_eq!(turn.delay(at(600), 3), Duration::from_micros(3000));
        assert_eq!(turn.delay(at(1_000_000), 1), MAX_DELAY);
    }
}
