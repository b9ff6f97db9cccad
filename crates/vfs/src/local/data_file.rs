//! A regular file that is open for data, and the sync that its unstable writes still need.
//!
//! Linux records a failed write-back in the inode and reports it once to each descriptor that was open at the time, at
//! that descriptor's next `fsync` or stable write (`errseq_t`, Documentation/core-api/errseq.rst). A descriptor that is
//! opened later gets the error only if no other descriptor has reported it and the inode is still in memory. Three rules
//! follow, without which data could be lost although a COMMIT with an unchanged verifier or a stable write succeeded:
//!
//! - A descriptor with unstable writes stays open until a sync of the whole file through it has ended
//!   ([`DataFile::is_synced`]).
//! - Syncs of one descriptor run one at a time, and the write verifier changes before the next one begins: of two
//!   concurrent ones, one would get the error and the other would succeed ([`SyncTurn`]).
//! - A stable write has a descriptor to itself ([`DataFile::open_spare`]): on a shared one it could get the error
//!   of a concurrent sync or of another stable write, which would then succeed.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::lock::{Mutex, OwnedMutexGuard};
use rustix::{fs::OFlags, io::Errno};

use super::{engine::Verifier, node::reopen, pool::block_on};

/// A descriptor through which file data is read or written.
#[derive(Debug)]
pub(super) struct DataFile {
    fd: OwnedFd,
    /// Unstable writes so far.
    written: AtomicU64,
    /// The value of `written` when the last sync of the whole file began.
    synced: AtomicU64,
    /// Held by the sync that is in progress.
    syncing: Arc<Mutex<()>>,
    /// A descriptor for a stable write that no write uses now.
    spare: parking_lot::Mutex<Option<Arc<Self>>>,
}

impl AsFd for DataFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for DataFile {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl DataFile {
    /// A descriptor without unstable writes.
    pub(super) fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            fd,
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            syncing: Arc::new(Mutex::new(())),
            spare: parking_lot::Mutex::default(),
        })
    }

    /// A descriptor of the same file that no other write uses, if there is one.
    pub(super) fn take_spare(&self) -> Option<Arc<Self>> {
        self.spare.lock().take()
    }

    /// Opens the file again for one stable write; give the descriptor to [`keep_spare`](Self::keep_spare) afterwards.
    /// This descriptor itself if the file cannot be opened: the server's user may not open every file that it has made.
    /// Call on a pool thread.
    pub(super) fn open_spare(self: &Arc<Self>) -> Result<Arc<Self>, Errno> {
        match reopen(self.as_fd(), OFlags::WRONLY) {
            Ok(fd) => Ok(Self::new(fd)),
            Err(Errno::ACCESS | Errno::PERM) => Ok(Arc::clone(self)),
            Err(e) => Err(e),
        }
    }

    /// Keeps a descriptor for the next stable write. Closes it if one is kept already, or the write may still be in
    /// progress.
    pub(super) fn keep_spare(self: &Arc<Self>, mut used: Arc<Self>) {
        if !Arc::ptr_eq(self, &used) && Arc::get_mut(&mut used).is_some() {
            let other = self.spare.lock().replace(used);
            drop(other);
        }
    }

    /// Counts an unstable write. Call when the data is in the page cache and before the write is answered.
    pub(super) fn wrote(&self) {
        self.written.fetch_add(1, Ordering::Release);
    }

    /// Whether no unstable write has been answered since the last sync of the whole file began.
    pub(super) fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire) == self.written.load(Ordering::Acquire)
    }

    /// Waits for the sync in progress, if there is one, and begins the next one.
    pub(super) async fn begin_sync(self: &Arc<Self>) -> SyncTurn {
        let turn = Arc::clone(&self.syncing).lock_owned().await;
        SyncTurn { file: Arc::clone(self), covers: self.written.load(Ordering::Acquire), _turn: turn }
    }

    /// Begins a sync unless one is in progress.
    pub(super) fn try_begin_sync(self: &Arc<Self>) -> Option<SyncTurn> {
        let turn = Arc::clone(&self.syncing).try_lock_owned()?;
        Some(SyncTurn { file: Arc::clone(self), covers: self.written.load(Ordering::Acquire), _turn: turn })
    }

    /// Syncs the file on this thread, which must be one that may block.
    pub(super) fn sync_now(self: &Arc<Self>, verifier: &Verifier) -> Result<(), Errno> {
        let sync = block_on(self.begin_sync());
        let result = rustix::fs::fsync(&self.fd);
        sync.end(result, true, verifier);
        result
    }
}

/// A sync in progress. No other sync of the descriptor begins before it is dropped.
#[derive(Debug)]
pub(super) struct SyncTurn {
    file: Arc<DataFile>,
    covers: u64,
    _turn: OwnedMutexGuard<()>,
}

impl SyncTurn {
    /// Takes the result of `fsync`, of the `whole` file or of a range. Call before the result is answered.
    ///
    /// After a failure the verifier changes, so that clients write again what they have not committed; the descriptor
    /// needs no other sync on behalf of the writes that this one covered.
    pub(super) fn end(self, result: Result<(), Errno>, whole: bool, verifier: &Verifier) {
        let lost = result.is_err_and(data_may_be_lost);
        if lost {
            verifier.change();
        }
        if lost || (whole && result.is_ok()) {
            self.file.synced.fetch_max(self.covers, Ordering::AcqRel);
        }
    }
}

/// Whether a failed sync may mean that data is lost. The other errors report a sync that was not tried.
pub(super) fn data_may_be_lost(error: Errno) -> bool {
    !matches!(
        error,
        Errno::AGAIN | Errno::INTR | Errno::STALE | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP
    )
}
