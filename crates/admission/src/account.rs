//! Accounts of the server's memory by connection, and their limits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use futures::task::AtomicWaker;
use millrace_runtime::{Instant, RuntimeRef, sync::Mutex};

use crate::{
    ClientAddr,
    kept::Kept,
    ledger::{ClientState, ConnectionLimits, Entry, Ledger},
};

/// Unit in bytes in which connections take shared memory; smaller if one unit for each connection were more than an
/// eighth of the shared memory.
const QUANTUM: usize = 64 << 10;

/// Maximum time that a peer may fall behind while its client uses more than its share of the memory, and others wait for
/// it. TCP repeats a lost segment several times within it.
const STALL_LIMIT_WHEN_OVERDRAWN: Duration = Duration::from_secs(5);

/// Limits of a [`Budget`].
#[derive(Debug, Clone, Copy)]
pub struct BudgetConfig {
    /// Bytes of memory of all connections, including the reserved ones.
    pub memory: usize,
    /// Bytes reserved for each connection. Its receives may use three quarters of them, so that a quarter remains for
    /// small calls and the heads of replies.
    pub own: usize,
    /// Maximum bytes that one call needs at once.
    pub largest: usize,
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of connections of one client.
    pub per_client: usize,
}

/// The reason why a connection is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The server's limit is reached, and no other client has more connections than this one.
    #[error("too many connections")]
    Server,
    /// The client's limit is reached.
    #[error("too many connections of this client")]
    Client,
}

/// Usage of a budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetStats {
    /// Bytes of shared memory: the total without the reserved bytes of each connection.
    pub shared: usize,
    /// Bytes of shared memory in use.
    pub in_use: usize,
    /// Maximum of [`Self::in_use`], with the memory that connections kept for their next calls, so far.
    pub peak: usize,
    /// Number of connections that wait for memory.
    pub waiting: usize,
    /// Number of waits so far.
    pub waits: u64,
    /// Number of connections.
    pub connections: usize,
}

/// The memory of a server for calls and replies, and the number of its connections, shared fairly among its
/// clients.
///
/// Each connection has some reserved memory ([`BudgetConfig::own`]), so that small calls are always possible,
/// however much others use. The rest is shared: a single client may use nearly all of it; one of several clients may use as much as
/// remains free, which leaves memory for the next client. The connections of a client share the client's part
/// in the same way. A connection that exceeds its share waits; connections of different clients are served
/// round-robin. At the connection limit, the client with the most connections loses the one that has been
/// idle longest.
///
/// Clones refer to the same budget. A lock is taken only when a connection's use of shared memory crosses a
/// multiple of 64 KiB, and not below 256 KiB: a connection keeps that memory for its next calls, until a request for
/// memory fails.
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

    /// Changes the ledger, and wakes the connections that were granted memory.
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
    /// Creates an unused budget. `clock` measures the idle time of connections.
    pub fn new(config: BudgetConfig, clock: RuntimeRef) -> Self {
        let own = config.own.saturating_mul(config.connections);
        // A call larger than the memory would wait indefinitely.
        let shared = config.memory.saturating_sub(own).max(config.largest).min(usize::MAX >> 16);
        let quantum = (shared / 8 / config.connections.max(1)).clamp(512, QUANTUM);
        let limits = ConnectionLimits { all: config.connections, per_client: config.per_client };
        Self::with(config.own, quantum, (shared, config.largest), limits, Some(clock))
    }

    /// A budget without limits.
    pub fn unlimited() -> Self {
        let limits = ConnectionLimits { all: usize::MAX, per_client: usize::MAX };
        Self::with(0, QUANTUM, (usize::MAX >> 16, 0), limits, None)
    }

    fn with(
        own: usize,
        quantum: usize,
        (shared, largest): (usize, usize),
        limits: ConnectionLimits,
        clock: Option<RuntimeRef>,
    ) -> Self {
        let ledger = Mutex::new(Ledger::new(shared, largest, limits));
        Self(Arc::new(Inner { own, quantum, shared, clock, ledger }))
    }

    /// Opens the account of a new connection, which counts as a connection until the account is dropped or
    /// evicted.
    ///
    /// # Errors
    /// [`AdmissionError`]: a connection limit is reached.
    pub fn open(&self, client: ClientAddr) -> Result<Account, AdmissionError> {
        let now = self.0.now();
        let state = Arc::new(ConnectionState::new(now));
        let mut ledger = self.0.ledger.lock();
        let (entry, evicted) = ledger.admit(client, Arc::clone(&state), now)?;
        let of_client = ledger.state_of(entry.client);
        drop(ledger);
        if let Some(evicted) = evicted {
            evicted.evict();
        }
        let budget = Arc::clone(&self.0);
        Ok(Account { budget, client, entry, state, of_client, used: 0, receives: 0, held: 0, waiter: None })
    }

    /// Present usage, without the memory that connections keep.
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

    /// Bytes of shared memory that the connections of one client use.
    pub fn client_in_use(&self, client: ClientAddr) -> usize {
        self.0.ledger.lock().client_in_use(client)
    }
}

/// The state of a connection that the ledger shares with its task.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// Time of the last call, by the budget's clock.
    last_call: AtomicU64,
    /// Shared memory that the connection keeps for its next calls.
    pub(crate) kept: Kept,
    evicted: AtomicBool,
    task: AtomicWaker,
}

impl ConnectionState {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            last_call: AtomicU64::new(now.as_nanos()),
            kept: Kept::default(),
            evicted: AtomicBool::new(false),
            task: AtomicWaker::new(),
        }
    }

    /// Time of the last call, or of the opening of the connection.
    pub(crate) fn last_use(&self) -> Instant {
        Instant::from_nanos(self.last_call.load(Ordering::Relaxed))
    }

    pub(crate) fn touch(&self, now: Instant) {
        self.last_call.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The waker of the connection's task, which it registers again when it runs.
    pub(crate) fn waker(&self) -> Option<Waker> {
        self.task.take()
    }

    fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// The part of a [`Budget`] that one connection uses. It belongs to the connection's task. Dropping it
/// releases everything.
pub struct Account {
    budget: Arc<Inner>,
    client: ClientAddr,
    entry: Entry,
    state: Arc<ConnectionState>,
    /// State that the accounts of the client share.
    of_client: Arc<ClientState>,
    /// Bytes in use.
    used: usize,
    /// Bytes in use for receives.
    receives: usize,
    /// Bytes of shared memory that are allocated to the connection, without the kept ones.
    held: usize,
    /// Key of the waiting request.
    waiter: Option<usize>,
}

impl Account {
    /// An account without limits, of a separate budget.
    ///
    /// # Panics
    /// Never: a budget without limits admits every connection.
    #[allow(clippy::expect_used)]
    pub fn unlimited() -> Self {
        let nowhere = std::net::IpAddr::from([0, 0, 0, 0]);
        Budget::unlimited().open(nowhere.into()).expect("no limit")
    }

    /// The client of the connection.
    pub fn client(&self) -> ClientAddr {
        self.client
    }

    /// Number of connections of the client.
    pub fn connections(&self) -> usize {
        self.of_client.connections.load(Ordering::Relaxed)
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Shared memory that is needed to use `used` bytes, `receives` of them for receives.
    fn quota(&self, used: usize, receives: usize) -> usize {
        let own = self.budget.own;
        let reserved = receives.min(own - own / 4);
        let calls = used.saturating_sub(receives);
        let beyond = receives - reserved + calls.saturating_sub(own - reserved);
        beyond.next_multiple_of(self.budget.quantum)
    }

    /// [`Self::quota`] for a call that is to be charged. Without other calls, all shared memory suffices, since the call
    /// would wait indefinitely for more; with others, it waits for their end.
    fn quota_of_call(&self, used: usize, receives: usize) -> usize {
        let quota = self.quota(used, receives);
        if self.used > self.receives { quota } else { quota.min(self.budget.shared) }
    }

    /// The part of [`Self::quota`] for `receives` bytes of receives.
    fn quota_of_receives(&self, receives: usize) -> usize {
        self.quota(receives, receives)
    }

    /// Bytes of shared memory that are allocated for calls.
    fn held_for_calls(&self) -> usize {
        self.held.saturating_sub(self.quota_of_receives(self.receives))
    }

    /// Bytes of shared memory that are missing for `quota`, after the kept ones are used.
    fn missing(&mut self, quota: usize) -> usize {
        if quota > self.held {
            self.held += self.state.kept.take();
        }
        quota.saturating_sub(self.held)
    }

    /// Charges `bytes` if they are available to this connection now. Returns whether they were.
    #[must_use]
    pub fn take(&mut self, bytes: usize) -> bool {
        self.grow(self.used + bytes, self.receives)
    }

    /// Charges `used` bytes in total, `receives` of them for receives, if the difference is available now.
    fn grow(&mut self, used: usize, receives: usize) -> bool {
        let more = self.missing(self.quota_of_call(used, receives));
        if more > 0 {
            let held = self.held_for_calls();
            if !self.budget.ledger.lock().take(self.entry.client, held, more) {
                self.trim(); // The kept memory that it took.
                return false;
            }
            self.held += more;
        }
        (self.used, self.receives) = (used, receives);
        true
    }

    /// Charges `bytes` when they are available to this connection; wakes its task then. One request waits at
    /// a time: the most recent one.
    pub fn poll_take(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        let used = self.used + bytes;
        let quota = self.quota_of_call(used, self.receives);
        while let more @ 1.. = self.missing(quota) {
            self.held += ready!(self.poll_shared(cx, more));
        }
        self.cancel();
        self.used = used;
        Poll::Ready(())
    }

    /// Allocates `more` bytes of shared memory, or those of the waiting request if it was smaller.
    fn poll_shared(&mut self, cx: &mut Context<'_>, more: usize) -> Poll<usize> {
        let (client, held) = (self.entry.client, self.held_for_calls());
        let waiter = &mut self.waiter;
        let got = self.budget.change(|ledger, woken| match waiter.take() {
            Some(key) => {
                let got = ledger.poll_grant(key, held, more, cx.waker(), woken);
                *waiter = got.is_none().then_some(key);
                got
            }
            None if ledger.take(client, held, more) => Some(more),
            None => {
                *waiter = ledger.wait(client, held, more, cx.waker().clone(), woken);
                None
            }
        });
        got.map_or(Poll::Pending, Poll::Ready)
    }

    /// Cancels the waiting request.
    pub fn cancel(&mut self) {
        if let Some(key) = self.waiter.take() {
            self.held += self.budget.change(|ledger, woken| ledger.cancel(key, woken));
            self.trim();
        }
    }

    /// Whether a request waits.
    pub fn waits(&self) -> bool {
        self.waiter.is_some()
    }

    /// Charges `bytes` beyond all limits, for memory that is needed immediately. Other connections wait
    /// longer.
    pub fn take_unconditionally(&mut self, bytes: usize) {
        self.grow_unconditionally(self.used + bytes, self.receives);
    }

    fn grow_unconditionally(&mut self, used: usize, receives: usize) {
        (self.used, self.receives) = (used, receives);
        let more = self.missing(self.quota(used, receives));
        if more > 0 {
            self.budget.ledger.lock().take_unconditionally(self.entry.client, more);
            self.held += more;
        }
    }

    /// Charges `bytes` for receives if they are available to this connection now. A connection keeps its
    /// receives while it is idle, so the receives of all connections may use at most half of the shared
    /// memory.
    #[must_use]
    pub fn take_receives(&mut self, bytes: usize) -> bool {
        let receives = self.receives + bytes;
        let more = self.quota_of_receives(receives) - self.quota_of_receives(self.receives);
        let client = self.entry.client;
        if more > 0 && !self.budget.change(|ledger, woken| ledger.add_receives(client, more, woken)) {
            return false;
        }
        let taken = self.grow(self.used + bytes, receives);
        if !taken && more > 0 {
            self.budget.ledger.lock().remove_receives(client, more);
        }
        taken
    }

    /// Charges `bytes` for indispensable receives, as [`Self::take_unconditionally`].
    pub fn take_receives_unconditionally(&mut self, bytes: usize) {
        let before = self.quota_of_receives(self.receives);
        self.grow_unconditionally(self.used + bytes, self.receives + bytes);
        let more = self.quota_of_receives(self.receives) - before;
        if more > 0 {
            let client = self.entry.client;
            self.budget.change(|ledger, woken| ledger.add_receives_unconditionally(client, more, woken));
        }
    }

    /// Releases `bytes` of receives.
    pub fn give_receives(&mut self, bytes: usize) {
        let after = self.receives.saturating_sub(bytes);
        let less = self.quota_of_receives(self.receives) - self.quota_of_receives(after);
        if less > 0 {
            self.budget.ledger.lock().remove_receives(self.entry.client, less);
        }
        self.receives = after;
        self.give(bytes);
    }

    /// Releases `bytes`.
    pub fn give(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
        self.trim();
    }

    /// Replaces a charge of `before` bytes by one of `after` bytes.
    pub fn replace(&mut self, before: usize, after: usize) {
        if after > before { self.take_unconditionally(after - before) } else { self.give(before - after) }
    }

    /// Releases unneeded shared memory. A busy connection keeps one unit for its next call.
    fn trim(&mut self) {
        let quota = self.quota(self.used, self.receives);
        let unit = if quota > 0 { self.budget.quantum } else { 0 };
        if self.held > quota + unit {
            self.release(self.held - quota);
        }
    }

    /// Releases `surplus` bytes: the connection keeps them if it may.
    fn release(&mut self, surplus: usize) {
        self.held -= surplus;
        self.give_shared(surplus - self.state.kept.keep(surplus));
    }

    /// Returns shared memory to the ledger.
    fn give_shared(&self, bytes: usize) {
        let client = self.entry.client;
        if bytes > 0 {
            self.budget.change(|ledger, woken| ledger.give(client, bytes, woken));
        }
    }

    /// The time of the budget's clock.
    pub fn now(&self) -> Instant {
        self.budget.now()
    }

    /// Records a call and returns its time.
    pub fn touch(&self) -> Instant {
        let now = self.now();
        self.state.touch(now);
        now
    }

    /// Whether another client made a call within the last 100 ms before `now`.
    pub fn others_called(&self, now: Instant) -> bool {
        self.budget.ledger.lock().others_called(self.entry.client, now)
    }

    /// The time that the peer may fall behind in a transfer ([`RateMonitor`](crate::RateMonitor)): usually `limit`, but 5
    /// seconds at most while the connection uses shared memory, its client is the one that uses most, and more than its
    /// share, and others wait for memory. When that begins, the task that polls [`Self::poll_evicted`] is woken.
    pub fn stall_limit(&self, limit: Duration) -> Duration {
        let overdrawn = self.of_client.overdrawn.load(Ordering::Relaxed);
        if overdrawn && self.held_for_calls() > 0 { limit.min(STALL_LIMIT_WHEN_OVERDRAWN) } else { limit }
    }

    /// Ready when the connection must be closed because of the connection limit.
    pub fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.state.evicted.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        self.state.task.register(cx.waker());
        if self.state.evicted.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let held = self.held + self.state.kept.take();
        let (client, entry, waiter) = (self.client, self.entry, self.waiter);
        let (state, receives) = (&self.state, self.quota_of_receives(self.receives));
        self.budget.change(|ledger, woken| {
            ledger.remove_receives(entry.client, receives);
            let granted = waiter.map_or(0, |key| ledger.cancel(key, woken));
            if held + granted > 0 {
                ledger.give(entry.client, held + granted, woken);
            }
            ledger.close(client, entry, state, woken);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, net::IpAddr};

    use futures::FutureExt;
    use millrace_runtime::tokio_rt::TokioRuntime;

    use super::*;
    use crate::kept;

    const KIB: usize = 1 << 10;

    fn client(n: u8) -> ClientAddr {
        IpAddr::from([10, 0, 0, n]).into()
    }

    fn config(memory: usize, own: usize) -> BudgetConfig {
        BudgetConfig { memory, own, largest: 64 * KIB, connections: 4, per_client: 4 }
    }

    #[tokio::test]
    async fn reserved_memory_is_available_to_each_connection() {
        let budget = Budget::new(config(256 * KIB, 16 * KIB), TokioRuntime::current());
        let mut greedy = budget.open(client(1)).unwrap();
        let mut small = budget.open(client(2)).unwrap();
        while greedy.take(KIB) {}
        greedy.take_unconditionally(1 << 20);
        for _ in 0..16 {
            assert!(small.take(KIB));
        }
        assert!(!small.take(64 * KIB));
        assert_eq!(budget.client_in_use(client(2)), 0);
        drop(greedy);
        assert!(small.take(64 * KIB));
        assert!(budget.client_in_use(client(2)) >= 64 * KIB);
        drop(small);
        assert_eq!(budget.stats().in_use, 0);
        assert!(budget.stats().peak >= budget.stats().shared);
    }

    /// Receives do not take the memory that is reserved for small calls, nor do calls of others.
    #[tokio::test]
    async fn receives_leave_reserved_memory_to_calls() {
        let budget = Budget::new(config(256 * KIB, 16 * KIB), TokioRuntime::current());
        let mut victim = budget.open(client(1)).unwrap();
        victim.take_receives_unconditionally(16 * KIB);
        let mut greedy = budget.open(client(2)).unwrap();
        while greedy.take(KIB) {}
        greedy.take_unconditionally(1 << 20);
        for _ in 0..4 {
            assert!(victim.take(KIB), "{budget:?}");
        }
        assert!(!victim.take_receives(4 * KIB) && !victim.take(64 * KIB));
        victim.give_receives(16 * KIB);
        victim.give(4 * KIB);
        drop((victim, greedy));
        assert_eq!((budget.stats().in_use, budget.0.ledger.lock().receives()), (0, 0));
    }

    #[tokio::test]
    async fn a_connection_keeps_memory_until_it_is_scarce() {
        let budget = Budget::new(config(1 << 20, 0), TokioRuntime::current());
        let (mut a, mut b) = (budget.open(client(1)).unwrap(), budget.open(client(2)).unwrap());
        let keeps = |budget: &Budget| {
            let ledger = budget.0.ledger.lock();
            ledger.client_held(client(1)) - ledger.client_in_use(client(1))
        };
        let mut use_some = || {
            assert!(a.take(320 * KIB));
            a.give(320 * KIB);
            (budget.stats().in_use, keeps(&budget))
        };
        assert_eq!(use_some(), (0, kept::MAXIMUM));
        assert_eq!(use_some(), (0, kept::MAXIMUM));
        // All memory for one call of another client.
        poll_fn(|cx| b.poll_take(cx, 1 << 20)).await;
        assert_eq!((budget.stats().waits, budget.stats().in_use, keeps(&budget)), (0, 1 << 20, 0));
        b.give(768 * KIB);
        assert_eq!(use_some(), (256 * KIB, 0), "memory is scarce until calls use an eighth of it");
        b.give(256 * KIB);
        assert_eq!(use_some(), (0, kept::MAXIMUM), "the release ended the scarcity");
    }

    /// A connection that is idle after a failed request for more than it kept holds nothing.
    #[tokio::test]
    async fn a_request_that_fails_releases_kept_memory() {
        let budget = Budget::new(config(1 << 20, 0), TokioRuntime::current());
        let (mut a, mut b) = (budget.open(client(1)).unwrap(), budget.open(client(2)).unwrap());
        assert!(a.take(320 * KIB));
        a.give(320 * KIB);
        b.take_unconditionally(768 * KIB);
        assert!(!a.take(512 * KIB), "{:?}", budget.stats());
        b.give(768 * KIB);
        poll_fn(|cx| b.poll_take(cx, 1 << 20)).now_or_never().expect("all memory is free");
    }

    #[tokio::test]
    async fn a_call_as_large_as_the_memory_is_served_when_alone() {
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

    /// A connection that was charged more than the shared memory unconditionally.
    #[tokio::test]
    async fn a_connection_that_uses_all_memory_waits_for_its_own_calls() {
        let budget = Budget::new(config(256 * KIB, 0), TokioRuntime::current());
        let mut account = budget.open(client(1)).unwrap();
        for used in [256 * KIB, 320 * KIB] {
            account.take_unconditionally(used);
            assert!(!account.take(KIB), "{used}: {:?}", budget.stats());
            assert!(futures::poll!(poll_fn(|cx| account.poll_take(cx, KIB))).is_pending());
            account.give(used - KIB);
            poll_fn(|cx| account.poll_take(cx, KIB)).await;
            account.give(2 * KIB);
            assert_eq!(budget.stats().in_use, 0);
        }
    }

    #[test]
    fn an_evicted_connection_is_notified() {
        let rt = millrace_runtime::virtual_time::VirtualTime::new(1);
        let budget = Budget::new(BudgetConfig { connections: 1, ..config(1 << 20, 0) }, rt.runtime());
        let first = budget.open(client(1)).unwrap();
        assert_eq!(
            budget.open(client(1)).err(),
            Some(AdmissionError::Server),
            "the first connection is not idle"
        );
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
            account.take_receives_unconditionally(16 * KIB);
            while account.take_receives(4 * KIB) {}
        }
        let stats = budget.stats();
        assert!(stats.in_use > stats.shared / 8 && stats.in_use <= stats.shared / 2, "{stats:?}");
        assert!(!idle[2].take_receives(4 * KIB) && idle[2].take(4 * KIB), "the rest is available to calls");
        idle[2].give(4 * KIB);
        let given = idle[1].receives;
        idle[1].give_receives(given);
        assert!(idle[2].take_receives(4 * KIB), "released memory is available to others");
        drop(idle);
        assert_eq!((budget.stats().in_use, budget.0.ledger.lock().receives()), (0, 0));
    }

    /// A client that uses all its receives gets memory for a call as a client without any.
    #[tokio::test]
    async fn receives_do_not_count_against_the_calls_of_their_client() {
        let budget = Budget::new(config(256 * KIB, 0), TokioRuntime::current());
        let (mut idle, _other) = (budget.open(client(1)).unwrap(), budget.open(client(2)).unwrap());
        while idle.take_receives(4 * KIB) {}
        let stats = budget.stats();
        assert!(stats.in_use >= stats.shared / 5, "{stats:?}");
        assert!(idle.take(stats.shared / 2), "{stats:?}");
    }

    /// Connections on several threads request more memory than exists: all requests are granted eventually.
    #[test]
    fn no_wake_up_is_lost_between_threads() {
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
            let all = tokio::time::timeout(Duration::from_secs(60), all).await;
            all.expect("a connection waits indefinitely").into_iter().for_each(Result::unwrap);
            let stats = budget.stats();
            assert!(stats.waits > 0 && stats.peak <= stats.shared, "{stats:?}");
            assert_eq!((stats.in_use, stats.waiting, stats.connections), (0, 0, 0));
        });
    }
}
