//! How much one connection does before the others of its shard.

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

/// What a connection has done since other tasks of its shard had their turn.
#[derive(Debug, Default)]
pub struct Turn {
    calls: usize,
    bytes: usize,
}

impl Turn {
    /// Counts a call that was begun; gives how many that makes.
    pub fn call(&mut self) -> usize {
        self.calls += 1;
        self.calls
    }

    /// So many bytes of calls were received.
    pub fn received(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// A call was answered.
    pub fn reply(&mut self, reply: &Message) {
        let bulk: usize = reply.payloads.iter().map(|p| p.data.len()).sum();
        self.bytes += HEAD * reply.head.len() + bulk;
    }

    /// Whether it is the turn of others.
    pub fn is_over(&self) -> bool {
        self.calls >= CALLS || self.bytes >= BYTES
    }

    /// How many turns the connection passes over after this one, if its client has so many connections: together they have
    /// as many turns as a client with one.
    pub(super) fn passes(&self, connections: usize) -> usize {
        if self.is_over() { connections.saturating_sub(1).min(MOST_PASSED) } else { 0 }
    }
}
