//! The ledger of a [`Budget`](super::Budget): the memory of each client, and the connections that wait. No locks, clocks
//! or I/O.
//!
//! How much a client may hold depends on how much is left: dynamic thresholds (Choudhury and Hahne, "Dynamic queue length
//! thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998).

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use millrace_runtime::Instant;
use slab::Slab;

use super::{ClientAddr, Full, account::Line};

/// The threshold of the only client, as a multiple of the memory that is free; and of a client's only connection, as a
/// multiple of what is left of the client's share. It may use 8/9.
const ALONE: usize = 8;
/// The same with several: n busy clients use 1/(n + 1) each, and a client at its threshold leaves as much as it uses.
const AMONG_OTHERS: usize = 1;
/// A connection with a call more recent than this is not closed for a client with as many connections.
const IDLE: Duration = Duration::from_secs(10);
/// A client with a call more recent than this has work to do.
const RECENT: Duration = Duration::from_millis(100);

/// How many connections there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionLimits {
    pub(super) all: usize,
    pub(super) per_client: usize,
}

#[derive(Default)]
struct Client {
    /// Bytes that its connections hold.
    in_use: usize,
    /// Bytes of these that are receives.
    receives: usize,
    /// Its connections that count: all but those that are being closed for others.
    lines: Slab<Arc<Line>>,
    /// How many these are.
    connections: Arc<AtomicUsize>,
    /// Its accounts, those of connections that are being closed included.
    accounts: usize,
    /// Its waiting connections, in order.
    waiting: VecDeque<usize>,
}

impl Client {
    /// Bytes that its connections hold for calls.
    fn calls(&self) -> usize {
        self.in_use.saturating_sub(self.receives)
    }
}

struct Waiter {
    client: usize,
    /// Bytes that the connection holds for calls already.
    held: usize,
    bytes: usize,
    granted: bool,
    waker: Waker,
}

/// The keys of an account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) client: usize,
    line: usize,
}

pub(super) struct Ledger {
    memory: usize,
    limits: ConnectionLimits,
    in_use: usize,
    /// Bytes of it that hold receives.
    receives: usize,
    peak: usize,
    connections: usize,
    clients: Slab<Client>,
    by_addr: HashMap<ClientAddr, usize>,
    waiters: Slab<Waiter>,
    waiting: usize,
    waits: u64,
    /// Clients with waiting connections, in round-robin order.
    turn: VecDeque<usize>,
    /// A connection whose client holds nothing for calls, and for which too little is free: all others wait until it is served.
    starved: Option<usize>,
    /// With less than this free, no waiting connection can be served.
    least_free: usize,
}

impl Ledger {
    pub(super) fn new(memory: usize, limits: ConnectionLimits) -> Self {
        Self {
            memory,
            limits,
            in_use: 0,
            receives: 0,
            peak: 0,
            connections: 0,
            clients: Slab::new(),
            by_addr: HashMap::new(),
            waiters: Slab::new(),
            waiting: 0,
            waits: 0,
            turn: VecDeque::new(),
            starved: None,
            least_free: 0,
        }
    }

    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    pub(super) fn peak(&self) -> usize {
        self.peak
    }

    /// Connections that wait, and how often one has begun to.
    pub(super) fn waiting(&self) -> (usize, u64) {
        (self.waiting, self.waits)
    }

    pub(super) fn client_in_use(&self, addr: ClientAddr) -> usize {
        self.by_addr.get(&addr).and_then(|id| self.clients.get(*id)).map_or(0, |c| c.in_use)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections
    }

    /// One more connection of `addr`. At a limit another one may have to be closed for it, which is given too.
    pub(super) fn admit(
        &mut self,
        addr: ClientAddr,
        line: Arc<Line>,
        now: Instant,
    ) -> Result<(Entry, Option<Arc<Line>>), Full> {
        let own = self.by_addr.get(&addr).and_then(|id| self.clients.get(*id)).map_or(0, |c| c.lines.len());
        let evicted = if own >= self.limits.per_client {
            Some(self.evict_idle(self.by_addr.get(&addr).copied(), now).ok_or(Full::Client)?)
        } else if self.connections >= self.limits.all {
            Some(self.evict_for(own, now).ok_or(Full::Server)?)
        } else {
            None
        };
        let id = *self.by_addr.entry(addr).or_insert_with(|| self.clients.insert(Client::default()));
        let Some(client) = self.clients.get_mut(id) else { return Err(Full::Server) };
        client.accounts += 1;
        client.connections.fetch_add(1, Ordering::Relaxed);
        self.connections += 1;
        self.least_free = 0;
        Ok((Entry { client: id, line: client.lines.insert(line) }, evicted))
    }

    /// Takes a connection from the client that has most, for one that has `own`: the one that has been idle longest.
    fn evict_for(&mut self, own: usize, now: Instant) -> Option<Arc<Line>> {
        let most = self.clients.iter().map(|(_, c)| c.lines.len()).max()?;
        let heaviest = self.clients.iter().filter(|(_, c)| c.lines.len() == most);
        let (id, _) = heaviest.min_by_key(|(_, c)| c.lines.iter().map(|(_, l)| l.last_use()).min())?;
        if most > own + 1 { self.evict_oldest(id) } else { self.evict_idle(Some(id), now) }
    }

    /// As [`Self::evict_oldest`], if that connection has been idle for some time.
    fn evict_idle(&mut self, client: Option<usize>, now: Instant) -> Option<Arc<Line>> {
        let oldest = self.clients.get(client?)?.lines.iter().map(|(_, l)| l.last_use()).min()?;
        if now.duration_since(oldest) < IDLE {
            return None;
        }
        self.evict_oldest(client?)
    }

    /// The number of connections of a client, as it changes.
    pub(super) fn connections_of(&self, client: usize) -> Arc<AtomicUsize> {
        self.clients.get(client).map(|c| Arc::clone(&c.connections)).unwrap_or_default()
    }

    /// Whether a client other than `client` made a call within [`RECENT`] before `now`.
    pub(super) fn others_called(&self, client: usize, now: Instant) -> bool {
        let mut others = self.clients.iter().filter(|(id, _)| *id != client);
        others.any(|(_, c)| c.lines.iter().any(|(_, l)| now.duration_since(l.last_use()) < RECENT))
    }

    fn evict_oldest(&mut self, client: usize) -> Option<Arc<Line>> {
        let client = self.clients.get_mut(client)?;
        let (key, _) = client.lines.iter().min_by_key(|(_, l)| l.last_use())?;
        let line = client.lines.try_remove(key)?;
        client.connections.fetch_sub(1, Ordering::Relaxed);
        self.connections -= 1;
        Some(line)
    }

    /// The account of a connection, which holds and awaits nothing any more, is closed.
    pub(super) fn close(&mut self, addr: ClientAddr, entry: Entry, line: &Arc<Line>, woken: &mut Vec<Waker>) {
        let Some(client) = self.clients.get_mut(entry.client) else { return };
        // Another one may have the key of one that was evicted.
        if client.lines.get(entry.line).is_some_and(|l| Arc::ptr_eq(l, line)) {
            client.lines.remove(entry.line);
            client.connections.fetch_sub(1, Ordering::Relaxed);
            self.connections -= 1;
        }
        client.accounts -= 1;
        if client.accounts == 0 {
            self.clients.remove(entry.client);
            self.by_addr.remove(&addr);
        }
        self.least_free = 0; // Shares are larger without it.
        self.serve(woken);
    }

    /// The thresholds of a client, and of its connections.
    fn factors(&self, client: &Client) -> (usize, usize) {
        let factor = |alone: bool| if alone { ALONE } else { AMONG_OTHERS };
        (factor(self.clients.len() == 1), factor(client.accounts == 1))
    }

    /// The least memory that must be left before a connection that holds `held` bytes for calls may have `bytes` more. A
    /// client that holds nothing for calls may have it where it is there at all.
    fn needs(&self, client: usize, held: usize, bytes: usize) -> usize {
        let Some(client) = self.clients.get(client).filter(|c| c.calls() > 0) else { return bytes };
        let (of_memory, of_share) = self.factors(client);
        let share = client.calls() + bytes + (held + bytes).div_ceil(of_share);
        bytes + share.div_ceil(of_memory)
    }

    fn permits(&self, client: usize, held: usize, bytes: usize) -> bool {
        self.memory.saturating_sub(self.in_use) >= self.needs(client, held, bytes)
    }

    fn count_in(&mut self, client: usize, bytes: usize) {
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
        if let Some(client) = self.clients.get_mut(client) {
            client.in_use += bytes;
        }
    }

    /// Takes `bytes` for a connection that holds `held`, if it may have them and no other of its client came first.
    pub(super) fn take(&mut self, client: usize, held: usize, bytes: usize) -> bool {
        let first = self.clients.get(client).is_some_and(|c| c.waiting.is_empty());
        let may = self.starved.is_none() && first && self.permits(client, held, bytes);
        if may {
            self.count_in(client, bytes);
        }
        may
    }

    /// Takes `bytes` beyond any threshold.
    pub(super) fn take_anyway(&mut self, client: usize, bytes: usize) {
        self.count_in(client, bytes);
    }

    /// Counts `bytes` of a client as receives, if it may have so many. An idle connection keeps its receives, so that
    /// memory for calls must be left beside those of all connections: they have half, which clients share as they share
    /// the memory for calls.
    pub(super) fn add_receives(&mut self, client: usize, bytes: usize, woken: &mut Vec<Waker>) -> bool {
        let Some(c) = self.clients.get(client) else { return false };
        let needs = bytes + (c.receives + bytes).div_ceil(self.factors(c).0);
        let may = (self.memory / 2).saturating_sub(self.receives) >= needs;
        if may {
            self.add_receives_anyway(client, bytes, woken);
        }
        may
    }

    /// Counts `bytes` as receives that a connection cannot do without.
    pub(super) fn add_receives_anyway(&mut self, client: usize, bytes: usize, woken: &mut Vec<Waker>) {
        self.receives += bytes;
        if let Some(c) = self.clients.get_mut(client) {
            c.receives += bytes;
            if !c.waiting.is_empty() {
                self.least_free = 0; // It holds less for calls, and may have more.
                self.serve(woken);
            }
        }
    }

    /// Counts `bytes` as receives no more.
    pub(super) fn remove_receives(&mut self, client: usize, bytes: usize) {
        self.receives = self.receives.saturating_sub(bytes);
        if let Some(c) = self.clients.get_mut(client) {
            c.receives = c.receives.saturating_sub(bytes);
        }
    }

    /// Gives bytes back; the connections that are served by it are to be woken.
    pub(super) fn give(&mut self, client: usize, bytes: usize, woken: &mut Vec<Waker>) {
        self.in_use = self.in_use.saturating_sub(bytes);
        if let Some(c) = self.clients.get_mut(client) {
            c.in_use = c.in_use.saturating_sub(bytes);
            if !c.waiting.is_empty() {
                self.least_free = 0;
            }
        }
        self.serve(woken);
    }

    /// Queues a connection for `bytes`.
    pub(super) fn wait(&mut self, client: usize, held: usize, bytes: usize, waker: Waker) -> Option<usize> {
        let c = self.clients.get_mut(client)?;
        let key = self.waiters.insert(Waiter { client, held, bytes, granted: false, waker });
        if c.waiting.is_empty() {
            self.turn.push_back(client);
        }
        c.waiting.push_back(key);
        self.waiting += 1;
        self.waits += 1;
        self.least_free = 0;
        Some(key)
    }

    /// A waiting connection is polled again, and needs `bytes` by now: gives what it was granted, if it was served.
    pub(super) fn ask(
        &mut self,
        key: usize,
        held: usize,
        bytes: usize,
        waker: &Waker,
        woken: &mut Vec<Waker>,
    ) -> Option<usize> {
        let waiter = self.waiters.get_mut(key)?;
        if !waiter.granted && (waiter.held, waiter.bytes) != (held, bytes) {
            (waiter.held, waiter.bytes) = (held, bytes);
            self.least_free = 0;
            self.serve(woken);
        }
        let waiter = self.waiters.get_mut(key)?;
        if !waiter.granted {
            waiter.waker.clone_from(waker);
            return None;
        }
        self.waiters.try_remove(key).map(|w| w.bytes)
    }

    /// Cancels a request; gives the bytes that were granted meanwhile, which the connection holds now.
    pub(super) fn forget(&mut self, key: usize, woken: &mut Vec<Waker>) -> usize {
        let Some(waiter) = self.waiters.try_remove(key) else { return 0 };
        if waiter.granted {
            return waiter.bytes;
        }
        self.unqueue(key, waiter.client);
        self.serve(woken);
        0
    }

    /// Takes a connection that has not been served out of the queues.
    fn unqueue(&mut self, key: usize, client: usize) {
        self.waiting -= 1;
        self.starved.take_if(|starved| *starved == key);
        let Some(c) = self.clients.get_mut(client) else { return };
        c.waiting.retain(|k| *k != key);
        if c.waiting.is_empty() {
            self.turn.retain(|id| *id != client);
        }
        self.least_free = 0;
    }

    /// Serves connections that wait, one of each client in turn, as long as one of them may have what it wants.
    fn serve(&mut self, woken: &mut Vec<Waker>) {
        let free = self.memory.saturating_sub(self.in_use);
        if self.turn.is_empty() || free < self.least_free {
            return;
        }
        self.starved = None;
        let (mut passed, mut least_free) = (0, usize::MAX);
        while passed < self.turn.len() {
            let Some(client) = self.turn.front().copied() else { return };
            let Some(key) = self.clients.get(client).and_then(|c| c.waiting.front().copied()) else { return };
            let Some((held, bytes)) = self.waiters.get(key).map(|w| (w.held, w.bytes)) else { return };
            if self.permits(client, held, bytes) {
                self.grant(key, client, bytes, woken);
                (passed, least_free) = (0, usize::MAX);
                continue;
            }
            least_free = least_free.min(self.needs(client, held, bytes));
            if self.clients.get(client).is_some_and(|c| c.calls() == 0) {
                self.starved = Some(key);
                self.least_free = bytes;
                return;
            }
            self.turn.rotate_left(1);
            passed += 1;
        }
        self.least_free = least_free;
    }

    fn grant(&mut self, key: usize, client: usize, bytes: usize, woken: &mut Vec<Waker>) {
        self.turn.rotate_left(1); // The client's next connection waits behind the other clients.
        self.unqueue(key, client);
        self.count_in(client, bytes);
        if let Some(waiter) = self.waiters.get_mut(key) {
            waiter.granted = true;
            woken.push(waiter.waker.clone());
        }
    }

    #[cfg(test)]
    pub(super) fn receives(&self) -> usize {
        self.receives
    }

    #[cfg(test)]
    pub(super) fn lines(&self, addr: ClientAddr) -> usize {
        self.by_addr.get(&addr).and_then(|id| self.clients.get(*id)).map_or(0, |c| c.lines.len())
    }
}

#[cfg(test)]
mod tests;
