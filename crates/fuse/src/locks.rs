//! fcntl(2) and flock(2) locks at the server, with NFSv4.
//!
//! A lock is a range of bytes that a process holds with fcntl(2), or an open file description with flock(2), which locks
//! the whole file (`lock_owners.rs`). As with the Linux NFS client, the two kinds exclude each other.
//!
//! A holder sees the data and the size of earlier holders: a new lock drops the kernel's pages, whose attributes may not show
//! a change within the resolution of the server's clock, and gets the attributes, and an unlock first writes all data. The
//! attributes are requested before the lock is reported, not when the kernel asks for them: if they showed a change then, its
//! pages would be dropped again, and the kernel ignores the attributes of a GETATTR during which an invalidation arrives. A
//! read would end at the old size.

use std::{ops::Range, sync::Arc};

use futures::StreamExt;
use millrace_client::{Conflict, Error, LockKind, handles::File};
use millrace_fuse_session::protocol::{Lock, LockRequest};
use rustix::io::Errno;

use crate::{
    error::errno,
    fs::Fs,
    inode::{CacheUpdate, Inode},
    lock_owners::{LockHolder, Unlocking},
    open_file::OpenFile,
};

/// The end of a lock up to the end of the file, however long it becomes.
const TO_THE_END: u64 = i64::MAX as u64;
/// Maximum number of GETATTRs of a new holder, which repeats it if another process of this mount changes the file meanwhile:
/// the size then stays that of before, which may have data that was discarded, or lack data of others.
const SIZE_ATTEMPTS: u32 = 8;
/// Types of locks in requests (`F_RDLCK`, `F_WRLCK` and `F_UNLCK` of fcntl(2)).
const SHARED: u32 = 0;
const EXCLUSIVE: u32 = 1;
const UNLOCKED: u32 = 2;

/// A range of bytes and its holder.
#[derive(Debug, Clone)]
pub(crate) struct HeldRange {
    pub(crate) holder: LockHolder,
    pub(crate) range: Range<u64>,
}

impl HeldRange {
    pub(crate) fn new(request: &LockRequest) -> Self {
        let LockRequest { handle, owner, start, last, is_flock, .. } = *request;
        let holder = if is_flock { LockHolder::Description(handle) } else { LockHolder::Owner(owner) };
        Self { holder, range: start..if last >= TO_THE_END { u64::MAX } else { last + 1 } }
    }
}

/// The kind of lock of a request; `None` unlocks.
pub(crate) fn lock_kind(number: u32) -> Result<Option<LockKind>, Errno> {
    match number {
        SHARED => Ok(Some(LockKind::Shared)),
        EXCLUSIVE => Ok(Some(LockKind::Exclusive)),
        UNLOCKED => Ok(None),
        _ => Err(Errno::INVAL),
    }
}

/// The reply to a test for a lock.
pub(crate) fn tested(conflict: Option<Conflict>, of: &HeldRange) -> Lock {
    let (range, kind) = match conflict {
        None => (of.range.clone(), UNLOCKED),
        Some(Conflict { range, kind: LockKind::Shared }) => (range, SHARED),
        Some(Conflict { range, kind: LockKind::Exclusive }) => (range, EXCLUSIVE),
    };
    let last = if range.end == u64::MAX { TO_THE_END } else { range.end.saturating_sub(1) };
    Lock { start: range.start, last, kind }
}

impl Fs {
    /// Locks a range through a file and its handle; `waits` until no lock of another owner conflicts. Dropping the future
    /// gives up the lock. Afterwards, [`Self::drop_unlocked_pages`] is to be called.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] for a conflict, without `waits`.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        (file, handle): (&OpenFile, u64),
        HeldRange { holder, range }: HeldRange,
        (kind, waits): (LockKind, bool),
    ) -> Result<(), Errno> {
        file.note_use();
        let inode = &file.inode;
        let open = || {
            let locks = File::new(file.client.clone(), inode.handle);
            self.watch_locks(&locks, inode);
            locks
        };
        let locking = inode.locks.begin_lock(holder, &self.lock_numbers, open).await;
        self.commit(inode).await?; // Reads return uncommitted data.
        let (locks, owner) = (&locking.file, locking.owner);
        if waits {
            locks.lock(owner, range, kind).await.map_err(|e| errno(&e))?;
        } else if locks.try_lock(owner, range, kind).await.map_err(|e| errno(&e))?.is_some() {
            return Err(Errno::AGAIN);
        }
        locking.granted(handle);
        Ok(())
    }

    /// Drops the kernel's pages and attributes from before a lock, and gets the attributes of the file. If others have
    /// extended it, the kernel gets its last byte, and with it the size: a notification for another process could make it
    /// ignore the reply to its GETATTR, and the holder would read to the old end, and append there.
    pub(crate) async fn drop_unlocked_pages(self: &Arc<Self>, file: &Arc<OpenFile>) {
        let inode = &file.inode;
        inode.note_unknown_change(&self.clock);
        for _ in 0..SIZE_ATTEMPTS {
            // Written while the lock was waited for, under a lock that is lost: its size hides that of the server until then.
            self.write_back(inode).await;
            let issued = self.clock.tick();
            let attributes = file.client.getattr(inode.handle).await;
            let dropped = inode.invalidate_pages();
            let update = attributes.map(|new| inode.record_attributes(&self.timeouts, issued, new));
            // After an error, the kernel's GETATTR has it too.
            let update = update.unwrap_or(CacheUpdate { is_current: true, ..CacheUpdate::default() });
            self.apply_update(inode, update);
            self.apply_update(inode, dropped);
            if update.is_current {
                break;
            }
        }
        if let Some(invalidator) = self.invalidator.get() {
            invalidator.wait_until_dropped(inode).await;
            if let Some(last) = inode.last_beyond_kernel()
                && let Ok(data) = self.read(file, last, 1, None).await
                && let Some(&byte) = data.first()
            {
                invalidator.store_last(inode, (last, byte)).await;
            }
        }
        self.expire_kernel_attributes(inode);
    }

    /// Lets the kernel ask for the attributes of a file before it uses them. Without effect if it will ask anyway: the
    /// notification would make it ignore the reply to a GETATTR in progress.
    pub(crate) fn expire_kernel_attributes(&self, inode: &Inode) {
        if std::mem::take(&mut inode.state.lock().kernel_has_attributes)
            && let Some(invalidator) = self.invalidator.get()
        {
            invalidator.invalidate_attributes(inode.number);
        }
    }

    /// Drops the pages and the attributes of a file whenever the server has revoked locks of it: others may have changed it.
    fn watch_locks(self: &Arc<Self>, locks: &File, inode: &Arc<Inode>) {
        let Ok(mut losses) = locks.locks_lost() else { return };
        let (fs, inode) = (Arc::downgrade(self), Arc::downgrade(inode));
        let watch = async move {
            while losses.next().await.is_some() {
                let (Some(fs), Some(inode)) = (fs.upgrade(), inode.upgrade()) else { return };
                inode.note_unknown_change(&fs.clock);
                fs.apply_update(&inode, inode.invalidate_pages());
                if let Some(invalidator) = fs.invalidator.get() {
                    invalidator.invalidate_attributes(inode.number);
                }
            }
        };
        self.rt.spawn("mount locks", Box::pin(watch));
    }

    /// Unlocks a range, after all data is written. Data that cannot be committed is discarded: written later, it would
    /// replace that of the next holder.
    ///
    /// # Errors
    /// Those of the commit, after which the range is unlocked; fsync and close return them too.
    pub(crate) async fn unlock(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        locked: Unlocking,
        range: Range<u64>,
    ) -> Result<(), Errno> {
        if let Some(invalidator) = self.invalidator.get() {
            // Writes the data of mapped pages and, with `writeback`, of write(2).
            invalidator.invalidate_range(inode, 0..TO_THE_END).await;
        }
        let committed = self.commit(inode).await;
        let unlocked = locked.file.unlock(locked.owner, range).await;
        if unlocked.is_err() {
            let _ = self.commit(inode).await; // Records the loss.
        }
        match unlocked {
            Ok(()) | Err(Error::Discarded) => committed,
            Err(e) => Err(errno(&e)),
        }
    }

    /// Releases all locks of owners that have closed the file.
    pub(crate) async fn unlock_all(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        owners: impl IntoIterator<Item = Unlocking>,
    ) -> Result<(), Errno> {
        let mut done = Ok(());
        for owner in owners {
            done = done.and(self.unlock(inode, owner, 0..u64::MAX).await);
        }
        done
    }

    /// Returns a lock of another owner that conflicts with a lock.
    pub(crate) async fn test_lock(
        &self,
        file: &OpenFile,
        HeldRange { holder, range }: HeldRange,
        kind: LockKind,
    ) -> Result<Option<Conflict>, Errno> {
        let owner = file.inode.locks.number(holder).unwrap_or_else(|| self.lock_numbers.next());
        let locks = File::new(file.client.clone(), file.inode.handle);
        locks.test_lock(owner, range, kind).await.map_err(|e| errno(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_requests_and_replies_correspond() {
        for (start, last) in [(0, 0), (5, 9), (0, TO_THE_END), (7, TO_THE_END), (3, TO_THE_END - 1)] {
            let request = LockRequest { handle: 1, owner: 2, start, last, kind: SHARED, is_flock: false };
            let range = HeldRange::new(&request);
            assert_eq!(range.range.end == u64::MAX, last == TO_THE_END);
            for (kind, number) in [(LockKind::Shared, SHARED), (LockKind::Exclusive, EXCLUSIVE)] {
                let conflict = Conflict { range: range.range.clone(), kind };
                assert_eq!(tested(Some(conflict), &range), Lock { start, last, kind: number });
                assert_eq!(lock_kind(number), Ok(Some(kind)));
            }
            assert_eq!(tested(None, &range), Lock { start, last, kind: UNLOCKED });
        }
        assert_eq!((lock_kind(UNLOCKED), lock_kind(3)), (Ok(None), Err(Errno::INVAL)));
    }
}
