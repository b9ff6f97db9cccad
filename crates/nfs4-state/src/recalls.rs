//! Recalls: callbacks to send, and the delegations to revoke if they are not returned.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_nfs::v4::{ClientId, Stateid};
use parking_lot::Mutex;

use crate::{
    client::Client,
    delegation::Delegation,
    table::{Name, stateid},
    visits::{STEP, count_visits},
};

/// A delegation to recall: arguments of CB_RECALL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recall {
    /// The client.
    pub client: ClientId,
    /// Stateid of the delegation.
    pub stateid: Stateid,
    /// Key of the file.
    pub file: Arc<[u8]>,
}

/// A client that has many delegations: arguments of CB_RECALL_ANY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecallAny {
    /// The client.
    pub client: ClientId,
    /// Number of delegations that it may keep.
    pub keep: u32,
}

/// Numbers of delegations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DelegationStats {
    /// Delegations that clients hold.
    pub held: u64,
    /// Recalls since the start.
    pub recalled: u64,
    /// Delegations since the start that were not returned in time.
    pub revoked: u64,
}

/// A delegation that is revoked unless it is returned.
#[derive(Debug)]
pub(crate) struct Due {
    since: Duration,
    pub(crate) client: Arc<Client>,
    pub(crate) number: u32,
    pub(crate) file: Name,
}

/// All recalls.
#[derive(Debug, Default)]
pub(crate) struct Recalls {
    /// The recalls that the server has not taken yet.
    waiting: Mutex<Vec<Recall>>,
    /// Whether `waiting` has recalls.
    is_waiting: AtomicBool,
    /// Recalls with a time limit, in the order of these times.
    due: Mutex<VecDeque<Due>>,
    pub(crate) recalled: AtomicU64,
    pub(crate) revoked: AtomicU64,
}

impl Recalls {
    /// Adds a recall, or repeats one whose callback has failed.
    pub(crate) fn begin(&self, delegation: &Delegation, file: &Name, now: Duration) {
        let (client, number) = (delegation.client.clone(), delegation.number);
        let recall =
            Recall { client: client.id(), stateid: stateid(client.id(), number, 1), file: file.clone() };
        self.waiting.lock().push(recall);
        self.is_waiting.store(true, Ordering::Release);
        if delegation.recalled.is_none() {
            self.recalled.fetch_add(1, Ordering::Relaxed);
            self.due.lock().push_back(Due { since: now, client, number, file: file.clone() });
        }
    }

    pub(crate) fn take(&self) -> Vec<Recall> {
        if !self.is_waiting.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock();
        self.is_waiting.store(false, Ordering::Release);
        std::mem::take(&mut *waiting)
    }

    /// Takes some of those that have begun at `before` or earlier. They may have been returned. Returns whether there are
    /// more.
    pub(crate) fn take_overdue(&self, before: Duration) -> (Vec<Due>, bool) {
        let mut due = self.due.lock();
        let all = due.partition_point(|due| due.since <= before);
        let count = all.min(STEP);
        count_visits(count);
        (due.drain(..count).collect(), count < all)
    }

    pub(crate) fn retry(&self, due: Due) {
        self.due.lock().push_front(due);
    }

    pub(crate) fn count_revoked(&self) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
    }
}
