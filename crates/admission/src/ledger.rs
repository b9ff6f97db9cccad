//! The ledger of a [`Budget`](crate::Budget): the memory of each client, and the waiting connections. No
//! locks, clocks or I/O.
//!
//! The limit of a client depends on the free memory: dynamic thresholds (Choudhury and Hahne, "Dynamic queue
//! length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998).

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use millrace_runtime::Instant;
use slab::Slab;

use crate::{AdmissionError, ClientAddr, account::ConnectionState};

/// Threshold of a single client as a multiple of the free memory, and of a client's single connection as a
/// multiple of the remainder of the client's share. It may use 8/9.
const SOLE_FACTOR: usize = 8;
/// The threshold with several clients or connections: n busy clients use 1/(n + 1) each, and a client at its
/// threshold leaves as much as it uses.
const SHARED_FACTOR: usize = 1;
/// Minimum idle time of a connection that is closed in favour of a client with as many connections.
const MIN_IDLE: Duration = Duration::from_secs(10);
/// A client with a call within this time counts as busy.
const RECENT: Duration = Duration::from_millis(100);

/// Maximum numbers of connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    pub(crate) all: usize,
    pub(crate) per_client: usize,
}

/// What the accounts of a client share with the ledger.
#[derive(Debug, Default)]
pub(crate) struct ClientState {
    /// Number of counted connections.
    pub(crate) connections: AtomicUsize,
    /// Whether other clients wait for memory that this one uses beyond its share.
    pub(crate) overdrawn: AtomicBool,
}

#[derive(Default)]
struct Client {
    /// Bytes in use by its connections.
    in_use: usize,
    /// Bytes in use for receives.
    receives: usize,
    /// Its counted connections: all except evicted ones.
    states: Slab<Arc<ConnectionState>>,
    state: Arc<ClientState>,
    /// Number of its accounts, including those of evicted connections.
    accounts: usize,
    /// Its waiting connections, in order.
    waiting: VecDeque<usize>,
}

impl Client {
    /// Bytes that its connections keep for their next calls.
    fn kept(&self) -> usize {
        self.states.iter().map(|(_, s)| s.kept.bytes()).sum()
    }

    /// Bytes in use for calls.
    fn calls(&self) -> usize {
        self.in_use.saturating_sub(self.receives)
    }
}

struct Waiter {
    client: usize,
    /// Bytes that the connection uses for calls.
    held: usize,
    bytes: usize,
    granted: bool,
    waker: Waker,
}

/// Keys of an account in the ledger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) client: usize,
    state: usize,
}

pub(crate) struct Ledger {
    memory: usize,
    /// Bytes that each client may use for calls.
    least_share: usize,
    limits: ConnectionLimits,
    in_use: usize,
    /// Bytes of receives in `in_use`.
    receives: usize,
    peak: usize,
    connections: usize,
    clients: Slab<Client>,
    by_addr: HashMap<ClientAddr, usize>,
    waiters: Slab<Waiter>,
    waiting: usize,
    waits: u64,
    /// Clients with waiting connections, in round-robin order.
    round_robin: VecDeque<usize>,
    /// The waiting request of a client without memory for calls, for which too little memory is free: all
    /// others wait until it is granted.
    starved: Option<usize>,
    /// No waiting request can be granted with less free memory than this.
    least_free: usize,
    /// Whether connections keep no memory for their next calls, since a request failed.
    scarce: bool,
    /// The client that uses most, while it uses more than its share, and another one waits that does not.
    overdrawn: Option<usize>,
}

impl Ledger {
    pub(crate) fn new(memory: usize, least_share: usize, limits: ConnectionLimits) -> Self {
        Self {
            memory,
            least_share,
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
            round_robin: VecDeque::new(),
            starved: None,
            least_free: 0,
            scarce: false,
            overdrawn: None,
        }
    }

    /// Bytes in use, without those that connections keep.
    pub(crate) fn in_use(&self) -> usize {
        let kept: usize = self.clients.iter().map(|(_, c)| c.kept()).sum();
        self.in_use.saturating_sub(kept)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak
    }

    /// Number of waiting connections, and number of waits so far.
    pub(crate) fn waiting(&self) -> (usize, u64) {
        (self.waiting, self.waits)
    }

    pub(crate) fn client_in_use(&self, addr: ClientAddr) -> usize {
        self.client_at(addr).map_or(0, |c| c.in_use.saturating_sub(c.kept()))
    }

    fn client_at(&self, addr: ClientAddr) -> Option<&Client> {
        self.clients.get(*self.by_addr.get(&addr)?)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections
    }

    /// Admits a connection of `addr`. At a limit, another connection may be evicted, which is returned.
    pub(crate) fn admit(
        &mut self,
        addr: ClientAddr,
        state: Arc<ConnectionState>,
        now: Instant,
    ) -> Result<(Entry, Option<Arc<ConnectionState>>), AdmissionError> {
        let own = self.client_at(addr).map_or(0, |c| c.states.len());
        let evicted = if own >= self.limits.per_client {
            Some(self.evict_idle(self.by_addr.get(&addr).copied(), now).ok_or(AdmissionError::Client)?)
        } else if self.connections >= self.limits.all {
            Some(self.evict_for(own, now).ok_or(AdmissionError::Server)?)
        } else {
            None
        };
        let id = *self.by_addr.entry(addr).or_insert_with(|| self.clients.insert(Client::default()));
        let Some(client) = self.clients.get_mut(id) else { return Err(AdmissionError::Server) };
        client.accounts += 1;
        client.state.connections.fetch_add(1, Ordering::Relaxed);
        self.connections += 1;
        self.least_free = 0;
        if self.scarce {
            state.kept.prohibit();
        }
        Ok((Entry { client: id, state: client.states.insert(state) }, evicted))
    }

    /// Evicts the longest idle connection of the client with the most connections, in favour of a client with
    /// `own` connections.
    fn evict_for(&mut self, own: usize, now: Instant) -> Option<Arc<ConnectionState>> {
        let most = self.clients.iter().map(|(_, c)| c.states.len()).max()?;
        let heaviest = self.clients.iter().filter(|(_, c)| c.states.len() == most);
        let (id, _) = heaviest.min_by_key(|(_, c)| c.states.iter().map(|(_, l)| l.last_use()).min())?;
        if most > own + 1 { self.evict_oldest(id) } else { self.evict_idle(Some(id), now) }
    }

    /// As [`Self::evict_oldest`], if that connection has been idle for [`MIN_IDLE`].
    fn evict_idle(&mut self, client: Option<usize>, now: Instant) -> Option<Arc<ConnectionState>> {
        let oldest = self.clients.get(client?)?.states.iter().map(|(_, l)| l.last_use()).min()?;
        if now.duration_since(oldest) < MIN_IDLE {
            return None;
        }
        self.evict_oldest(client?)
    }

    /// What the accounts of a client share.
    pub(crate) fn state_of(&self, client: usize) -> Arc<ClientState> {
        self.clients.get(client).map(|c| Arc::clone(&c.state)).unwrap_or_default()
    }

    /// Whether a client other than `client` made a call within [`RECENT`] before `now`.
    pub(crate) fn others_called(&self, client: usize, now: Instant) -> bool {
        let mut others = self.clients.iter().filter(|(id, _)| *id != client);
        others.any(|(_, c)| c.states.iter().any(|(_, l)| now.duration_since(l.last_use()) < RECENT))
    }

    fn evict_oldest(&mut self, client: usize) -> Option<Arc<ConnectionState>> {
        let client = self.clients.get_mut(client)?;
        let (key, _) = client.states.iter().min_by_key(|(_, l)| l.last_use())?;
        let state = client.states.try_remove(key)?;
        let kept = state.kept.prohibit();
        client.in_use = client.in_use.saturating_sub(kept);
        self.in_use = self.in_use.saturating_sub(kept);
        client.state.connections.fetch_sub(1, Ordering::Relaxed);
        self.connections -= 1;
        Some(state)
    }

    /// Closes an account that holds no memory and has no waiting request.
    pub(crate) fn close(
        &mut self,
        addr: ClientAddr,
        entry: Entry,
        state: &Arc<ConnectionState>,
        woken: &mut Vec<Waker>,
    ) {
        let Some(client) = self.clients.get_mut(entry.client) else { return };
        // The key of an evicted connection may have been reused.
        if client.states.get(entry.state).is_some_and(|l| Arc::ptr_eq(l, state)) {
            client.states.remove(entry.state);
            client.state.connections.fetch_sub(1, Ordering::Relaxed);
            self.connections -= 1;
        }
        client.accounts -= 1;
        if client.accounts == 0 {
            self.clients.remove(entry.client);
            self.by_addr.remove(&addr);
        }
        self.least_free = 0; // The shares of the other connections grow.
        self.serve(woken);
    }

    /// The threshold factors of a client and of its connections.
    fn factors(&self, client: &Client) -> (usize, usize) {
        let factor = |alone: bool| if alone { SOLE_FACTOR } else { SHARED_FACTOR };
        (factor(self.clients.len() == 1), factor(client.accounts == 1))
    }

    /// Minimum free memory for granting `bytes` to a connection that uses `held` bytes for calls. A client
    /// without memory for calls needs `bytes` only.
    fn required_free(&self, client: usize, held: usize, bytes: usize) -> usize {
        let Some(client) = self.clients.get(client).filter(|c| c.calls() > 0) else { return bytes };
        let (of_memory, of_share) = self.factors(client);
        let share = client.calls() + bytes + (held + bytes).div_ceil(of_share);
        bytes + share.div_ceil(of_memory)
    }

    fn permits(&self, client: usize, held: usize, bytes: usize) -> bool {
        self.memory.saturating_sub(self.in_use) >= self.required_free(client, held, bytes)
    }

    fn count_in(&mut self, client: usize, bytes: usize) {
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
        if let Some(client) = self.clients.get_mut(client) {
            client.in_use += bytes;
        }
    }

    /// Allocates `bytes` to a connection that uses `held`, if its threshold permits and no other connection
    /// of its client waits.
    pub(crate) fn take(&mut self, client: usize, held: usize, bytes: usize) -> bool {
        let first = self.clients.get(client).is_some_and(|c| c.waiting.is_empty());
        let mut allowed = self.starved.is_none() && first && self.permits(client, held, bytes);
        if !allowed && self.reclaim() {
            allowed = first && self.permits(client, held, bytes);
        }
        if allowed {
            self.count_in(client, bytes);
        }
        allowed
    }

    /// Takes back what connections keep for their next calls, once until memory is no longer scarce. Returns whether it
    /// did.
    fn reclaim(&mut self) -> bool {
        if std::mem::replace(&mut self.scarce, true) {
            return false;
        }
        for (_, client) in &mut self.clients {
            let kept: usize = client.states.iter().map(|(_, s)| s.kept.prohibit()).sum();
            client.in_use = client.in_use.saturating_sub(kept);
            self.in_use = self.in_use.saturating_sub(kept);
        }
        true
    }

    /// Permits that connections keep memory if no request waits and calls use at most an eighth of it. So a client
    /// cannot cause visits of all connections with each call.
    fn end_scarcity(&mut self) {
        if self.scarce && self.waiting == 0 && self.in_use.saturating_sub(self.receives) <= self.memory / 8 {
            self.scarce = false;
            self.clients.iter().flat_map(|(_, c)| &c.states).for_each(|(_, s)| s.kept.permit());
        }
    }

    /// Allocates `bytes` beyond all thresholds.
    pub(crate) fn take_unconditionally(&mut self, client: usize, bytes: usize) {
        self.count_in(client, bytes);
    }

    /// Counts `bytes` of a client as receives, if the threshold permits. Idle connections keep their
    /// receives, so receives may use half of the memory, which clients share as they share the memory for
    /// calls.
    pub(crate) fn add_receives(&mut self, client: usize, bytes: usize, woken: &mut Vec<Waker>) -> bool {
        let Some(c) = self.clients.get(client) else { return false };
        let required_free = bytes + (c.receives + bytes).div_ceil(self.factors(c).0);
        let allowed = (self.memory / 2).saturating_sub(self.receives) >= required_free;
        if allowed {
            self.add_receives_unconditionally(client, bytes, woken);
        }
        allowed
    }

    /// Counts `bytes` as indispensable receives.
    pub(crate) fn add_receives_unconditionally(
        &mut self,
        client: usize,
        bytes: usize,
        woken: &mut Vec<Waker>,
    ) {
        self.receives += bytes;
        if let Some(c) = self.clients.get_mut(client) {
            c.receives += bytes;
            if !c.waiting.is_empty() {
                self.least_free = 0; // The client uses less for calls, so its threshold permits more.
                self.serve(woken);
            }
        }
    }

    /// Ends the counting of `bytes` as receives.
    pub(crate) fn remove_receives(&mut self, client: usize, bytes: usize) {
        self.receives = self.receives.saturating_sub(bytes);
        if let Some(c) = self.clients.get_mut(client) {
            c.receives = c.receives.saturating_sub(bytes);
        }
    }

    /// Releases bytes; adds the wakers of connections that are granted memory to `woken`.
    pub(crate) fn give(&mut self, client: usize, bytes: usize, woken: &mut Vec<Waker>) {
        self.in_use = self.in_use.saturating_sub(bytes);
        if let Some(c) = self.clients.get_mut(client) {
            c.in_use = c.in_use.saturating_sub(bytes);
            if !c.waiting.is_empty() {
                self.least_free = 0;
            }
        }
        self.serve(woken);
        self.end_scarcity();
    }

    /// Bytes that each client may use for calls: the threshold if all clients use as much that use some, or wait for some, but
    /// always enough for one call.
    fn share(&self) -> usize {
        let busy = self.clients.iter().filter(|(_, c)| c.calls() > 0 || !c.waiting.is_empty()).count();
        let equal = self.memory.saturating_sub(self.receives) / (busy + SHARED_FACTOR);
        equal.max(self.least_share)
    }

    /// Determines which client has overdrawn its share, and wakes its connections when it is another one than before, since
    /// they have less time then ([`Account::stall_limit`](crate::Account::stall_limit)).
    fn find_overdrawn(&mut self, woken: &mut Vec<Waker>) {
        let mut found = None;
        if self.waiting > 0 {
            let share = self.share();
            let most = self.clients.iter().max_by_key(|(_, c)| c.calls());
            found = most.filter(|(_, c)| c.calls() > share).map(|(id, _)| id);
            let waits = |id: &usize| self.clients.get(*id).is_some_and(|c| c.calls() <= share);
            found.take_if(|_| !self.round_robin.iter().any(waits));
        }
        let before = std::mem::replace(&mut self.overdrawn, found);
        if before == found {
            return;
        }
        if let Some(client) = before.and_then(|id| self.clients.get(id)) {
            client.state.overdrawn.store(false, Ordering::Relaxed);
        }
        if let Some(client) = found.and_then(|id| self.clients.get(id)) {
            client.state.overdrawn.store(true, Ordering::Relaxed);
            woken.extend(client.states.iter().filter_map(|(_, s)| s.waker()));
        }
    }

    /// Queues a request of a connection for `bytes`.
    pub(crate) fn wait(
        &mut self,
        client: usize,
        held: usize,
        bytes: usize,
        waker: Waker,
        woken: &mut Vec<Waker>,
    ) -> Option<usize> {
        let c = self.clients.get_mut(client)?;
        let key = self.waiters.insert(Waiter { client, held, bytes, granted: false, waker });
        if c.waiting.is_empty() {
            self.round_robin.push_back(client);
        }
        c.waiting.push_back(key);
        self.waiting += 1;
        self.waits += 1;
        self.least_free = 0;
        self.find_overdrawn(woken);
        Some(key)
    }

    /// Updates a waiting request to `bytes`. Returns the granted bytes if it was granted.
    pub(crate) fn poll_grant(
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

    /// Cancels a request. Returns the bytes that were granted in the meantime, which the connection now
    /// holds.
    pub(crate) fn cancel(&mut self, key: usize, woken: &mut Vec<Waker>) -> usize {
        let Some(waiter) = self.waiters.try_remove(key) else { return 0 };
        if waiter.granted {
            return waiter.bytes;
        }
        self.unqueue(key, waiter.client);
        self.serve(woken);
        0
    }

    /// Removes a request from the queues.
    fn unqueue(&mut self, key: usize, client: usize) {
        self.waiting -= 1;
        self.starved.take_if(|starved| *starved == key);
        let Some(c) = self.clients.get_mut(client) else { return };
        c.waiting.retain(|k| *k != key);
        if c.waiting.is_empty() {
            self.round_robin.retain(|id| *id != client);
        }
        self.least_free = 0;
    }

    /// Grants the waiting requests that the thresholds permit.
    fn serve(&mut self, woken: &mut Vec<Waker>) {
        self.grant_waiting(woken);
        if self.overdrawn.is_some() {
            self.find_overdrawn(woken);
        }
    }

    /// Grants waiting requests, round-robin by client, while a threshold permits one.
    fn grant_waiting(&mut self, woken: &mut Vec<Waker>) {
        let free = self.memory.saturating_sub(self.in_use);
        if self.round_robin.is_empty() || free < self.least_free {
            return;
        }
        self.starved = None;
        let (mut passed, mut least_free) = (0, usize::MAX);
        while passed < self.round_robin.len() {
            let Some(client) = self.round_robin.front().copied() else { return };
            let Some(key) = self.clients.get(client).and_then(|c| c.waiting.front().copied()) else { return };
            let Some((held, bytes)) = self.waiters.get(key).map(|w| (w.held, w.bytes)) else { return };
            if self.permits(client, held, bytes) {
                self.grant(key, client, bytes, woken);
                (passed, least_free) = (0, usize::MAX);
                continue;
            }
            least_free = least_free.min(self.required_free(client, held, bytes));
            if self.clients.get(client).is_some_and(|c| c.calls() == 0) {
                self.starved = Some(key);
                self.least_free = bytes;
                return;
            }
            self.round_robin.rotate_left(1);
            passed += 1;
        }
        self.least_free = least_free;
    }

    fn grant(&mut self, key: usize, client: usize, bytes: usize, woken: &mut Vec<Waker>) {
        self.round_robin.rotate_left(1); // The client's next connection waits until the other clients were served.
        self.unqueue(key, client);
        self.count_in(client, bytes);
        if let Some(waiter) = self.waiters.get_mut(key) {
            waiter.granted = true;
            woken.push(waiter.waker.clone());
        }
    }

    /// Bytes that the connections of a client use or keep.
    #[cfg(test)]
    pub(crate) fn client_held(&self, addr: ClientAddr) -> usize {
        self.client_at(addr).map_or(0, |c| c.in_use)
    }

    #[cfg(test)]
    pub(crate) fn receives(&self) -> usize {
        self.receives
    }

    #[cfg(test)]
    pub(crate) fn states(&self, addr: ClientAddr) -> usize {
        self.client_at(addr).map_or(0, |c| c.states.len())
    }
}

#[cfg(test)]
mod tests;
