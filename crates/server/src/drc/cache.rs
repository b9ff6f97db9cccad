//! The kept replies, and which of them give way.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use futures::channel::oneshot;
use millrace_oncrpc::{Fault, Peer, serving::ClientAddr};
use millrace_runtime::{Instant, RuntimeRef};
use millrace_xdr::View;
use parking_lot::Mutex;

use super::{order::Order, was_executed};

/// Independent parts of the cache, so that shards seldom meet at a lock.
const PARTS: usize = 16;
/// Kept results are at most this long; those of all procedures that must not be executed twice are far shorter.
const MAX_RESULTS: usize = 2048;
/// A call is sent again within this time, if at all: clients that lost their connection make another at once.
const WINDOW: Duration = Duration::from_secs(60);
/// The cache grows to so many times its size while the replies in it are younger than that.
pub(crate) const GROWTH: usize = 16;
/// So many replies of one client in each part stay until it has newer ones: more than the calls that it can have waiting.
const OWN: usize = 64;

/// What makes two calls the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) client: IpAddr,
    pub(super) xid: u32,
    pub(super) proc: u32,
    pub(super) checksum: u64,
}

impl Key {
    /// Whose share of the cache it is counted in.
    pub(super) fn counted(&self) -> ClientAddr {
        self.client.into()
    }
}

enum Entry {
    /// Being executed for this connection; the others wait for the results.
    InProgress { connection: u64, waiting: Vec<oneshot::Sender<Result<View, Fault>>> },
    /// Executed, with these results.
    Done(View),
}

struct Part {
    entries: HashMap<Key, Entry>,
    /// Those that are finished.
    finished: Order,
}

impl Part {
    fn new(size: usize) -> Mutex<Self> {
        // Twice, so that the map does not grow while calls are in progress on top.
        let entries = HashMap::with_capacity(2 * size);
        let finished = Order::with_capacity(size + 1);
        Mutex::new(Self { entries, finished })
    }

    /// Whether the oldest finished entry is older than the window.
    fn has_old(&self, now: Instant) -> bool {
        self.finished.oldest_since().is_some_and(|since| now.duration_since(since) >= WINDOW)
    }

    /// Notes a finished entry, and takes out those that give way to it: one, and further ones where the cache has grown
    /// and they are older than the window.
    fn keep(&mut self, key: Key, now: Instant, size: usize) -> (Option<Entry>, Vec<Entry>) {
        let client = key.counted();
        self.finished.push(key, now);
        let (first, mut further) = (self.give_way(client, now, size), Vec::new());
        while self.has_old(now)
            && let Some(entry) = self.give_way(client, now, size)
        {
            further.push(entry);
        }
        (first, further)
    }

    fn give_way(&mut self, client: ClientAddr, now: Instant, size: usize) -> Option<Entry> {
        if self.finished.len() <= size {
            return None;
        }
        let gone = self.gives_way(client, now, size)?;
        self.entries.remove(&gone)
    }

    /// Takes from the finished entries the one that gives way to the newest one, of `client`: the client's own oldest, when it has its share, so that a client
    /// with many changes does not push out the entries of others; else the oldest, when it is older than the window; else
    /// none, while the cache may grow; else the oldest of a client with more than its share.
    fn gives_way(&mut self, client: ClientAddr, now: Instant, size: usize) -> Option<Key> {
        let clients = self.finished.clients().max(1);
        if self.finished.held(client) > (size / clients).max(OWN.min(size)) {
            return self.finished.take_oldest_of(client);
        }
        if self.has_old(now) {
            return self.finished.take_oldest();
        }
        if self.finished.len() <= GROWTH * size {
            return None;
        }
        let share = (GROWTH * size / clients).max(1);
        let over = self.finished.client_over(share);
        self.finished.take_oldest_of(over.unwrap_or(client))
    }

    /// Whether the reply to a further call of `client` can be kept without one going that may still be asked for.
    fn has_room(&self, client: ClientAddr, now: Instant, size: usize) -> bool {
        let most = GROWTH * size;
        self.entries.len() < most
            || self.finished.held(client) > 0
            || self.finished.clients() < most
            || self.has_old(now)
    }
}

/// What to do with a call.
pub(super) enum Verdict {
    /// Execute it.
    Execute,
    /// It was executed, with these results.
    Replay(View),
    /// It is being executed for another connection.
    Wait(oneshot::Receiver<Result<View, Fault>>),
    /// It is being executed for the same connection.
    Drop,
    /// Its results could not be kept: the client is to send it again later.
    TryLater,
}

/// The cache; one per server, shared by all shards and both transports.
pub(crate) struct ReplyCache {
    parts: [Mutex<Part>; PARTS],
    /// Entries of each part while they need not be more.
    size: usize,
    clock: RuntimeRef,
}

impl ReplyCache {
    /// A cache of about `replies` replies.
    pub(crate) fn new(replies: usize, clock: RuntimeRef) -> Self {
        let size = replies.div_ceil(PARTS).max(1);
        Self { parts: std::array::from_fn(|_| Part::new(size)), size, clock }
    }

    fn part(&self, key: &Key) -> &Mutex<Part> {
        &self.parts[key.checksum as usize % PARTS]
    }

    pub(super) fn look_up(&self, key: &Key, peer: &Peer) -> Verdict {
        let mut part = self.part(key).lock();
        match part.entries.get_mut(key) {
            Some(Entry::Done(results)) => Verdict::Replay(results.clone()),
            Some(Entry::InProgress { connection, .. }) if *connection == peer.connection => Verdict::Drop,
            Some(Entry::InProgress { waiting, .. }) => {
                let (tx, rx) = oneshot::channel();
                waiting.retain(|w| !w.is_canceled());
                waiting.push(tx);
                Verdict::Wait(rx)
            }
            None => {
                let full = part.entries.len() >= GROWTH * self.size;
                if full && !part.has_room(key.counted(), self.clock.now(), self.size) {
                    return Verdict::TryLater;
                }
                let entry = Entry::InProgress { connection: peer.connection, waiting: Vec::new() };
                part.entries.insert(*key, entry);
                Verdict::Execute
            }
        }
    }

    /// Ends a call: passes `outcome` to the connections that wait for it, and keeps the results if the call was executed.
    /// `None`: the call has no outcome.
    pub(super) fn finish(&self, key: &Key, outcome: Option<Result<View, Fault>>) {
        let results = outcome.as_ref().and_then(|outcome| outcome.as_ref().ok());
        let kept = results.filter(|r| was_executed(r) && r.len() <= MAX_RESULTS);
        let now = self.clock.now();
        let mut part = self.part(key).lock();
        let before = match kept {
            Some(r) => part.entries.insert(*key, Entry::Done(r.clone())),
            None => part.entries.remove(key),
        };
        let gone = kept.map(|_| part.keep(*key, now, self.size));
        drop(part);
        drop(gone); // After the lock: memory returns to its arena.
        if let Some(Entry::InProgress { waiting, .. }) = before {
            for w in waiting {
                // The connection may have ended.
                drop(outcome.clone().map(|outcome| w.send(outcome)));
            }
        }
    }

    /// How many replies are kept.
    pub(crate) fn kept(&self) -> usize {
        self.parts.iter().map(|p| p.lock().finished.len()).sum()
    }

    /// Bytes of memory that the kept replies keep from being reused.
    pub(crate) fn kept_bytes(&self) -> usize {
        let held = |entry: &Entry| match entry {
            Entry::Done(results) => results.capacity(),
            Entry::InProgress { .. } => 0,
        };
        self.parts.iter().map(|p| p.lock().entries.values().map(held).sum::<usize>()).sum()
    }

    /// Entries as they are counted by client, which is to be the same as [`Self::kept`].
    #[cfg(test)]
    pub(super) fn counted(&self) -> usize {
        self.parts.iter().map(|p| p.lock().finished.counted()).sum()
    }
}
