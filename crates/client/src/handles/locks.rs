//! Byte-range locks on files, with NFSv4 (RFC 8881 section 9).

use std::{ops::Range, sync::Arc};

use futures::Stream;

use super::File;
use crate::{Conflict, Error, LockKind, v4::FileLocks};

impl File {
    /// Locks a range for `owner`, and waits while other owners have conflicting locks. Locks of other owners exclude it,
    /// on this and other clients; `owner` is any number that identifies the holder on this client. The locks of an owner
    /// follow the rules of POSIX: a new lock replaces the owner's earlier locks in its range. An end of [`u64::MAX`] is
    /// the end of the file, however long it becomes.
    ///
    /// Reads after this call see the data that earlier holders of the lock have written. The client claims locks again
    /// after a restart of the server; if the server revokes them, reads, writes and commits of the file fail with
    /// [`Error::LocksLost`] until the owner unlocks. Dropping the future gives up the lock. Dropping the last
    /// `File` of the handle releases all locks.
    ///
    /// # Errors
    /// Those of a commit. [`Error::LocksUnsupported`] with NFSv3; [`Error::InvalidInput`] for an empty range; [`Error::Nfs4`], also
    /// with a deadlock that the server detects; [`Error::LocksLost`] and the errors of a call.
    pub async fn lock(&self, owner: u64, range: Range<u64>, kind: LockKind) -> Result<(), Error> {
        self.prepare(&range).await?.lock(owner, range, kind).await?;
        self.shared.retained().note_change();
        Ok(())
    }

    /// As [`Self::lock`], without waiting. Returns a conflicting lock; `None` if the range was locked.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub async fn try_lock(
        &self,
        owner: u64,
        range: Range<u64>,
        kind: LockKind,
    ) -> Result<Option<Conflict>, Error> {
        let conflict = self.prepare(&range).await?.try_lock(owner, range, kind).await?;
        self.shared.retained().note_change();
        Ok(conflict)
    }

    /// Commits, and unlocks a range of `owner`, locked or not. Data that was written before is visible to the next holder,
    /// and on stable storage: otherwise this client would have to write it again after a restart of the server, over the
    /// data of the next holder. Data that cannot be committed is discarded.
    ///
    /// # Errors
    /// Those of the commit, and [`Error::Discarded`] if data was discarded, which the next commit reports too: the range is
    /// unlocked. As [`Self::lock`].
    pub async fn unlock(&self, owner: u64, range: Range<u64>) -> Result<(), Error> {
        let locks = self.locks(&range)?;
        let committed = self.shared.commit_or_discard().await;
        locks.unlock(owner, range).await?;
        committed?;
        if self.has_unreported() { Err(Error::Discarded) } else { Ok(()) }
    }

    /// Yields when the server has revoked locks of the file, once for all losses since the last time. Ends when the
    /// file is dropped, or this is called again.
    ///
    /// # Errors
    /// [`Error::LocksUnsupported`] with NFSv3.
    pub fn locks_lost(&self) -> Result<impl Stream<Item = ()> + Send + use<>, Error> {
        Ok(self.shared.locks().ok_or(Error::LocksUnsupported)?.watch())
    }

    /// Returns a lock of another owner that conflicts with a lock of `owner`, if there is one.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub async fn test_lock(
        &self,
        owner: u64,
        range: Range<u64>,
        kind: LockKind,
    ) -> Result<Option<Conflict>, Error> {
        self.locks(&range)?.test(owner, range, kind).await
    }

    /// The locks of the file, after a commit: data that was written before the lock must not hide what earlier holders have
    /// written, nor be lost with it.
    async fn prepare(&self, range: &Range<u64>) -> Result<&Arc<FileLocks>, Error> {
        let locks = self.locks(range)?;
        self.shared.commit().await?;
        Ok(locks)
    }

    fn locks(&self, range: &Range<u64>) -> Result<&Arc<FileLocks>, Error> {
        if range.is_empty() {
            return Err(Error::InvalidInput("the range to lock is empty".into()));
        }
        self.shared.locks().ok_or(Error::LocksUnsupported)
    }
}
