//! The locked files of a client: their opens and byte-range locks, and what the client reclaims after a restart of the
//! server.
//!
//! A file is open at the server while it has locks. The recorded state changes with the replies of the server; one
//! operation of a file at a time is in progress, except during recovery, which replaces the stateids of the state that
//! the server grants again. An operation that used the old ones then repeats.
//!
//! `table.rs` has the recorded state, `operations.rs` locks and unlocks, `reclaim.rs` claims the locks from a restarted
//! server, `revocation.rs` handles those that the server has revoked, and `release.rs` those of a file that is dropped, and
//! `waiting.rs` has the owners that wait for locks.

mod operations;
mod reclaim;
mod release;
mod revocation;
mod table;
mod waiting;

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use futures::channel::oneshot;

use millrace_nfs::v4::{Operation, Stateid, Status};
use millrace_oncrpc::{CallClass, EncodedCredential};
use millrace_runtime::{
    RuntimeExt,
    sync::{Mutex, MutexGuard},
};

pub(super) use self::reclaim::Reclaimed;
pub(crate) use self::table::{LockEpoch, LockedFiles};
use self::{table::FileState, waiting::Waiting};
use super::{
    compound::Compound,
    session::{Session, spec},
};
use crate::Error;

/// Maximum size of the replies in bytes: a denied lock has an owner of up to 1 KiB.
const REPLY: usize = 2048;

/// The locks of one file.
pub(crate) struct FileLocks {
    session: Arc<Session>,
    file: Vec<u8>,
    /// Credentials of the first lock, which also apply to reclaims.
    credential: Arc<EncodedCredential>,
    /// Owner of the open.
    open_owner: [u8; 8],
    /// Held during an operation.
    turn: futures::lock::Mutex<()>,
    state: Mutex<FileState>,
    /// Changes while `state` is locked.
    epoch: AtomicU64,
    waiting: Waiting,
}

impl FileLocks {
    /// The locks of the file with this handle.
    pub(crate) fn of(session: &Arc<Session>, file: &[u8], credential: &Arc<EncodedCredential>) -> Arc<Self> {
        let mut files = session.locked.files.lock();
        if let Some(known) = files.get(file).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Self {
            session: Arc::clone(session),
            file: file.to_vec(),
            credential: Arc::clone(credential),
            open_owner: session.pool.rt.random_u64().to_be_bytes(),
            turn: Default::default(),
            state: Mutex::default(),
            epoch: AtomicU64::new(session.locked.next_epoch().0),
            waiting: Waiting::default(),
        });
        files.insert(file.to_vec(), Arc::downgrade(&new));
        new
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock()
    }

    /// The current epoch.
    pub(crate) fn epoch(&self) -> LockEpoch {
        LockEpoch(self.epoch.load(Ordering::Acquire))
    }

    /// Begins the next epoch, while `state` is locked.
    fn begin_epoch(&self, _state: &mut FileState) {
        self.epoch.store(self.session.locked.next_epoch().0, Ordering::Release);
    }

    /// Completes when locks of the file are lost; an error if the file is dropped.
    pub(crate) fn watch(&self) -> oneshot::Receiver<()> {
        let (sender, lost) = oneshot::channel();
        let mut state = self.state();
        state.watchers.retain(|w| !w.is_canceled());
        state.watchers.push(sender);
        lost
    }

    /// Records the open of the file, or that it is closed. Returns the earlier open.
    fn set_open(&self, state: &mut FileState, open: Option<(Stateid, u32)>) -> Option<(Stateid, u32)> {
        let before = std::mem::replace(&mut state.open, open);
        match (before, open) {
            (None, Some(_)) => self.session.locked.open.fetch_add(1, Ordering::Relaxed),
            (Some(_), None) => self.session.locked.open.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        before
    }

    /// Makes a call with one of the operations on locks.
    async fn call<C: Compound>(
        &self,
        name: &'static str,
        compound: &C,
    ) -> Result<Result<C::Ok, (Operation, Status)>, Error> {
        let spec = spec(name, REPLY, CallClass::Other);
        Ok(self.session.call(&self.credential, spec, true, compound, None).await?.result)
    }
}
