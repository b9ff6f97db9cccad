//! The grace period after a start, and the durable list of clients (RFC 8881, 8.4.2).

use std::{
    collections::HashSet,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use millrace_admission::ClientAddr;
use millrace_nfs::v4::Status;
use parking_lot::Mutex;

use crate::{client::Client, table::Name};

/// Time after the end of the grace period in which the execution of the last reclaims ends.
const MARGIN: Duration = Duration::from_secs(1);
/// A reclaim leaves a lease divided by this for the next one.
const STEPS: u32 = 3;

/// The clients that may have state, in storage that survives the server: only these may reclaim state after a restart.
/// A method returns when its effect is durable, so that the caller may have to move it to another thread.
pub trait ClientList: fmt::Debug + Send + Sync {
    /// Adds a client, which is charged to `address`, before it gets its first state. Adding one that is on the list
    /// succeeds.
    ///
    /// # Errors
    /// Any error: the client gets DELAY, and no state.
    fn add(&self, owner: &[u8], address: ClientAddr) -> std::io::Result<()>;

    /// Removes clients, before others get what their state excludes. Those that are not on the list are ignored.
    ///
    /// # Errors
    /// Any error: the state of the clients is kept, and the server tries again.
    fn remove(&self, owners: &[Box<[u8]>]) -> std::io::Result<()>;
}

/// The grace period: who may still reclaim state.
#[derive(Debug)]
pub(crate) struct Grace {
    over: AtomicBool,
    /// Time that a reclaim leaves for the next one.
    step: Duration,
    /// Time after which nothing extends the period.
    last: Duration,
    waiting: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// Clients of the earlier instance that have not sent RECLAIM_COMPLETE.
    owners: HashSet<Name>,
    end: Duration,
    /// The clients that are missing are being removed from the list: none can reclaim state any more.
    closed: bool,
}

impl Grace {
    /// A grace period until `end`; it is over at once if there are no clients to wait for. As long as clients reclaim
    /// state, it is extended, by one `lease` at most: they need not lose the rest of it.
    pub(crate) fn new(clients: impl IntoIterator<Item = Box<[u8]>>, end: Duration, lease: Duration) -> Self {
        let owners: HashSet<_> = clients.into_iter().map(Name::from).collect();
        let (over, step, last) = (AtomicBool::new(owners.is_empty()), lease / STEPS, end + lease);
        Self { over, step, last, waiting: Mutex::new(Waiting { owners, end, closed: false }) }
    }

    /// Whether the grace period is over, so that clients get new state.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The clients that have not sent RECLAIM_COMPLETE, in the order of their names.
    pub(crate) fn awaited(&self) -> Vec<Name> {
        let mut owners: Vec<_> = self.waiting.lock().owners.iter().cloned().collect();
        owners.sort();
        owners
    }

    /// Ends the waiting for a client; the last one ends the grace period.
    pub(crate) fn complete(&self, owner: &[u8]) {
        let mut waiting = self.waiting.lock();
        waiting.owners.remove(owner);
        if waiting.owners.is_empty() {
            self.over.store(true, Ordering::Release);
        }
    }

    /// The clients that have not reclaimed their state, if the grace period is over. No client can reclaim state any
    /// more, and none gets new state before [`complete`](Self::complete) is called for each of them.
    pub(crate) fn missing(&self, now: Duration) -> Vec<Box<[u8]>> {
        if self.is_over() {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock();
        waiting.closed |= now >= waiting.end + MARGIN;
        if waiting.closed {
            waiting.owners.iter().map(|owner| (&**owner).into()).collect()
        } else {
            Vec::new()
        }
    }

    /// Whether a client may get state: by a reclaim only in the grace period, otherwise only after it.
    ///
    /// # Errors
    /// NO_GRACE, RECLAIM_BAD, GRACE.
    pub(crate) fn admit(&self, client: &Client, reclaim: bool, now: Duration) -> Result<(), Status> {
        let complete = client.reclaimed.load(Ordering::Acquire);
        if !reclaim {
            return if complete && self.is_over() { Ok(()) } else { Err(Status::Grace) };
        }
        if complete || self.is_over() {
            return Err(Status::NoGrace);
        }
        let mut waiting = self.waiting.lock();
        if waiting.closed || now >= waiting.end {
            return Err(Status::NoGrace);
        }
        if !waiting.owners.contains(client.owner()) {
            return Err(Status::ReclaimBad);
        }
        waiting.end = waiting.end.max(self.last.min(now + self.step));
        Ok(())
    }
}
