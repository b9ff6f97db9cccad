//! Byte-range locks on files, with NFSv4 (RFC 8881 section 9).

use std::{ops::Range, sync::Arc};

use super::File;
use crate::{Conflict, Error, LockKind, nfs4::FileLocks};

impl File {
    /// Locks a range for `owner`, and waits while other owners have conflicting locks. Locks of other owners exclude it,
    /// on this and other clients; `owner` is any number that identifies the holder on this client. The locks of an owner
    /// follow the rules of POSIX: a new lock replaces the owner's earlier locks in its range. An end of [`u64::MAX`] is
    /// the end of the file, however long it becomes.
    ///
    /// Reads after this call see the data that earlier holders of the lock have written. The client claims locks again
    /// after a restart of the server; if the server revokes them, reads and writes of the file fail with
    /// [`Error::LocksLost`] until the owner unlocks. Dropping the future gives up the lock. Dropping the last
    /// `File` of the handle releases all locks.
    ///
    /// # Errors
    /// [`Error::LocksUnsupported`] with NFSv3; [`Error::InvalidInput`] for an empty range; [`Error::Nfs4`], also
    /// with a deadlock that the server detects; [`Error::LocksLost`] and the errors of a call.
    pub async fn lock(&self, owner: u64, range: Range<u64>, kind: LockKind) -> Result<(), Error> {
        self.locks(&range)?.lock(owner, range, kind).await?;
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
        let conflict = self.locks(&range)?.try_lock(owner, range, kind).await?;
        self.shared.retained().note_change();
        Ok(conflict)
    }

    /// Unlocks a range of `owner`, locked or not. Data that was written before is visible to the next holder.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub async fn unlock(&self, owner: u64, range: Range<u64>) -> Result<(), Error> {
        self.locks(&range)?.unlock(owner, range).await
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

    fn locks(&self, range: &Range<u64>) -> Result<&Arc<FileLocks>, Error> {
        if range.is_empty() {
            return Err(Error::InvalidInput("the range to lock is empty".into()));
        }
        self.shared.locks().ok_or(Error::LocksUnsupported)
    }
}
