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
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::channel::mpsc;

use millrace_nfs::v4::{Operation, Status};
use millrace_oncrpc::CallClass;
use millrace_runtime::{
    RuntimeExt,
    sync::{Mutex, MutexGuard},
};

pub(super) use self::reclaim::Reclaimed;
pub(super) use self::revocation::{is_invalid, uses_state};
pub(crate) use self::table::LockedFiles;
use self::{table::FileState, waiting::Waiting};
use super::{
    compound::Compound,
    session::{Session, spec},
};
use crate::{Error, credential::CallCredential, ops::LockEpoch};

/// Maximum size of the replies in bytes: a denied lock has an owner of up to 1 KiB.
const REPLY: usize = 2048;

/// The locks of one file.
///
/// When the server has revoked them, [`Self::lose`] empties the recorded state and names the owners as lost, begins the
/// next [epoch](LockEpoch), and notifies the watcher, in this order and while `state` is locked. From then on requests
/// for the file fail with [`Error::LocksLost`], as do those of operations that began in an earlier epoch and still
/// continue; the retained data belongs to its epoch, and the next use of that data discards it first
/// (`handles/retained.rs`). The unlock of the last lost owner permits requests again, in one more epoch.
pub(crate) struct FileLocks {
    session: Arc<Session>,
    file: Vec<u8>,
    /// Credentials of the first lock, which also apply to reclaims.
    credential: Arc<CallCredential>,
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
    pub(crate) fn of(session: &Arc<Session>, file: &[u8], credential: &Arc<CallCredential>) -> Arc<Self> {
        session.locked.get_or_insert(file, || Self {
            session: Arc::clone(session),
            file: file.to_vec(),
            credential: Arc::clone(credential),
            open_owner: session.pool.rt.random_u64().to_be_bytes(),
            turn: Default::default(),
            state: Mutex::default(),
            epoch: AtomicU64::new(session.locked.next_epoch().0),
            waiting: Waiting::default(),
        })
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

    /// Yields after a loss of locks of the file, once for all since the last time. Ends when the locks are dropped, or
    /// watched again.
    pub(crate) fn watch(&self) -> mpsc::Receiver<()> {
        let (sender, losses) = mpsc::channel(0); // Has room for one.
        self.state().watcher = Some(sender);
        losses
    }

    /// Makes a call with one of the operations on locks.
    async fn call<C: Compound>(
        &self,
        name: &'static str,
        compound: &mut C,
    ) -> Result<Result<C::Ok, (Operation, Status)>, Error> {
        let spec = spec(name, REPLY, CallClass::Other);
        Ok(self.session.call(&self.credential, spec, true, compound, None).await?.result)
    }
}
