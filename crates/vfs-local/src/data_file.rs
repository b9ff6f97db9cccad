//! A regular file that is open for data, and the sync that its unstable writes require.
//!
//! Linux records a failed write-back in the inode and reports it once to each descriptor that was open at the
//! time, at its next `fsync` or stable write (`errseq_t`, Documentation/core-api/errseq.rst). A descriptor
//! opened later gets the error only if no other descriptor has reported it and the inode is still in memory.
//! Without the following rules, data could be lost although a COMMIT with an unchanged verifier or a stable
//! write succeeded:
//!
//! - A descriptor with unstable writes stays open until a sync of the whole file through it has completed
//!   ([`DataFile::is_synced`]).
//! - Syncs of one descriptor are serialized, and the write verifier changes before the next one starts: of
//!   two concurrent syncs, one would get the error and the other would succeed ([`SyncGuard`]).
//! - Each stable write uses its own descriptor ([`DataFile::open_spare`]): on a shared one it could get the
//!   error of a concurrent sync or stable write, which would then succeed.

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

/// A descriptor for reading or writing file data.
#[derive(Debug)]
pub(super) struct DataFile {
    fd: OwnedFd,
    /// Number of unstable writes.
    written: AtomicU64,
    /// Value of `written` when the last sync of the whole file started.
    synced: AtomicU64,
    /// Held by the sync in progress.
    syncing: Arc<Mutex<()>>,
    /// An unused descriptor for stable writes.
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
    pub(super) fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            fd,
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            syncing: Arc::new(Mutex::new(())),
            spare: parking_lot::Mutex::default(),
        })
    }

    /// Takes the spare descriptor of the file, if there is one.
    pub(super) fn take_spare(&self) -> Option<Arc<Self>> {
        self.spare.lock().take()
    }

    /// Opens the file again for one stable write; pass the descriptor to [`keep_spare`](Self::keep_spare)
    /// afterwards. Returns this descriptor if the file cannot be opened, since the server's user may lack
    /// permission to open a file that it has created. Call on a pool thread.
    pub(super) fn open_spare(self: &Arc<Self>) -> Result<Arc<Self>, Errno> {
        match reopen(self.as_fd(), OFlags::WRONLY) {
            Ok(fd) => Ok(Self::new(fd)),
            Err(Errno::ACCESS | Errno::PERM) => Ok(Arc::clone(self)),
            Err(e) => Err(e),
        }
    }

    /// Keeps a descriptor for the next stable write. Closes it if there is one already, or the write may
    /// still be in progress.
    pub(super) fn keep_spare(self: &Arc<Self>, mut used: Arc<Self>) {
        if !Arc::ptr_eq(self, &used) && Arc::get_mut(&mut used).is_some() {
            let other = self.spare.lock().replace(used);
            drop(other);
        }
    }

    /// Counts an unstable write. Call when the data is in the page cache, before the reply.
    pub(super) fn note_unstable_write(&self) {
        self.written.fetch_add(1, Ordering::Release);
    }

    /// Whether no unstable write has completed since the last sync of the whole file started.
    pub(super) fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire) == self.written.load(Ordering::Acquire)
    }

    /// Waits for the sync in progress, if any, and starts the next one.
    pub(super) async fn start_sync(self: &Arc<Self>) -> SyncGuard {
        let guard = Arc::clone(&self.syncing).lock_owned().await;
        SyncGuard { file: Arc::clone(self), covers: self.written.load(Ordering::Acquire), _lock: guard }
    }

    /// Starts a sync unless one is in progress.
    pub(super) fn try_start_sync(self: &Arc<Self>) -> Option<SyncGuard> {
        let guard = Arc::clone(&self.syncing).try_lock_owned()?;
        Some(SyncGuard { file: Arc::clone(self), covers: self.written.load(Ordering::Acquire), _lock: guard })
    }

    /// Syncs the file on this thread, which may block.
    pub(super) fn sync_now(self: &Arc<Self>, verifier: &Verifier) -> Result<(), Errno> {
        let sync = block_on(self.start_sync());
        let result = rustix::fs::fsync(&self.fd);
        sync.finish(result, true, verifier);
        result
    }
}

/// A sync in progress. It must be dropped before the next sync of the descriptor can start.
#[derive(Debug)]
pub(super) struct SyncGuard {
    file: Arc<DataFile>,
    covers: u64,
    _lock: OwnedMutexGuard<()>,
}

impl SyncGuard {
    /// Records the result of `fsync`, of the `whole` file or of a range. Call before the reply.
    ///
    /// After a failure the verifier changes, so that clients resend uncommitted data; the writes covered by
    /// this sync need no further one.
    pub(super) fn finish(self, result: Result<(), Errno>, whole: bool, verifier: &Verifier) {
        let lost = result.is_err_and(data_may_be_lost);
        if lost {
            verifier.change();
        }
        if lost || (whole && result.is_ok()) {
            self.file.synced.fetch_max(self.covers, Ordering::AcqRel);
        }
    }
}

/// Whether a failed sync may mean lost data. Other errors mean that no sync was attempted.
pub(super) fn data_may_be_lost(error: Errno) -> bool {
    !matches!(
        error,
        Errno::AGAIN | Errno::INTR | Errno::STALE | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP
    )
}
