//! The byte-range locks of a file with their owners, and the requests that wait for them.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use millrace_nfs::v4::ClientId;

use super::{
    range::{ByteRange, LockKind},
    table::{Held, LockTable},
};
use crate::{client::Client, heap::Charge, table::Name, visits::count_visits};

/// Bytes of a request that waits, without its owner.
const WAITER: usize = 256;
/// Number of requests that wait for locks of a file.
const WAITERS_PER_FILE: usize = 1024;

/// A lock owner that has a stateid for the file.
#[derive(Debug)]
struct Holder {
    client: Arc<Client>,
    owner: Name,
}

/// A blocking request that was denied.
#[derive(Debug)]
struct Waiter {
    client: Arc<Client>,
    owner: Name,
    /// Number of the open.
    open: u32,
    /// Number of the owner in the table, or 0.
    id: u64,
    kind: LockKind,
    range: ByteRange,
    _charge: Charge,
}

/// A lock that a client waits for is available: the client gets CB_NOTIFY_LOCK and requests it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockNotice {
    /// The client.
    pub client: ClientId,
    /// The lock owner.
    pub owner: Arc<[u8]>,
    /// Key of the file.
    pub file: Arc<[u8]>,
}

/// The locks of a file. The number of a stateid of a client identifies the lock owner.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    table: LockTable,
    holders: BTreeMap<u64, Holder>,
    /// The requests that wait, in order.
    waiters: Vec<Waiter>,
}

/// The owner in the table.
fn owner_id(client: &Client, number: u32) -> u64 {
    u64::from(client.serial()) << 32 | u64::from(number)
}

impl FileLocks {
    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// The lock of another owner than the one with `number`, if there is one, that excludes the one described.
    pub(crate) fn conflict(
        &self,
        client: &Client,
        number: Option<u32>,
        kind: LockKind,
        range: ByteRange,
    ) -> Option<(Held, &Arc<Client>, &Name)> {
        let held = self.table.conflict(number.map_or(0, |number| owner_id(client, number)), kind, range)?;
        self.holders.get(&held.owner).map(|holder| (held, &holder.client, &holder.owner))
    }

    /// Locks a range. Returns the change of the number of ranges.
    pub(crate) fn lock(
        &mut self,
        client: &Arc<Client>,
        (number, owner): (u32, &Name),
        kind: LockKind,
        range: ByteRange,
    ) -> isize {
        let id = owner_id(client, number);
        let own = |waiter: &Waiter| waiter.client.id() == client.id() && waiter.owner == *owner;
        self.end_waiting(own);
        self.holders.entry(id).or_insert_with(|| Holder { client: client.clone(), owner: owner.clone() });
        self.change(id, |table| table.lock(id, kind, range))
    }

    fn change(&mut self, id: u64, change: impl FnOnce(&mut LockTable)) -> isize {
        let before = self.table.count(id);
        change(&mut self.table);
        self.table.count(id) as isize - before as isize
    }

    /// Unlocks a range. Returns the change of the number of ranges.
    pub(crate) fn unlock(&mut self, client: &Client, number: u32, range: ByteRange) -> isize {
        let id = owner_id(client, number);
        self.change(id, |table| table.unlock(id, range))
    }

    /// Whether unlocking a range would add one.
    pub(crate) fn divides(&self, client: &Client, number: u32, range: ByteRange) -> bool {
        self.table.divides(owner_id(client, number), range)
    }

    /// Number of ranges that a lock owner has locked.
    pub(crate) fn count(&self, client: &Client, number: u32) -> usize {
        self.table.count(owner_id(client, number))
    }

    /// Removes a lock owner. Returns the number of ranges that it had locked.
    pub(crate) fn remove(&mut self, client: &Client, number: u32) -> usize {
        let id = owner_id(client, number);
        let count = self.table.count(id);
        count_visits(count + 1);
        self.table.remove_owner(id);
        self.holders.remove(&id);
        count
    }

    /// Number of requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Adds a blocking request that was denied, in place of an earlier one of the same owner. There is a limit for each
    /// client and each file; a client that gets no notice repeats its request from time to time.
    pub(crate) fn wait(
        &mut self,
        client: &Arc<Client>,
        (open, number, owner): (u32, Option<u32>, &[u8]),
        kind: LockKind,
        range: ByteRange,
        limit: usize,
    ) {
        let id = number.map_or(0, |number| owner_id(client, number));
        let own = |waiter: &&mut Waiter| waiter.client.id() == client.id() && *waiter.owner == *owner;
        count_visits(self.waiters.len());
        if let Some(waiter) = self.waiters.iter_mut().find(own) {
            (waiter.open, waiter.id, waiter.kind, waiter.range) = (open, id, kind, range);
            return;
        }
        let waiting = client.waiting.load(Ordering::Relaxed);
        if waiting >= limit || self.waiters.len() >= WAITERS_PER_FILE {
            return;
        }
        let Some(charge) = client.heap.charge(WAITER + owner.len()) else { return };
        client.waiting.fetch_add(1, Ordering::Relaxed);
        let (client, owner) = (client.clone(), owner.into());
        self.waiters.push(Waiter { client, owner, open, id, kind, range, _charge: charge });
    }

    /// Ends the waiting for locks that were requested with an open.
    pub(crate) fn end_waiting_of(&mut self, client: &Client, open: u32) {
        self.end_waiting(|waiter| waiter.client.id() == client.id() && waiter.open == open);
    }

    fn end_waiting(&mut self, ends: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        count_visits(self.waiters.len());
        let ended: Vec<_> = self.waiters.extract_if(.., |waiter| ends(waiter)).collect();
        for waiter in &ended {
            waiter.client.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        ended
    }

    /// Ends the waiting for locks that are available, in the order of the requests.
    pub(crate) fn available(&mut self, file: &Name) -> Vec<LockNotice> {
        if self.waiters.is_empty() {
            return Vec::new();
        }
        let table = std::mem::take(&mut self.table);
        let ended = self.end_waiting(|waiter| table.conflict(waiter.id, waiter.kind, waiter.range).is_none());
        self.table = table;
        let notice = |waiter: Waiter| LockNotice {
            client: waiter.client.id(),
            owner: waiter.owner,
            file: file.clone(),
        };
        ended.into_iter().map(notice).collect()
    }
}
