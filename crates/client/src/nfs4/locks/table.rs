//! The table of the files with locks, and the recorded state of each.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use futures::channel::oneshot;

use millrace_nfs::v4::Stateid;
use millrace_runtime::sync::Mutex;

use super::FileLocks;
use crate::{
    Error,
    nfs4::{lock_calls::latest, ranges::Ranges},
};

/// Identifies the time between two losses of locks of a file: it changes when the server has revoked locks, and again when
/// their owners have unlocked. What was accepted in one epoch must not change the file in a later one, because other
/// clients may have held the locks in between. Unique in the session, so that an epoch of a file that was dropped is not
/// taken for one of the same file opened again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LockEpoch(pub(super) u64);

impl LockEpoch {
    /// Before the first lock of the file: nothing is protected that could be lost.
    pub(crate) const UNLOCKED: Self = Self(0);
}

/// The locked files by handle, and those that lost locks.
#[derive(Default)]
pub(crate) struct LockedFiles {
    pub(super) files: Mutex<HashMap<Vec<u8>, Weak<FileLocks>>>,
    /// Number of owners that lost locks and have not unlocked since.
    pub(super) lost: AtomicUsize,
    /// Number of files that are open.
    pub(super) open: AtomicUsize,
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
        self.files.lock().get(file).and_then(Weak::upgrade)
    }

    /// Whether an owner has lost locks of the file and not unlocked since.
    pub(crate) fn is_lost(&self, file: &[u8]) -> bool {
        self.lost.load(Ordering::Relaxed) > 0 && self.get(file).is_some_and(|f| !f.state().lost.is_empty())
    }

    /// A new epoch.
    pub(super) fn next_epoch(&self) -> LockEpoch {
        LockEpoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The epoch of a file.
    pub(crate) fn epoch(&self, file: &[u8]) -> LockEpoch {
        if self.epochs.load(Ordering::Relaxed) == 0 {
            return LockEpoch::UNLOCKED;
        }
        self.get(file).map_or(LockEpoch::UNLOCKED, |f| f.epoch())
    }

    /// Checks that no locks of the file were lost since the epoch `since`.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(crate) fn check(&self, file: &[u8], since: LockEpoch) -> Result<(), Error> {
        let is_over = || since != LockEpoch::UNLOCKED && self.epoch(file) != since;
        if self.is_lost(file) || is_over() { Err(Error::LocksLost) } else { Ok(()) }
    }

    /// The stateid for a request that needs `access`, for an operation that began in the epoch `since`: that of the open if
    /// the file is locked.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(crate) fn stateid(&self, file: &[u8], access: u32, since: LockEpoch) -> Result<Stateid, Error> {
        let open = match self.open.load(Ordering::Relaxed) {
            0 => None,
            _ => self.get(file).and_then(|f| f.state().open),
        };
        self.check(file, since)?; // Afterwards, so that the stateid is one of this epoch.
        Ok(open
            .filter(|(_, has)| has & access != 0)
            .map_or(Stateid::ANONYMOUS, |(stateid, _)| latest(stateid)))
    }
}

/// The locks of one owner in a file.
#[derive(Default)]
pub(super) struct OwnerLocks {
    pub(super) stateid: Option<Stateid>,
    pub(super) ranges: Ranges,
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
    /// Those that wait for a loss of locks.
    pub(super) watchers: Vec<oneshot::Sender<()>>,
}

impl FileState {
    /// All stateids.
    pub(super) fn stateids(&self) -> Vec<Stateid> {
        let locks = self.owners.values().filter_map(|o| o.stateid);
        self.open.map(|(stateid, _)| stateid).into_iter().chain(locks).collect()
    }
}
