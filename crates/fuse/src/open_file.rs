//! Open file descriptions.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use millrace_buffer::Buffer;
use millrace_client::handles::{Client, File, ReadInto};
use rustix::{fs::OFlags, io::Errno};

use crate::{error::errno, inode::Inode, read_ahead::ReadAhead};

/// An open file description.
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<Inode>,
    /// Client with the credentials of the caller that opened the file.
    pub(crate) client: Client,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Reads through the page cache, unless fcntl(2) has changed that since.
    pub(crate) uses_page_cache: bool,
    /// Number of write failures already reported by fsync of this description.
    reported_failures: AtomicU64,
    /// 0, or one plus the [`PageState::invalidations`](crate::pages::PageState) up to which the kernel drops
    /// pages when it completes this open.
    pending_drop: AtomicU64,
    /// The number of that invalidation in [`PageInvalidations`](crate::page_invalidations::PageInvalidations).
    invalidation: u64,
    pub(crate) read_ahead: ReadAhead,
}

impl OpenFile {
    /// Creates the description of a file that `client` opens with `flags`. The kernel keeps its pages.
    pub(crate) fn new(inode: Arc<Inode>, client: Client, flags: OFlags) -> Self {
        let mode = flags & OFlags::RWMODE;
        let readable = mode != OFlags::WRONLY;
        let reported_failures = AtomicU64::new(inode.writes.failures().0);
        Self {
            inode,
            client,
            readable,
            writable: mode != OFlags::RDONLY,
            uses_page_cache: readable && !flags.contains(OFlags::DIRECT),
            reported_failures,
            pending_drop: AtomicU64::new(0),
            invalidation: 0,
            read_ahead: ReadAhead::default(),
        }
    }

    /// Records that the kernel drops the pages up to `epoch` when the thread `tid` completes this open.
    pub(crate) fn set_pending_drop(&mut self, epoch: u64, tid: u32) {
        self.invalidation = self.inode.page_invalidations.begin(tid);
        *self.pending_drop.get_mut() = epoch + 1;
    }

    /// The kernel uses the description, so it has completed the open and dropped the pages.
    pub(crate) fn note_use(&self) {
        if self.pending_drop.load(Ordering::Relaxed) != 0
            && let Some(epoch) = self.pending_drop.swap(0, Ordering::Relaxed).checked_sub(1)
        {
            self.inode.page_invalidations.end(self.invalidation);
            self.inode.state.lock().pages.mark_dropped(epoch);
        }
    }

    /// Reads from the server. Uncommitted data in `uncommitted` takes precedence.
    pub(crate) async fn read_into(
        &self,
        uncommitted: Option<&File>,
        offset: u64,
        buffer: Buffer,
    ) -> Result<ReadInto, Errno> {
        let read = match uncommitted {
            Some(written) => written.read_into_as(&self.client, offset, buffer).await,
            None => self.client.read_into(self.inode.handle, offset, buffer).await,
        };
        read.map_err(|e| errno(&e))
    }

    /// Returns a write error that fsync of this description has not reported yet.
    ///
    /// # Errors
    /// The last write error.
    pub(crate) fn write_error(&self) -> Result<(), Errno> {
        self.report(|_| self.reported_failures.load(Ordering::Relaxed))
    }

    /// As [`Self::write_error`], and records that fsync reports it.
    ///
    /// # Errors
    /// The last write error.
    pub(crate) fn take_write_error(&self) -> Result<(), Errno> {
        self.report(|failures| self.reported_failures.swap(failures, Ordering::Relaxed))
    }

    /// Returns the last write error if there are more of them than `reported` returns for their number.
    fn report(&self, reported: impl FnOnce(u64) -> u64) -> Result<(), Errno> {
        let (failures, last) = self.inode.writes.failures();
        match last {
            Some(e) if reported(failures) != failures => {
                self.inode.writes.mark_reported(failures);
                Err(e)
            }
            _ => Ok(()),
        }
    }
}
