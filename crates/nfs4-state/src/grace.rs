//! The grace period after a start, and the durable list of clients (RFC 8881, 8.4.2).

use std::{
    collections::HashSet,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use millrace_nfs::v4::Status;
use parking_lot::Mutex;

use crate::client::Client;

/// The clients that may have state, in storage that survives the server: only these may reclaim state after a restart.
/// A method returns when its effect is durable; the caller may have to move it to another thread.
pub trait ClientList: fmt::Debug + Send + Sync {
    /// Adds a client, before it gets its first state.
    ///
    /// # Errors
    /// Any error: the client gets SERVERFAULT, and no state.
    fn add(&self, owner: &[u8]) -> std::io::Result<()>;

    /// Removes a client, after it has lost its state and before another client gets what it excluded. If that fails,
    /// the client can reclaim state after a restart that conflicts with another's.
    fn remove(&self, owner: &[u8]);
}

/// The grace period: who may still reclaim state.
#[derive(Debug)]
pub(crate) struct Grace {
    over: AtomicBool,
    end: Duration,
    /// Clients of the earlier instance that have not sent RECLAIM_COMPLETE.
    waiting: Mutex<HashSet<Box<[u8]>>>,
}

impl Grace {
    /// A grace period until `end`; it is over at once if there are no clients to wait for.
    pub(crate) fn new(clients: impl IntoIterator<Item = Box<[u8]>>, end: Duration) -> Self {
        let waiting: HashSet<_> = clients.into_iter().collect();
        Self { over: AtomicBool::new(waiting.is_empty()), end, waiting: Mutex::new(waiting) }
    }

    /// Whether the grace period lasts.
    pub(crate) fn lasts(&self, now: Duration) -> bool {
        !self.over.load(Ordering::Acquire) && now < self.end
    }

    /// Ends the waiting for a client; the last one ends the grace period.
    pub(crate) fn complete(&self, owner: &[u8]) {
        let mut waiting = self.waiting.lock();
        waiting.remove(owner);
        if waiting.is_empty() {
            self.over.store(true, Ordering::Release);
        }
    }

    /// Ends the grace period if its time has passed. Returns the clients that have not come back.
    pub(crate) fn expire(&self, now: Duration) -> HashSet<Box<[u8]>> {
        if self.lasts(now) {
            return HashSet::new();
        }
        self.over.store(true, Ordering::Release);
        std::mem::take(&mut self.waiting.lock())
    }

    /// Whether a client may get state: by a reclaim only in the grace period, otherwise only after it.
    ///
    /// # Errors
    /// NO_GRACE, RECLAIM_BAD, GRACE.
    pub(crate) fn admit(&self, client: &Client, reclaim: bool, now: Duration) -> Result<(), Status> {
        let complete = client.reclaimed.load(Ordering::Acquire);
        match (reclaim, self.lasts(now)) {
            (true, true) if complete => Err(Status::NoGrace),
            (true, true) if !self.waiting.lock().contains(client.owner()) => Err(Status::ReclaimBad),
            (true, true) => Ok(()),
            (true, false) => Err(Status::NoGrace),
            (false, false) if complete => Ok(()),
            (false, _) => Err(Status::Grace),
        }
    }
}
