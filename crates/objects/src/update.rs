//! Conditional replacement of objects.

use std::path::Path;

use millrace_client::{AtomicFile, Error, LockKind, handles::File};
use millrace_runtime::{RuntimeExt, Uncancelled};

use crate::{Mode, Objects, Version, is_absent, is_replaced, publish};

/// All bytes of a file.
const ALL: std::ops::Range<u64> = 0..u64::MAX;

impl Objects {
    /// Gives the complete `file` its name if `version`, from [`Self::find_match`], is still there; `None` otherwise.
    ///
    /// NFS has no call that compares and renames. The caller locks the file of the version (LOCK), compares it with that of
    /// the name, and renames. Of several clients that update the same version, one makes it; updates of
    /// different versions follow one another. Locks exclude only other calls of this function: a version that another
    /// change (an unconditional replacement, a removal, a rename, a program on a mount) makes between the comparison and
    /// RENAME is replaced.
    ///
    /// # Errors
    /// [`Error::LocksUnsupported`] with NFSv3; [`Error::LocksLost`] if the server has revoked the lock meanwhile, such as
    /// after a disconnection longer than a lease: the object may have been replaced, and with it a version that another
    /// client has made since. The errors of [`File::lock`], [`Self::find`] and [`publish`].
    pub async fn update(&self, mut file: AtomicFile, version: Version) -> Result<Option<Version>, Error> {
        // Before the lock, which others wait for.
        file.file().commit().await?;
        let path = file.path().to_owned();
        let (client, owner) = (self.client(), self.client().runtime().random_u64());
        let locked = File::new(client.by_handle().clone(), version.handle);
        match locked.lock(owner, ALL, LockKind::Exclusive).await {
            Err(e) if is_replaced(&e) => return Ok(None),
            locked => locked?,
        }
        let (this, e_tag) = (self.clone(), version.e_tag());
        let update = async move {
            let updated = match this.find_match(&path, &e_tag).await {
                Ok(Some(_)) => publish(&mut file, Mode::Replace).await.map(Some),
                other => other,
            };
            // Also if the reply to RENAME reports the revocation.
            let held = locked.commit().await;
            let unlocked = locked.unlock(owner, ALL).await;
            match (held.and(unlocked), &updated) {
                // The locks end with the file that was replaced.
                (Err(e), Ok(Some(_))) if !is_replaced(&e) => Err(e),
                _ => updated,
            }
        };
        // A RENAME after the unlock would replace the version of the next holder.
        Uncancelled::new(client.runtime(), "update an object", update).await
    }

    /// The present version of the object at `path`, if it has the ETag `e_tag`.
    ///
    /// # Errors
    /// As [`Self::find`], except those of an object that does not exist.
    pub async fn find_match(&self, path: &Path, e_tag: &str) -> Result<Option<Version>, Error> {
        match self.find(path).await {
            Ok(version) => Ok(Some(version).filter(|version| version.e_tag() == e_tag)),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
