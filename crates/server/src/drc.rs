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
use oncrpc::{MaybeReady, Message, Peer, Service, Stages};
use parking_lot::Mutex;
use xdr::Encoder;

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
    /// How many of them each client has.
    held: HashMap<IpAddr, usize>,
}

impl Part {
    /// Notes a finished entry; if there are more than `limit` then, takes out one that gives way.
    fn keep(&mut self, key: Key, limit: usize) -> Option<Entry> {
        self.finished.push_back(key);
        *self.held.entry(key.client).or_default() += 1;
        if self.finished.len() <= limit {
            return None;
        }
        let gone = self.finished.remove(self.gives_way(key.client))?;
        if let Some(n) = self.held.get_mut(&gone.client) {
            *n -= 1;
            if *n == 0 {
                self.held.remove(&gone.client);
            }
        }
        self.entries.remove(&gone)
    }

    /// The oldest entry of a client that has its share or more: of the newest's if that is one (as it is when there is
    /// no other) and has an older one. So a client that changes much does not make the server forget what the others
    /// may still ask for again.
    fn gives_way(&self, newest: IpAddr) -> usize {
        let share = self.finished.len() / self.held.len().max(1);
        let held = |client: &IpAddr| self.held.get(client).copied().unwrap_or(0);
        let at = if held(&newest) >= share.max(2) {
            self.finished.iter().position(|k| k.client == newest)
        } else {
            self.finished.iter().position(|k| held(&k.client) >= share)
        };
        at.unwrap_or(0)
    }
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
            let finished = VecDeque::with_capacity(per_part + 1);
            Mutex::new(Part { entries, finished, held: HashMap::new() })
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
        let evicted = keep.and_then(|_| part.keep(*key, self.per_part));
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

    /// Bytes of memory that the kept replies keep from being reused.
    pub(crate) fn kept_bytes(&self) -> usize {
        let held = |entry: &Entry| match entry {
            Entry::Done(reply) => reply.head.iter().map(|view| view.capacity()).sum(),
            Entry::InProgress { .. } => 0,
        };
        self.parts.iter().map(|p| p.lock().entries.values().map(held).sum::<usize>()).sum()
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
        reply: Encoder,
        stages: &Stages,
    ) -> MaybeReady<'static, Option<Message>> {
        let mut guard = Unfinished { cache: Arc::clone(&self.cache), key: Some(key) };
        let mut done = move |reply: Option<Message>| {
            if let Some(key) = guard.key.take() {
                guard.cache.finish(&key, reply.as_ref());
            }
            reply
        };
        match self.inner.call(peer, message, reply, stages) {
            MaybeReady::Ready(reply) => MaybeReady::Ready(done(reply)),
            // Transports see a call through to its end even if its connection goes, so that a retransmission finds the
            // answer and not half an operation.
            MaybeReady::Pending(call) => MaybeReady::wait(async move { done(call.await) }),
            MaybeReady::Taken => MaybeReady::Taken,
        }
    }
}

impl<S: Service> Service for AnswerOnce<S> {
    fn reply_bytes(&self, message: &Message) -> Option<usize> {
        self.inner.reply_bytes(message)
    }

    fn call(
        &self,
        peer: &Peer,
        message: Message,
        reply: Encoder,
        stages: &Stages,
    ) -> MaybeReady<'static, Option<Message>> {
        let Some(key) = key_of(peer, &message) else {
            return self.inner.call(peer, message, reply, stages);
        };
        match self.cache.look_up(&key, peer) {
            Verdict::Execute => self.execute(key, peer, message, reply, stages),
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

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        sync::atomic::{AtomicU64, Ordering},
        task::{Context, Poll, Waker},
    };

    use buffer::{Arena, ArenaConfig};
    use oncrpc::{Credential, TransportKind, call_header};

    use super::*;

    /// Answers each call with its number of execution, when it is told to.
    #[derive(Clone, Default)]
    struct Counted(Arc<Counting>);

    #[derive(Default)]
    struct Counting {
        executed: AtomicU64,
        waiting: Mutex<Vec<oneshot::Sender<()>>>,
        at_once: bool,
    }

    impl Service for Counted {
        fn call(
            &self,
            _: &Peer,
            _: Message,
            mut e: Encoder,
            _: &Stages,
        ) -> MaybeReady<'static, Option<Message>> {
            let n = self.0.executed.fetch_add(1, Ordering::Relaxed) + 1;
            e.put_u64(n);
            let reply = e.finish().ok();
            if self.0.at_once {
                return MaybeReady::Ready(reply);
            }
            let (tx, rx) = oneshot::channel();
            self.0.waiting.lock().push(tx);
            MaybeReady::wait(async move {
                let _ = rx.await;
                reply
            })
        }
    }

    fn arena() -> Arena {
        Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false })
    }

    fn peer(connection: u64) -> Peer {
        let addr = ([127, 0, 0, 1], 1000 + connection as u16).into();
        Peer { addr, local: addr, transport: TransportKind::Tcp, connection }
    }

    fn call(arena: &Arena, xid: u32, proc: u32, args: u32) -> Message {
        let mut e = Encoder::new(arena, 256);
        call_header(&mut e, nfs::v3::PROGRAM, 3, proc, &Credential::None);
        e.put_u32(args);
        let mut m = e.finish().unwrap();
        assert!(m.set_xid(xid));
        m
    }

    fn number(m: Option<Message>) -> Option<u64> {
        m.map(|m| u64::from_be_bytes(*m.head.iter().next().unwrap().first_chunk().unwrap()))
    }

    fn poll<F: Future>(f: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        f.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn front(at_once: bool, replies: usize) -> (Arc<Counting>, AnswerOnce<Counted>) {
        let counting = Arc::new(Counting { at_once, ..Counting::default() });
        let cache = Arc::new(ReplyCache::new(replies));
        (Arc::clone(&counting), AnswerOnce::new(Counted(counting), cache, || ()))
    }

    fn now(s: &AnswerOnce<Counted>, peer: &Peer, m: Message, a: &Arena) -> Option<u64> {
        match s.call(peer, m, Encoder::new(a, 64), &Stages::NONE) {
            MaybeReady::Ready(reply) => number(reply),
            _ => panic!("the call waits"),
        }
    }

    #[test]
    fn only_what_makes_two_calls_the_same_call_counts() {
        let (a, (_, s)) = (arena(), front(true, 100));
        assert_eq!(now(&s, &peer(1), call(&a, 1, 12, 5), &a), Some(1));
        assert_eq!(now(&s, &peer(1), call(&a, 1, 12, 5), &a), Some(1), "same connection");
        assert_eq!(now(&s, &peer(2), call(&a, 1, 12, 5), &a), Some(1), "another port");
        assert_eq!(now(&s, &peer(1), call(&a, 2, 12, 5), &a), Some(2), "another XID");
        assert_eq!(now(&s, &peer(1), call(&a, 1, 13, 5), &a), Some(3), "another procedure");
        assert_eq!(now(&s, &peer(1), call(&a, 1, 12, 6), &a), Some(4), "other arguments");
        let elsewhere = Peer { addr: ([127, 0, 0, 2], 1).into(), ..peer(1) };
        assert_eq!(now(&s, &elsewhere, call(&a, 1, 12, 5), &a), Some(5), "another client");
    }

    #[test]
    fn calls_that_change_nothing_are_executed_each_time() {
        let (a, (_, s)) = (arena(), front(true, 100));
        for (n, proc) in [0, 1, 3, 4, 5, 6, 16, 17, 18, 19, 20, 21].into_iter().enumerate() {
            assert_eq!(now(&s, &peer(1), call(&a, 1, proc, 0), &a), Some(2 * n as u64 + 1));
            assert_eq!(now(&s, &peer(1), call(&a, 1, proc, 0), &a), Some(2 * n as u64 + 2));
        }
        assert_eq!(s.cache.kept(), 0);
    }

    #[test]
    fn a_duplicate_of_a_call_in_progress_waits_or_is_dropped() {
        let (a, (service, s)) = (arena(), front(false, 100));
        let mut first = pin!(s.call(&peer(1), call(&a, 1, 8, 0), Encoder::new(&a, 64), &Stages::NONE));
        assert!(poll(first.as_mut()).is_pending());
        assert_eq!(
            now(&s, &peer(1), call(&a, 1, 8, 0), &a),
            None,
            "the same connection has one answer coming"
        );
        let mut second = pin!(s.call(&peer(2), call(&a, 1, 8, 0), Encoder::new(&a, 64), &Stages::NONE));
        assert!(poll(second.as_mut()).is_pending());
        service.waiting.lock().drain(..).for_each(|tx| tx.send(()).unwrap());
        assert!(matches!(poll(first.as_mut()), Poll::Ready(m) if number(m.clone()) == Some(1)));
        assert!(matches!(poll(second.as_mut()), Poll::Ready(m) if number(m.clone()) == Some(1)));
        assert_eq!(now(&s, &peer(3), call(&a, 1, 8, 0), &a), Some(1));
        assert_eq!(service.executed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_call_that_is_never_answered_can_be_sent_again() {
        let (a, (service, s)) = (arena(), front(false, 100));
        let first = s.call(&peer(1), call(&a, 1, 8, 0), Encoder::new(&a, 64), &Stages::NONE);
        let mut waiting = pin!(s.call(&peer(2), call(&a, 1, 8, 0), Encoder::new(&a, 64), &Stages::NONE));
        assert!(poll(waiting.as_mut()).is_pending());
        drop(first);
        assert!(matches!(poll(waiting.as_mut()), Poll::Ready(None)), "its client sends again");
        let mut again = pin!(s.call(&peer(2), call(&a, 1, 8, 0), Encoder::new(&a, 64), &Stages::NONE));
        assert!(poll(again.as_mut()).is_pending());
        assert_eq!(service.executed.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_oldest_replies_give_way_and_their_memory_returns() {
        let (a, (_, s)) = (arena(), front(true, 64));
        for xid in 0..10_000 {
            now(&s, &peer(1), call(&a, xid, 9, xid), &a);
        }
        assert!(s.cache.kept() <= 64);
        assert!(a.stats().in_use <= 64 * 512, "{:?}", a.stats());
        assert_eq!(s.cache.kept_bytes(), a.stats().in_use);
        assert_eq!(now(&s, &peer(1), call(&a, 9_999, 9, 9_999), &a), Some(10_000));
        assert_eq!(now(&s, &peer(1), call(&a, 0, 9, 0), &a), Some(10_001));
    }

    #[test]
    fn a_client_that_changes_much_does_not_push_out_the_replies_of_others() {
        let (a, (_, s)) = (arena(), front(true, 64));
        let quiet = Peer { addr: ([127, 0, 0, 2], 1).into(), ..peer(1) };
        let first = now(&s, &quiet, call(&a, 1, 12, 5), &a);
        for xid in 0..10_000 {
            now(&s, &peer(1), call(&a, xid, 9, xid), &a);
        }
        assert_eq!(now(&s, &quiet, call(&a, 1, 12, 5), &a), first, "executed again");
        assert_eq!(now(&s, &peer(1), call(&a, 9_999, 9, 9_999), &a), Some(10_001));
        // The books are right with more clients than places, too.
        for n in 0..20_000_u32 {
            let addr = (std::net::Ipv4Addr::from_bits(0x0a00_0000 + n % 50), 1).into();
            now(&s, &Peer { addr, ..peer(1) }, call(&a, n, 9, n), &a);
        }
        assert!(s.cache.kept() <= 64);
        let newcomer = Peer { addr: ([10, 0, 1, 0], 1).into(), ..peer(1) };
        let first = now(&s, &newcomer, call(&a, 1, 9, 1), &a);
        assert_eq!(now(&s, &newcomer, call(&a, 1, 9, 1), &a), first, "its only reply gave way to itself");
        let counted = |p: &Mutex<Part>| p.lock().held.values().sum::<usize>();
        assert_eq!(s.cache.parts.iter().map(counted).sum::<usize>(), s.cache.kept());
    }

    #[test]
    fn messages_that_are_no_calls_pass_through() {
        let (a, (_, s)) = (arena(), front(true, 64));
        for bytes in [&b""[..], b"abc", &[0; 12], &[0xff; 64]] {
            let m = Message::from_view(a.copy_from(bytes).unwrap());
            assert!(now(&s, &peer(1), m, &a).is_some());
        }
        assert_eq!(s.cache.kept(), 0);
    }
}
