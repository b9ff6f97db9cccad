//! The duplicate request cache: a call that changes something is executed once, however often it is sent.
//!
//! A client that lost its connection, or its patience, sends a call again with the same XID. Executing a REMOVE again
//! would answer NOENT to a caller whose file was removed; executing a late WRITE again could undo a newer one. So the
//! replies to such calls are kept and sent again. A call is recognised by client address, XID, procedure and a
//! checksum of its first bytes (credential and arguments); the client's port and connection may have changed.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
};

use futures::channel::oneshot;
use oncrpc::{MaybeReady, Message, Peer, Service};
use parking_lot::Mutex;
use xdr::Arena;

use crate::siphash::siphash;

/// How many bytes of a call, from its program number on, its checksum covers: the longest AUTH_SYS credential and
/// verifier, and about 256 bytes of arguments.
const CHECKED_BYTES: usize = 640;
/// Independent parts of the cache, so that shards seldom meet at a lock.
const PARTS: usize = 16;
/// Kept replies are at most this long; the replies of all procedures that need keeping are far shorter.
const MAX_REPLY: usize = 2048;

/// What makes two calls the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    client: IpAddr,
    xid: u32,
    proc: u32,
    checksum: u64,
}

enum Entry {
    /// Being executed for this connection; the others wait for the reply.
    InProgress {
        connection: u64,
        waiting: Vec<oneshot::Sender<Option<Message>>>,
    },
    Done(Message),
}

struct Part {
    entries: HashMap<Key, Entry>,
    /// Finished entries, oldest first.
    finished: VecDeque<Key>,
}

/// What to do with a call.
enum Verdict {
    Execute,
    Answer(Option<Message>),
    Wait(oneshot::Receiver<Option<Message>>),
}

/// The cache; one per server, shared by all shards and both transports.
pub(crate) struct ReplyCache {
    parts: [Mutex<Part>; PARTS],
    per_part: usize,
}

impl ReplyCache {
    /// A cache of about `replies` replies.
    pub(crate) fn new(replies: usize) -> Self {
        let per_part = replies.div_ceil(PARTS).max(1);
        let part = || {
            // Twice, so that the map does not grow while calls are in progress on top.
            let entries = HashMap::with_capacity(2 * per_part);
            Mutex::new(Part { entries, finished: VecDeque::with_capacity(per_part + 1) })
        };
        Self { parts: std::array::from_fn(|_| part()), per_part }
    }

    fn part(&self, key: &Key) -> &Mutex<Part> {
        &self.parts[key.checksum as usize % PARTS]
    }

    fn look_up(&self, key: &Key, peer: &Peer) -> Verdict {
        let mut part = self.part(key).lock();
        match part.entries.get_mut(key) {
            Some(Entry::Done(reply)) => Verdict::Answer(Some(reply.clone())),
            // The same connection will get the one answer; RFC 5531 has no second.
            Some(Entry::InProgress { connection, .. }) if *connection == peer.connection => {
                Verdict::Answer(None)
            }
            Some(Entry::InProgress { waiting, .. }) => {
                let (tx, rx) = oneshot::channel();
                waiting.retain(|w| !w.is_canceled());
                waiting.push(tx);
                Verdict::Wait(rx)
            }
            None => {
                let entry = Entry::InProgress { connection: peer.connection, waiting: Vec::new() };
                part.entries.insert(*key, entry);
                Verdict::Execute
            }
        }
    }

    /// Keeps `reply` for a call that was executed, and gives it to whoever waits.
    fn finish(&self, key: &Key, reply: Option<&Message>) {
        let mut part = self.part(key).lock();
        let keep = reply.filter(|r| r.payloads.is_empty() && r.head.len() <= MAX_REPLY);
        let before = match keep {
            Some(r) => part.entries.insert(*key, Entry::Done(r.clone())),
            None => part.entries.remove(key),
        };
        let mut evicted = None;
        if keep.is_some() {
            part.finished.push_back(*key);
            if part.finished.len() > self.per_part
                && let Some(oldest) = part.finished.pop_front()
            {
                evicted = part.entries.remove(&oldest);
            }
        }
        drop(part);
        drop(evicted); // Returns memory to its arena: not under our lock.
        if let Some(Entry::InProgress { waiting, .. }) = before {
            for w in waiting {
                // Whoever waited may be gone, with its connection.
                drop(w.send(reply.cloned()));
            }
        }
    }

    /// How many replies are kept.
    pub(crate) fn kept(&self) -> usize {
        self.parts.iter().map(|p| p.lock().finished.len()).sum()
    }
}

/// Removes an entry in progress whose call will never be answered.
struct Unfinished {
    cache: Arc<ReplyCache>,
    key: Option<Key>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.cache.finish(&key, None);
        }
    }
}

/// Which call this is, if it is one whose reply must be kept.
fn key_of(peer: &Peer, message: &Message) -> Option<Key> {
    let head = message.head.iter().next()?;
    let word = |i: usize| head.get(4 * i..)?.first_chunk().map(|b| u32::from_be_bytes(*b));
    // xid, CALL = 0, RPC version 2, program, version, procedure (RFC 5531 section 9).
    let (xid, kind, rpc, prog, proc) = (word(0)?, word(1)?, word(2)?, word(3)?, word(5)?);
    if kind != 0 || rpc != 2 || prog != nfs::v3::PROGRAM || !changes_something(proc) {
        return None;
    }
    let checked = head.get(12..head.len().min(12 + CHECKED_BYTES))?;
    let checksum = siphash([u64::from(xid), u64::from(proc)], checked);
    Some(Key { client: peer.addr.ip().to_canonical(), xid, proc, checksum })
}

/// The procedures that must not be executed twice: SETATTR, and WRITE to LINK.
const fn changes_something(proc: u32) -> bool {
    matches!(proc, 2 | 7..=15)
}

/// A service in front of another one that answers retransmissions from the cache.
pub(crate) struct AnswerOnce<S> {
    inner: S,
    cache: Arc<ReplyCache>,
    replayed: Box<dyn Fn() + Send + Sync>,
}

impl<S: Service> AnswerOnce<S> {
    /// Puts `cache` in front of `inner`; `replayed` is called for each call that is answered from it.
    pub(crate) fn new(inner: S, cache: Arc<ReplyCache>, replayed: impl Fn() + Send + Sync + 'static) -> Self {
        Self { inner, cache, replayed: Box::new(replayed) }
    }

    fn execute(
        &self,
        key: Key,
        peer: &Peer,
        message: Message,
        arena: &Arena,
    ) -> MaybeReady<'static, Option<Message>> {
        let mut guard = Unfinished { cache: Arc::clone(&self.cache), key: Some(key) };
        let mut done = move |reply: Option<Message>| {
            if let Some(key) = guard.key.take() {
                guard.cache.finish(&key, reply.as_ref());
            }
            reply
        };
        match self.inner.call(peer, message, arena) {
            MaybeReady::Ready(reply) => MaybeReady::Ready(done(reply)),
            // Transports see a call through to its end even if its connection goes, so that a retransmission finds the
            // answer and not half an operation.
            MaybeReady::Pending(call) => MaybeReady::wait(async move { done(call.await) }),
            MaybeReady::Taken => MaybeReady::Taken,
        }
    }
}

impl<S: Service> Service for AnswerOnce<S> {
    fn call(&self, peer: &Peer, message: Message, arena: &Arena) -> MaybeReady<'static, Option<Message>> {
        let Some(key) = key_of(peer, &message) else { return self.inner.call(peer, message, arena) };
        match self.cache.look_up(&key, peer) {
            Verdict::Execute => self.execute(key, peer, message, arena),
            Verdict::Answer(reply) => {
                (self.replayed)();
                MaybeReady::Ready(reply)
            }
            Verdict::Wait(rx) => {
                (self.replayed)();
                MaybeReady::wait(async move { rx.await.unwrap_or(None) })
            }
        }
    }
}
