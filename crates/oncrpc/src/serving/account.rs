//! What each connection holds of the server's memory, and the limits on it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use futures::task::AtomicWaker;
use millrace_runtime::{Instant, RuntimeRef};
use parking_lot::Mutex;

use super::{
    ClientAddr,
    ledger::{ConnectionLimits, Entry, Ledger},
};

/// Memory is taken from a budget in multiples of this, unless that would be more than an eighth of it with all
/// connections together.
const QUANTUM: usize = 64 << 10;

/// How a [`Budget`] is made.
#[derive(Debug, Clone, Copy)]
pub struct BudgetConfig {
    /// Bytes of memory for all connections, their own included.
    pub memory: usize,
    /// Bytes that each connection has for itself, for its receives and small calls: no other connection can take them.
    pub own: usize,
    /// The most bytes that one call needs at once.
    pub largest: usize,
    /// Connections at once.
    pub connections: usize,
    /// Connections at once of one client.
    pub per_client: usize,
}

/// Why there is no place for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The server has as many as it may have, and the client has no fewer than any other.
    #[error("too many connections")]
    Server,
    /// The client has as many as it may have.
    #[error("too many connections of this client")]
    Client,
}

/// What a budget holds at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetStats {
    /// Bytes that connections share: the memory less what each has for itself.
    pub shared: usize,
    /// Bytes of it that connections hold.
    pub in_use: usize,
    /// The most that they ever held.
    pub peak: usize,
    /// Connections that wait for memory.
    pub waiting: usize,
    /// How often a connection has begun to wait.
    pub waits: u64,
    /// Connections.
    pub connections: usize,
}

/// The memory of a server for calls and replies, and the number of its connections, shared fairly among its clients.
///
/// Each connection has a little memory for itself ([`BudgetConfig::own`]), so that small calls go on whatever others do.
/// The rest is shared: a client that is alone may have nearly all of it, and one among others as much as is left, so that
/// something is left for the next. The connections of a client share what it may have in the same way. Beyond its share a
/// connection waits; connections of different clients are served in turn. When there are too many connections, the client with the most loses the one that has been idle longest.
///
/// Cheap to clone; all clones are the same budget. A lock is taken when a connection's use crosses a multiple of 64 KiB
/// beyond its own memory, and not otherwise.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    own: usize,
    quantum: usize,
    shared: usize,
    clock: Option<RuntimeRef>,
    ledger: Mutex<Ledger>,
}

impl Inner {
    fn now(&self) -> Instant {
        self.clock.as_ref().map(|c| c.now()).unwrap_or_default()
    }

    /// Changes the ledger, and wakes the connections that are served by it.
    fn change<T>(&self, change: impl FnOnce(&mut Ledger, &mut Vec<Waker>) -> T) -> T {
        let mut woken = Vec::new();
        let out = change(&mut self.ledger.lock(), &mut woken);
        woken.into_iter().for_each(Waker::wake);
        out
    }
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Budget").field(&self.stats()).finish()
    }
}

impl Default for Budget {
    /// [`Self::unlimited`].
    fn default() -> Self {
        Self::unlimited()
    }
}

impl Budget {
    /// A budget of which nothing is held. `clock` tells for how long connections have been idle.
    pub fn new(config: BudgetConfig, clock: RuntimeRef) -> Self {
        let own = config.own.saturating_mul(config.connections);
        // A call that is larger than all memory would wait for ever.
        let shared = config.memory.saturating_sub(own).max(config.largest).min(usize::MAX >> 16);
        let quantum = (shared / 8 / config.connections.max(1)).clamp(512, QUANTUM);
        let limits = ConnectionLimits { all: config.connections, per_client: config.per_client };
        Self::with(config.own, quantum, shared, limits, Some(clock))
    }

    /// A budget that limits nothing.
    pub fn unlimited() -> Self {
        let limits = ConnectionLimits { all: usize::MAX, per_client: usize::MAX };
        Self::with(0, QUANTUM, usize::MAX >> 16, limits, None)
    }

    fn with(
        own: usize,
        quantum: usize,
        shared: usize,
        limits: ConnectionLimits,
        clock: Option<RuntimeRef>,
    ) -> Self {
        let ledger = Mutex::new(Ledger::new(shared, limits));
        Self(Arc::new(Inner { own, quantum, shared, clock, ledger }))
    }

    /// The account of a new connection. It counts as a connection until it is dropped or evicted.
    ///
    /// # Errors
    /// [`Full`].
    pub fn open(&self, client: ClientAddr) -> Result<Account, Full> {
        let now = self.0.now();
        let line = Arc::new(Line::new(now));
        let mut ledger = self.0.ledger.lock();
        let (entry, evicted) = ledger.admit(client, Arc::clone(&line), now)?;
        let connections = ledger.connections_of(entry.client);
        drop(ledger);
        if let Some(evicted) = evicted {
            evicted.evict();
        }
        let budget = Arc::clone(&self.0);
        Ok(Account { budget, client, entry, line, connections, used: 0, receives: 0, held: 0, waiter: None })
    }

    /// What is held.
    pub fn stats(&self) -> BudgetStats {
        let ledger = self.0.ledger.lock();
        let (waiting, waits) = ledger.waiting();
        BudgetStats {
            shared: self.0.shared,
            in_use: ledger.in_use(),
            peak: ledger.peak(),
            waiting,
            waits,
            connections: ledger.connections(),
        }
    }

    /// Bytes of the shared memory that the connections of one client hold.
    pub fn held_by(&self, client: ClientAddr) -> usize {
        self.0.ledger.lock().client_in_use(client)
    }
}

/// The state of a connection that the ledger shares with its task.
#[derive(Debug)]
pub(super) struct Line {
    /// In the time of the budget's clock.
    last_call: AtomicU64,
    evicted: AtomicBool,
    task: AtomicWaker,
}

impl Line {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last_call: AtomicU64::new(now.as_nanos()),
            evicted: AtomicBool::new(false),
            task: AtomicWaker::new(),
        }
    }

    /// When the last call came, or the connection was opened.
    pub(super) fn last_use(&self) -> Instant {
        Instant::from_nanos(self.last_call.load(Ordering::Relaxed))
    }

    pub(super) fn touch(&self, now: Instant) {
        self.last_call.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// What one connection holds of a [`Budget`]. It belongs to the connection's task. When it is dropped, all that it holds
/// is given back.
pub struct Account {
    budget: Arc<Inner>,
    client: ClientAddr,
    entry: Entry,
    line: Arc<Line>,
    /// Connections of the client.
    connections: Arc<AtomicUsize>,
    /// Bytes that the connection uses.
    used: usize,
    /// Bytes of these that are receives.
    receives: usize,
    /// Bytes of the shared memory that it holds for that, beyond its own.
    held: usize,
    /// Its place among those that wait.
    waiter: Option<usize>,
}

impl Account {
    /// An account without limits, of no budget in particular.
    ///
    /// # Panics
    /// Never: a budget without limits has a place for a connection.
    #[allow(clippy::expect_used)]
    pub fn unlimited() -> Self {
        let nowhere = std::net::IpAddr::from([0, 0, 0, 0]);
        Budget::unlimited().open(nowhere.into()).expect("no limit")
    }

    /// The client whose connection it is.
    pub fn client(&self) -> ClientAddr {
        self.client
    }

    /// Connections of the client.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Shared memory that is needed to use so many bytes.
    fn wanted(&self, used: usize) -> usize {
        let beyond = used.saturating_sub(self.budget.own);
        beyond.next_multiple_of(self.budget.quantum).min(self.budget.shared)
    }

    /// Bytes of the shared memory that it holds beyond those for its receives.
    fn held_for_calls(&self) -> usize {
        self.held.saturating_sub(self.wanted(self.receives))
    }

    /// Uses `bytes` more, if there are so many for this connection now.
    #[must_use]
    pub fn take(&mut self, bytes: usize) -> bool {
        let used = self.used + bytes;
        let wanted = self.wanted(used);
        if wanted > self.held {
            let (held, more) = (self.held_for_calls(), wanted - self.held);
            if !self.budget.ledger.lock().take(self.entry.client, held, more) {
                return false;
            }
            self.held = wanted;
        }
        self.used = used;
        true
    }

    /// Uses `bytes` more, once there are so many for this connection; its task is woken then. One request waits at a
    /// time: the last one that was made.
    pub fn poll_take(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        let used = self.used + bytes;
        let wanted = self.wanted(used);
        while wanted > self.held {
            self.held += ready!(self.poll_shared(cx, wanted - self.held));
        }
        self.cancel();
        self.used = used;
        Poll::Ready(())
    }

    /// Gets `more` of the shared memory, or what was asked for before if that was less.
    fn poll_shared(&mut self, cx: &mut Context<'_>, more: usize) -> Poll<usize> {
        let (client, held) = (self.entry.client, self.held_for_calls());
        let waiter = &mut self.waiter;
        let got = self.budget.change(|ledger, woken| match waiter.take() {
            Some(key) => {
                let got = ledger.ask(key, held, more, cx.waker(), woken);
                *waiter = got.is_none().then_some(key);
                got
            }
            None if ledger.take(client, held, more) => Some(more),
            None => {
                *waiter = ledger.wait(client, held, more, cx.waker().clone());
                None
            }
        });
        got.map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits no more.
    pub fn cancel(&mut self) {
        if let Some(key) = self.waiter.take() {
            self.held += self.budget.change(|ledger, woken| ledger.forget(key, woken));
            self.trim();
        }
    }

    /// Whether it waits.
    pub fn waits(&self) -> bool {
        self.waiter.is_some()
    }

    /// Uses `bytes` more, whether they are there or not: for what cannot wait. Others wait longer for it.
    pub fn take_anyway(&mut self, bytes: usize) {
        self.used += bytes;
        let wanted = self.wanted(self.used);
        if wanted > self.held {
            self.budget.ledger.lock().take_anyway(self.entry.client, wanted - self.held);
            self.held = wanted;
        }
    }

    /// Uses `bytes` more for receives, if there are so many for this connection now. A connection keeps its receives while
    /// it is idle; those of all connections have at most half of the shared memory, so that calls always have the rest.
    #[must_use]
    pub fn take_receives(&mut self, bytes: usize) -> bool {
        let more = self.wanted(self.receives + bytes) - self.wanted(self.receives);
        let client = self.entry.client;
        if more > 0 && !self.budget.change(|ledger, woken| ledger.add_receives(client, more, woken)) {
            return false;
        }
        if !self.take(bytes) {
            if more > 0 {
                self.budget.ledger.lock().remove_receives(client, more);
            }
            return false;
        }
        self.receives += bytes;
        true
    }

    /// Uses `bytes` more for receives without which the connection is of no use, as [`Self::take_anyway`].
    pub fn take_receives_anyway(&mut self, bytes: usize) {
        self.take_anyway(bytes);
        let more = self.wanted(self.receives + bytes) - self.wanted(self.receives);
        if more > 0 {
            let client = self.entry.client;
            self.budget.change(|ledger, woken| ledger.add_receives_anyway(client, more, woken));
        }
        self.receives += bytes;
    }

    /// Uses `bytes` of receives no more.
    pub fn give_receives(&mut self, bytes: usize) {
        let after = self.receives.saturating_sub(bytes);
        let less = self.wanted(self.receives) - self.wanted(after);
        if less > 0 {
            self.budget.ledger.lock().remove_receives(self.entry.client, less);
        }
        self.receives = after;
        self.give(bytes);
    }

    /// Uses `bytes` no more.
    pub fn give(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
        self.trim();
    }

    /// Uses `after` bytes instead of `before`.
    pub fn replace(&mut self, before: usize, after: usize) {
        if after > before { self.take_anyway(after - before) } else { self.give(before - after) }
    }

    /// Gives back what is held and not needed. A busy connection keeps a quantum for its next call.
    fn trim(&mut self) {
        let wanted = self.wanted(self.used);
        let keep = if wanted > 0 { wanted + self.budget.quantum } else { 0 };
        if self.held > keep {
            let surplus = self.held - wanted;
            self.held = wanted;
            let client = self.entry.client;
            self.budget.change(|ledger, woken| ledger.give(client, surplus, woken));
        }
    }

    /// The time of the budget's clock.
    pub(super) fn now(&self) -> Instant {
        self.budget.now()
    }

    /// A call has come; gives when.
    pub(super) fn touch(&self) -> Instant {
        let now = self.now();
        self.line.touch(now);
        now
    }

    /// Whether another client made a call within the last tenth of a second.
    pub(super) fn others_called(&self, now: Instant) -> bool {
        self.budget.ledger.lock().others_called(self.entry.client, now)
    }

    /// Ready when the connection has to be closed, because its client has too many.
    pub fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.line.evicted.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        self.line.task.register(cx.waker());
        if self.line.evicted.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let (client, entry, held, waiter) = (self.client, self.entry, self.held, self.waiter);
        let (line, receives) = (&self.line, self.wanted(self.receives));
        self.budget.change(|ledger, woken| {
            ledger.remove_receives(entry.client, receives);
            let granted = waiter.map_or(0, |key| ledger.forget(key, woken));
            if held + granted > 0 {
                ledger.give(entry.client, held + granted, woken);
            }
            ledger.close(client, entry, line, woken);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, net::IpAddr};

    use millrace_runtime::tokio_rt::TokioRuntime;

    use super::*;

    const KIB: usize = 1 << 10;

    fn client(n: u8) -> ClientAddr {
        IpAddr::from([10, 0, 0, n]).into()
    }

    fn config(memory: usize, own: usize) -> BudgetConfig {
        BudgetConfig { memory, own, largest: 64 * KIB, connections: 4, per_client: 4 }
    }

    #[tokio::test]
    async fn a_connection_uses_its_own_memory_whatever_others_hold() {
        let budget = Budget::new(config(256 * KIB, 16 * KIB), TokioRuntime::current());
        let mut greedy = budget.open(client(1)).unwrap();
        let mut small = budget.open(client(2)).unwrap();
        while greedy.take(KIB) {}
        greedy.take_anyway(1 << 20);
        for _ in 0..16 {
            assert!(small.take(KIB));
        }
        assert!(!small.take(64 * KIB));
        assert_eq!(budget.held_by(client(2)), 0);
        drop(greedy);
        assert!(small.take(64 * KIB));
        assert!(budget.held_by(client(2)) >= 64 * KIB);
        drop(small);
        assert_eq!(budget.stats().in_use, 0);
        assert!(budget.stats().peak >= budget.stats().shared);
    }

    #[tokio::test]
    async fn a_call_as_large_as_all_memory_is_served_when_there_is_no_other() {
        let budget = Budget::new(config(0, 0), TokioRuntime::current());
        let (mut a, mut b) = (budget.open(client(1)).unwrap(), budget.open(client(2)).unwrap());
        poll_fn(|cx| a.poll_take(cx, 64 * KIB)).await;
        let mut waits = poll_fn(|cx| b.poll_take(cx, 64 * KIB));
        assert!(futures::poll!(&mut waits).is_pending());
        assert_eq!(budget.stats().waiting, 1);
        a.give(64 * KIB);
        waits.await;
        assert_eq!((budget.stats().waiting, budget.stats().waits), (0, 1));
    }

    #[test]
    fn an_evicted_connection_is_told() {
        let rt = millrace_runtime::virtual_time::VirtualTime::new(1);
        let budget = Budget::new(BudgetConfig { connections: 1, ..config(1 << 20, 0) }, rt.runtime());
        let first = budget.open(client(1)).unwrap();
        assert_eq!(budget.open(client(1)).err(), Some(Full::Server), "it may still be used");
        rt.block_on(async {
            rt.runtime().sleep_until(Instant::from_nanos(11_000_000_000)).await;
            let second = budget.open(client(1)).unwrap();
            poll_fn(|cx| first.poll_evicted(cx)).await;
            assert!(futures::poll!(poll_fn(|cx| second.poll_evicted(cx))).is_pending());
            drop(first);
            assert_eq!(budget.stats().connections, 1);
        })
        .unwrap();
    }

    #[tokio::test]
    async fn receives_leave_half_of_the_shared_memory_to_calls() {
        let budget = Budget::new(config(256 * KIB, 16 * KIB), TokioRuntime::current());
        let mut idle: Vec<_> = (1..4).map(|n| budget.open(client(n)).unwrap()).collect();
        for account in &mut idle {
            account.take_receives_anyway(16 * KIB);
            while account.take_receives(4 * KIB) {}
        }
        let stats = budget.stats();
        assert!(stats.in_use > stats.shared / 8 && stats.in_use <= stats.shared / 2, "{stats:?}");
        assert!(!idle[2].take_receives(4 * KIB) && idle[2].take(4 * KIB), "calls have the rest");
        idle[2].give(4 * KIB);
        let given = idle[1].receives;
        idle[1].give_receives(given);
        assert!(idle[2].take_receives(4 * KIB), "what one gives back, another may take");
        drop(idle);
        assert_eq!((budget.stats().in_use, budget.0.ledger.lock().receives()), (0, 0));
    }

    /// A client that holds all the receives it may have gets memory for a call as one that holds nothing.
    #[tokio::test]
    async fn receives_do_not_count_against_the_calls_of_their_client() {
        let budget = Budget::new(config(256 * KIB, 0), TokioRuntime::current());
        let (mut idle, _other) = (budget.open(client(1)).unwrap(), budget.open(client(2)).unwrap());
        while idle.take_receives(4 * KIB) {}
        let stats = budget.stats();
        assert!(stats.in_use >= stats.shared / 5, "{stats:?}");
        assert!(idle.take(stats.shared / 2), "{stats:?}");
    }

    /// Connections on several threads that take more than there is, and wait: each gets everything it wants.
    #[test]
    fn no_wake_is_lost_between_threads() {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        rt.block_on(async {
            let config = BudgetConfig { connections: 16, per_client: 16, ..config(256 * KIB, 512) };
            let budget = Budget::new(config, TokioRuntime::current());
            let connections = (0..16_usize).map(|n| {
                let mut account = budget.open(client(n as u8 / 4)).unwrap();
                tokio::spawn(async move {
                    for i in 0..2000 {
                        let bytes = 512 * (1 + (n * 7 + i * 13) % 100);
                        poll_fn(|cx| account.poll_take(cx, bytes)).await;
                        if i % 3 == 0 {
                            tokio::task::yield_now().await;
                        }
                        account.give(bytes);
                    }
                })
            });
            let all = futures::future::join_all(connections.collect::<Vec<_>>());
            let all = tokio::time::timeout(std::time::Duration::from_secs(60), all).await;
            all.expect("a connection waits for ever").into_iter().for_each(Result::unwrap);
            let stats = budget.stats();
            assert!(stats.waits > 0 && stats.peak <= stats.shared, "{stats:?}");
            assert_eq!((stats.in_use, stats.waiting, stats.connections), (0, 0, 0));
        });
    }
}
