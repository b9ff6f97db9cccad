//! The owners of the locks of a file at the server.
//!
//! The kernel names an owner by the address of a process's table of descriptors, or of an open file description, which
//! later ones may have again. It does not wait until the locks of a closed description are released (RELEASE), nor, if a
//! process is killed, until those of the process are (FLUSH). So that such a release never ends a lock that was taken
//! later, locks of flock(2) belong to the handle of their description, and a lock waits for the unlocks of the same holder
//! that arrived before it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use millrace_client::handles::File;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Who holds locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockHolder {
    /// The open file description with this handle, with flock(2).
    Description(u64),
    /// The kernel's owner of a lock of fcntl(2): a process, or an open file description (`F_OFD_SETLK`), which the requests
    /// do not distinguish.
    Owner(u64),
}

/// An owner at the server.
#[derive(Debug, Default)]
struct LockOwner {
    number: u64,
    /// The descriptions through which it has locked since the last FLUSH of its process.
    handles: BTreeSet<u64>,
    /// Locks and unlocks in progress.
    locking: u32,
    unlocking: u32,
}

#[derive(Default)]
struct State {
    /// Holds the locks at the server.
    file: Option<File>,
    owners: BTreeMap<LockHolder, LockOwner>,
}

impl State {
    /// Forgets the holder if it has no locks and no operation is in progress.
    fn remove_if_unused(&mut self, holder: LockHolder) {
        let is_unused = |o: &LockOwner| o.handles.is_empty() && o.locking == 0 && o.unlocking == 0;
        if self.owners.get(&holder).is_some_and(is_unused) {
            self.owners.remove(&holder);
        }
    }
}

/// The owners of the locks of one file: bounded by its open descriptions and the processes that lock it.
#[derive(Default)]
pub(crate) struct LockOwners {
    state: Mutex<State>,
    unlocked: Notify,
}

/// Numbers for owners: each is used once.
#[derive(Default)]
pub(crate) struct OwnerNumbers(AtomicU64);

impl OwnerNumbers {
    /// A number that no owner has.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A lock in progress.
pub(crate) struct Locking {
    owners: Arc<LockOwners>,
    holder: LockHolder,
    pub(crate) file: File,
    /// The owner at the server.
    pub(crate) owner: u64,
}

/// An unlock in progress: later locks of the holder wait for it.
pub(crate) struct Unlocking {
    owners: Arc<LockOwners>,
    holder: LockHolder,
    pub(crate) file: File,
    /// The owner at the server.
    pub(crate) owner: u64,
}

impl LockOwners {
    /// Begins a lock of `holder`, after the unlocks of the same holder that are in progress.
    pub(crate) async fn begin_lock(
        self: &Arc<Self>,
        holder: LockHolder,
        numbers: &OwnerNumbers,
        open: impl Fn() -> File,
    ) -> Locking {
        loop {
            let mut unlocked = std::pin::pin!(self.unlocked.notified());
            unlocked.as_mut().enable();
            {
                let mut state = self.state.lock();
                let file = state.file.get_or_insert_with(&open).clone();
                let new = || LockOwner { number: numbers.next(), ..LockOwner::default() };
                let owner = state.owners.entry(holder).or_insert_with(new);
                if owner.unlocking == 0 {
                    owner.locking += 1;
                    return Locking { owners: Arc::clone(self), holder, file, owner: owner.number };
                }
            }
            unlocked.await;
        }
    }

    /// The number of the owner at the server, if the holder has one.
    pub(crate) fn number(&self, holder: LockHolder) -> Option<u64> {
        self.state.lock().owners.get(&holder).map(|o| o.number)
    }

    /// Begins an unlock. To be called when the request arrives. `None`: the holder has no locks.
    pub(crate) fn begin_unlock(self: &Arc<Self>, holder: LockHolder) -> Option<Unlocking> {
        self.begin_unlock_in(&mut self.state.lock(), holder)
    }

    /// Begins the unlock of all locks of a process, which closes a descriptor of the file. To be called when the request
    /// arrives.
    pub(crate) fn end_process(self: &Arc<Self>, owner: u64) -> Option<Unlocking> {
        let holder = LockHolder::Owner(owner);
        let mut state = self.state.lock();
        state.owners.get_mut(&holder)?.handles.clear();
        self.begin_unlock_in(&mut state, holder)
    }

    /// Begins the unlock of all locks of a description that is closed, or of which a process has left them. To be called
    /// when the request arrives.
    pub(crate) fn end_description(self: &Arc<Self>, handle: u64) -> Vec<Unlocking> {
        let mut state = self.state.lock();
        let ends = |(holder, owner): (&LockHolder, &mut LockOwner)| {
            (owner.handles.remove(&handle) && owner.handles.is_empty()).then_some(*holder)
        };
        let ended: Vec<_> = state.owners.iter_mut().filter_map(ends).collect();
        ended.into_iter().filter_map(|holder| self.begin_unlock_in(&mut state, holder)).collect()
    }

    fn begin_unlock_in(self: &Arc<Self>, state: &mut State, holder: LockHolder) -> Option<Unlocking> {
        let file = state.file.clone()?;
        let owner = state.owners.get_mut(&holder)?;
        owner.unlocking += 1;
        Some(Unlocking { owners: Arc::clone(self), holder, file, owner: owner.number })
    }

    /// Releases the state at the server after the last close, unless there are locks again.
    pub(crate) fn release_if_unused(&self) {
        let mut state = self.state.lock();
        let unused = if state.owners.is_empty() { state.file.take() } else { None };
        drop(state);
        drop(unused);
    }
}

impl Locking {
    /// Records that the server has granted the lock, through the description with this handle.
    pub(crate) fn granted(self, handle: u64) {
        if let Some(owner) = self.owners.state.lock().owners.get_mut(&self.holder) {
            owner.handles.insert(handle);
        }
    }
}

impl Drop for Locking {
    fn drop(&mut self) {
        let mut state = self.owners.state.lock();
        if let Some(owner) = state.owners.get_mut(&self.holder) {
            owner.locking -= 1;
        }
        state.remove_if_unused(self.holder);
    }
}

impl Drop for Unlocking {
    fn drop(&mut self) {
        let mut state = self.owners.state.lock();
        if let Some(owner) = state.owners.get_mut(&self.holder) {
            owner.unlocking -= 1;
        }
        state.remove_if_unused(self.holder);
        drop(state);
        self.owners.unlocked.notify_waiters();
    }
}
