//! The cached replies and their eviction.

use std::{collections::HashMap, time::Duration};

use futures::channel::oneshot;
use millrace_admission::ClientAddr;
use millrace_oncrpc::{Fault, Peer};
use millrace_runtime::{Instant, RuntimeExt, RuntimeRef, sync::Mutex};
use millrace_xdr::View;

use super::{
    key::{BuildKeyHasher, Key},
    order::FinishedCalls,
    was_executed,
};

/// Number of independently locked parts of the cache, which reduces lock contention between shards.
const PARTS: usize = 16;
/// Maximum bytes of cached results; the results of non-idempotent procedures are far shorter.
const MAX_RESULTS: usize = 2048;
/// Time within which retransmissions are expected: clients reconnect immediately after losing a connection.
const WINDOW: Duration = Duration::from_secs(60);
/// Factor by which the cache may grow while its replies are younger than [`WINDOW`].
pub(crate) const GROWTH: usize = 16;
/// Minimum number of replies per client and part that only newer replies of the same client evict: more than
/// the calls that a client can have waiting.
const MIN_CLIENT_ENTRIES: usize = 64;

enum Entry {
    /// The call is in progress on this connection; other connections wait for the results.
    InProgress { connection: u64, waiting: Vec<oneshot::Sender<Result<View, Fault>>> },
    /// Executed, with these results.
    Done(View),
}

struct Part {
    entries: HashMap<Key, Entry, BuildKeyHasher>,
    /// The finished entries.
    finished: FinishedCalls,
}

impl Part {
    fn new(size: usize) -> Mutex<Self> {
        // Twice the size, so that the map does not grow for calls in progress.
        let entries = HashMap::with_capacity_and_hasher(2 * size, BuildKeyHasher::default());
        let finished = FinishedCalls::with_capacity(size + 1);
        Mutex::new(Self { entries, finished })
    }

    /// Whether the oldest finished entry is older than the window.
    fn oldest_is_expired(&self, now: Instant) -> bool {
        self.finished.oldest_since().is_some_and(|since| now.duration_since(since) >= WINDOW)
    }

    /// Adds a finished entry and removes evicted ones: one, and further ones that are older than the window
    /// if the cache has grown.
    fn insert_finished(&mut self, key: Key, now: Instant, size: usize) -> (Option<Entry>, Vec<Entry>) {
        let client = key.counted();
        self.finished.push(key, now);
        let (first, mut further) = (self.evict(client, now, size), Vec::new());
        while self.oldest_is_expired(now)
            && let Some(entry) = self.evict(client, now, size)
        {
            further.push(entry);
        }
        (first, further)
    }

    fn evict(&mut self, client: ClientAddr, now: Instant, size: usize) -> Option<Entry> {
        if self.finished.len() <= size {
            return None;
        }
        let evicted = self.select_victim(client, now, size)?;
        self.entries.remove(&evicted)
    }

    /// Selects the finished entry to evict for the newest one, of `client`. The choices, in order: the
    /// client's oldest entry if the client exceeds its share, so that a busy client does not evict the
    /// entries of others; the oldest entry if it is older than the window; none while the cache may grow; the
    /// oldest entry of a client that exceeds its share.
    fn select_victim(&mut self, client: ClientAddr, now: Instant, size: usize) -> Option<Key> {
        let clients = self.finished.clients().max(1);
        if self.finished.calls_of(client) > (size / clients).max(MIN_CLIENT_ENTRIES.min(size)) {
            return self.finished.take_oldest_of(client);
        }
        if self.oldest_is_expired(now) {
            return self.finished.take_oldest();
        }
        if self.finished.len() <= GROWTH * size {
            return None;
        }
        let share = (GROWTH * size / clients).max(1);
        let over = self.finished.client_over(share);
        self.finished.take_oldest_of(over.unwrap_or(client))
    }

    /// Whether the reply to another call of `client` can be cached without evicting a reply that may still be
    /// needed.
    fn can_cache(&self, client: ClientAddr, now: Instant, size: usize) -> bool {
        let most = GROWTH * size;
        self.entries.len() < most
            || self.finished.calls_of(client) > 0
            || self.finished.clients() < most
            || self.oldest_is_expired(now)
    }
}

/// Result of looking up a call.
pub(super) enum LookupResult {
    /// A new call, to be executed.
    Execute,
    /// Executed, with these results.
    Replay(View),
    /// The call is in progress on another connection.
    Wait(oneshot::Receiver<Result<View, Fault>>),
    /// The call is in progress on the same connection.
    Drop,
    /// The results of the call could not be cached: the client is to retransmit it later.
    TryLater,
}

/// The duplicate request cache of a server, shared by all shards and both transports.
pub(crate) struct DuplicateRequestCache {
    parts: [Mutex<Part>; PARTS],
    /// Entries per part before growth.
    size: usize,
    clock: RuntimeRef,
    /// The key of the checksums. It is random and never sent.
    pub(super) secret: [u64; 2],
}

impl DuplicateRequestCache {
    /// Creates a cache for about `replies` replies.
    pub(crate) fn new(replies: usize, clock: RuntimeRef) -> Self {
        let size = replies.div_ceil(PARTS).max(1);
        let secret = [(); 2].map(|()| clock.random_u64());
        Self { parts: std::array::from_fn(|_| Part::new(size)), size, clock, secret }
    }

    fn part(&self, key: &Key) -> &Mutex<Part> {
        // The map of a part uses the lowest and the highest bits.
        &self.parts[(key.checksum >> 32) as usize % PARTS]
    }

    pub(super) fn look_up(&self, key: &Key, peer: &Peer) -> LookupResult {
        let mut part = self.part(key).lock();
        match part.entries.get_mut(key) {
            Some(Entry::Done(results)) => LookupResult::Replay(results.clone()),
            Some(Entry::InProgress { connection, .. }) if *connection == peer.connection => {
                LookupResult::Drop
            }
            Some(Entry::InProgress { waiting, .. }) => {
                let (tx, rx) = oneshot::channel();
                waiting.retain(|w| !w.is_canceled());
                waiting.push(tx);
                LookupResult::Wait(rx)
            }
            None => {
                let full = part.entries.len() >= GROWTH * self.size;
                if full && !part.can_cache(key.counted(), self.clock.now(), self.size) {
                    return LookupResult::TryLater;
                }
                let entry = Entry::InProgress { connection: peer.connection, waiting: Vec::new() };
                part.entries.insert(*key, entry);
                LookupResult::Execute
            }
        }
    }

    /// Ends a call: passes `outcome` to waiting connections, and caches the results if the call was executed.
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
        let evicted = kept.map(|_| part.insert_finished(*key, now, self.size));
        drop(part);
        drop(evicted); // Outside the lock: dropping a reply returns memory to the arena.
        if let Some(Entry::InProgress { waiting, .. }) = before {
            for w in waiting {
                // The connection may have ended.
                drop(outcome.clone().map(|outcome| w.send(outcome)));
            }
        }
    }

    /// Number of cached replies.
    pub(crate) fn kept(&self) -> usize {
        self.parts.iter().map(|p| p.lock().finished.len()).sum()
    }

    /// Bytes of memory of the cached replies.
    pub(crate) fn kept_bytes(&self) -> usize {
        let calls_of = |entry: &Entry| match entry {
            Entry::Done(results) => results.capacity(),
            Entry::InProgress { .. } => 0,
        };
        self.parts.iter().map(|p| p.lock().entries.values().map(calls_of).sum::<usize>()).sum()
    }

    /// Sum of the counts by client, which equals [`Self::kept`].
    #[cfg(test)]
    pub(super) fn counted(&self) -> usize {
        self.parts.iter().map(|p| p.lock().finished.counted()).sum()
    }
}
