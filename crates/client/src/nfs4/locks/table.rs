//! The table of the files with locks, and the recorded state of each.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use millrace_nfs::v4::Stateid;
use millrace_runtime::sync::Mutex;

use super::FileLocks;
use crate::{
    Error,
    nfs4::{lock_calls::latest, ranges::Ranges},
};

/// The locked files by handle, and those that lost locks.
#[derive(Default)]
pub(crate) struct LockedFiles {
    pub(super) files: Mutex<HashMap<Vec<u8>, Weak<FileLocks>>>,
    /// Number of owners that lost locks and have not unlocked since.
    pub(super) lost: AtomicUsize,
    /// Number of files that are open.
    pub(super) open: AtomicUsize,
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

    /// The stateid for a READ or WRITE, which needs `access`: that of the open if the file is locked.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(crate) fn stateid(&self, file: &[u8], access: u32) -> Result<Stateid, Error> {
        if self.is_lost(file) {
            return Err(Error::LocksLost);
        }
        if self.open.load(Ordering::Relaxed) == 0 {
            return Ok(Stateid::ANONYMOUS);
        }
        let open = self.get(file).and_then(|f| f.state().open);
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
}

impl FileState {
    /// All stateids.
    pub(super) fn stateids(&self) -> Vec<Stateid> {
        let locks = self.owners.values().filter_map(|o| o.stateid);
        self.open.map(|(stateid, _)| stateid).into_iter().chain(locks).collect()
    }
}
