//! The table of the files with locks, and the recorded state of each.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use futures::channel::mpsc;

use millrace_nfs::v4::Stateid;
use millrace_runtime::sync::Mutex;

use super::FileLocks;
use crate::{
    Error,
    ops::{LockEpoch, OpenState},
    v4::{lock_calls::latest, ranges::Ranges},
};

impl LockEpoch {
    /// Checks that what began in this epoch may continue in the epoch `now`.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    fn may_continue(self, now: Self) -> Result<(), Error> {
        if self == Self::UNLOCKED || self == now { Ok(()) } else { Err(Error::LocksLost) }
    }
}

/// The locked files by handle.
#[derive(Default)]
pub(crate) struct LockedFiles {
    files: Mutex<HashMap<Vec<u8>, Weak<FileLocks>>>,
    /// Number of `files`: without any, an operation looks up nothing.
    count: AtomicUsize,
    /// The last epoch of any file.
    epochs: AtomicU64,
}

impl LockedFiles {
    /// The locks of all files.
    pub(super) fn all(&self) -> Vec<Arc<FileLocks>> {
        self.files.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// The locks of the file with this handle.
    pub(super) fn get(&self, file: &[u8]) -> Option<Arc<FileLocks>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.files.lock().get(file).and_then(Weak::upgrade)
    }

    /// The locks of the file with this handle, which `new` makes if they are not known.
    pub(super) fn get_or_insert(&self, file: &[u8], new: impl FnOnce() -> FileLocks) -> Arc<FileLocks> {
        let mut files = self.files.lock();
        if let Some(known) = files.get(file).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(new());
        files.insert(file.to_vec(), Arc::downgrade(&new));
        self.count.store(files.len(), Ordering::Relaxed);
        new
    }

    /// Forgets the locks of the file with this handle, which are dropped, unless there are new ones.
    pub(super) fn remove_dropped(&self, file: &[u8]) {
        let mut files = self.files.lock();
        if files.get(file).is_some_and(|f| f.strong_count() == 0) {
            files.remove(file);
            self.count.store(files.len(), Ordering::Relaxed);
        }
    }

    /// A new epoch.
    pub(super) fn next_epoch(&self) -> LockEpoch {
        LockEpoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The epoch of a file.
    pub(crate) fn epoch(&self, file: &[u8]) -> LockEpoch {
        self.get(file).map_or(LockEpoch::UNLOCKED, |f| f.epoch())
    }

    /// The state for a request that needs `access`: that of the open if the file is locked. Its operation began in the
    /// epoch `since`, or begins now.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(crate) fn open_state(
        &self,
        file: &[u8],
        access: u32,
        since: Option<LockEpoch>,
    ) -> Result<OpenState, Error> {
        let Some(locks) = self.get(file) else {
            let since = since.unwrap_or(LockEpoch::UNLOCKED);
            return since.may_continue(LockEpoch::UNLOCKED).map(|()| OpenState { since, ..OpenState::NONE });
        };
        let state = locks.state(); // Until the end, so that the stateid is one of this epoch.
        let now = locks.epoch_in(&state)?;
        let since = since.unwrap_or(now);
        since.may_continue(now)?;
        let open = state.open.filter(|(_, has)| has & access != 0);
        Ok(OpenState { stateid: open.map_or(Stateid::ANONYMOUS, |(stateid, _)| latest(stateid)), since })
    }
}

impl FileLocks {
    /// The current epoch, if no owner has lost locks and not unlocked since.
    fn epoch_in(&self, state: &FileState) -> Result<LockEpoch, Error> {
        if state.lost.is_empty() { Ok(self.epoch()) } else { Err(Error::LocksLost) }
    }

    /// The epoch of an operation that begins.
    ///
    /// # Errors
    /// [`Error::LocksLost`] if an owner has lost locks and not unlocked since.
    pub(crate) fn begin(&self) -> Result<LockEpoch, Error> {
        self.epoch_in(&self.state())
    }

    /// Checks that an operation that began in the epoch `since` may continue.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(crate) fn check(&self, since: LockEpoch) -> Result<(), Error> {
        since.may_continue(self.begin()?)
    }
}

/// The locks of one owner in a file.
#[derive(Default)]
pub(super) struct OwnerLocks {
    pub(super) stateid: Option<Stateid>,
    pub(super) ranges: Ranges,
    /// The range of an unlock without a reply. It is not claimed from a restarted server: that may have executed the unlock
    /// before, another client may have locked the range and written, and would lose its lock by the claim, and its data.
    pub(super) releasing: Option<Range<u64>>,
}

/// The recorded state of a file at the server.
#[derive(Default)]
pub(super) struct FileState {
    /// The open, and its bits of [`share_access`](millrace_nfs::v4::share_access).
    pub(super) open: Option<(Stateid, u32)>,
    /// The owners of locks.
    pub(super) owners: BTreeMap<u64, OwnerLocks>,
    /// The owners that lost locks.
    pub(super) lost: BTreeSet<u64>,
    /// Told of each loss of locks. If it is full, the last one has not been taken yet.
    pub(super) watcher: Option<mpsc::Sender<()>>,
}

impl FileState {
    /// All stateids.
    pub(super) fn stateids(&self) -> Vec<Stateid> {
        let locks = self.owners.values().filter_map(|o| o.stateid);
        self.open.map(|(stateid, _)| stateid).into_iter().chain(locks).collect()
    }
}
