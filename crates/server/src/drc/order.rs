//! Finished calls by time, for all clients and for each client.
//!
//! All operations take constant time and allocate no heap memory below the previous maximum of calls and
//! clients: the calls are slots of one vector, linked by index.

use std::collections::HashMap;

use millrace_admission::ClientAddr;
use millrace_runtime::Instant;

use super::key::Key;

/// End of a list.
const NONE: u32 = u32::MAX;

struct Slot {
    key: Key,
    since: Instant,
    /// The neighbours among the calls of all clients. In a free slot, `newer` is the next free slot.
    older: u32,
    newer: u32,
    /// The next newer call of the same client.
    next: u32,
}

/// The calls of one client.
struct ClientCalls {
    oldest: u32,
    newest: u32,
    len: usize,
}

/// Finished calls with their completion times.
pub(super) struct FinishedCalls {
    slots: Vec<Slot>,
    free: u32,
    oldest: u32,
    newest: u32,
    len: usize,
    /// Clients with finished calls.
    clients: HashMap<ClientAddr, ClientCalls>,
}

impl FinishedCalls {
    pub(super) fn with_capacity(calls: usize) -> Self {
        let slots = Vec::with_capacity(calls);
        Self { slots, free: NONE, oldest: NONE, newest: NONE, len: 0, clients: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of clients.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Number of calls of a client.
    pub(super) fn calls_of(&self, client: ClientAddr) -> usize {
        self.clients.get(&client).map_or(0, |calls| calls.len)
    }

    /// A client with more than `share` calls.
    pub(super) fn client_over(&self, share: usize) -> Option<ClientAddr> {
        self.clients.iter().find(|(_, calls)| calls.len > share).map(|(client, _)| *client)
    }

    /// Completion time of the oldest call.
    pub(super) fn oldest_since(&self) -> Option<Instant> {
        self.slot(self.oldest).map(|slot| slot.since)
    }

    /// Adds a call that completed now.
    pub(super) fn push(&mut self, key: Key, since: Instant) {
        let slot = Slot { key, since, older: self.newest, newer: NONE, next: NONE };
        let at = match self.slots.get_mut(self.free as usize) {
            Some(free) => {
                let at = std::mem::replace(&mut self.free, free.newer);
                *free = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        match self.slots.get_mut(self.newest as usize) {
            Some(before) => before.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
        self.len += 1;
        let calls =
            self.clients.entry(key.counted()).or_insert(ClientCalls { oldest: at, newest: NONE, len: 0 });
        if let Some(before) = self.slots.get_mut(calls.newest as usize) {
            before.next = at;
        }
        calls.newest = at;
        calls.len += 1;
    }

    /// Removes the oldest call.
    pub(super) fn take_oldest(&mut self) -> Option<Key> {
        // The oldest call of all is also the oldest call of its client.
        self.take_oldest_of(self.slot(self.oldest)?.key.counted())
    }

    /// Removes the oldest call of a client.
    pub(super) fn take_oldest_of(&mut self, client: ClientAddr) -> Option<Key> {
        let calls = self.clients.get_mut(&client)?;
        let at = calls.oldest;
        let slot = self.slots.get_mut(at as usize)?;
        let (key, older, newer) = (slot.key, slot.older, slot.newer);
        (calls.oldest, calls.len) = (slot.next, calls.len - 1);
        slot.newer = std::mem::replace(&mut self.free, at);
        if calls.len == 0 {
            self.clients.remove(&client);
        }
        match self.slots.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        self.len -= 1;
        Some(key)
    }

    fn slot(&self, at: u32) -> Option<&Slot> {
        self.slots.get(at as usize)
    }

    /// Sum of the counts by client, which equals [`Self::len`].
    #[cfg(test)]
    pub(super) fn counted(&self) -> usize {
        self.clients.values().map(|calls| calls.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, net::Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    const CLIENTS: u8 = 5;

    #[derive(Debug, Clone)]
    enum Step {
        Push(u8),
        TakeOldest,
        TakeOldestOf(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..CLIENTS).prop_map(Step::Push),
            1 => Just(Step::TakeOldest),
            2 => (0..CLIENTS).prop_map(Step::TakeOldestOf),
        ];
        prop::collection::vec(step, 0..300)
    }

    fn key(client: u8, xid: u32) -> Key {
        Key { client: Ipv4Addr::new(10, 0, 0, client).into(), xid, proc: 7, checksum: 0 }
    }

    proptest! {
        #[test]
        fn calls_are_ordered_by_time(steps in steps()) {
            let (mut order, mut queue) = (FinishedCalls::with_capacity(1), VecDeque::<(Key, Instant)>::new());
            let (mut most, mut now) = (0, Instant::default());
            for (n, step) in steps.into_iter().enumerate() {
                now = now + std::time::Duration::from_secs(1);
                match step {
                    Step::Push(client) => {
                        let key = key(client, n as u32);
                        order.push(key, now);
                        queue.push_back((key, now));
                    }
                    Step::TakeOldest => {
                        prop_assert_eq!(order.take_oldest(), queue.pop_front().map(|(key, _)| key));
                    }
                    Step::TakeOldestOf(client) => {
                        let client = key(client, 0).counted();
                        let at = queue.iter().position(|(key, _)| key.counted() == client);
                        let expected = at.and_then(|at| queue.remove(at)).map(|(key, _)| key);
                        prop_assert_eq!(order.take_oldest_of(client), expected);
                    }
                }
                most = most.max(queue.len());
                prop_assert_eq!(order.len(), queue.len());
                prop_assert_eq!(order.counted(), queue.len());
                prop_assert_eq!(order.oldest_since(), queue.front().map(|(_, since)| *since));
                prop_assert_eq!(order.slots.len(), most, "free slots are reused");
                let calls_of = |client| queue.iter().filter(|(key, _)| key.counted() == client).count();
                let calls_of: Vec<_> = (0..CLIENTS).map(|c| key(c, 0).counted()).map(|c| (c, calls_of(c))).collect();
                for (client, n) in &calls_of {
                    prop_assert_eq!(order.calls_of(*client), *n);
                }
                prop_assert_eq!(order.clients(), calls_of.iter().filter(|(_, n)| *n > 0).count());
                let share = calls_of.iter().map(|(_, n)| *n).max().unwrap_or(0);
                prop_assert_eq!(order.client_over(share), None);
                prop_assert_eq!(order.client_over(share.saturating_sub(1)).is_some(), share > 0);
            }
        }
    }
}
