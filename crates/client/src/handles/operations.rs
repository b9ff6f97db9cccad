//! The procedures without bulk data, one method each (RFC 1813 section 3.3).

use millrace_nfs::v4::share_access;
use millrace_runtime::RuntimeExt;

use super::{Client, Object};
use crate::{
    Error,
    error::{named_error, nfs_error},
    exchange::Answer,
    ops::{
        self, AccessOk, Attributes, CommitOk, CreateHow, CreateOk, FileHandle, FileType, FsInfo, FsStat,
        LinkOk, LockEpoch, MknodWhat, NameIn, NfsTime, OpenState, PathConf, Procedure, RenameOk,
        SetAttributes, Status, Wcc,
    },
};

/// Length of names that every server accepts; before a longer one the client queries PATHCONF.
pub(super) const COMMON_NAME_MAX: usize = 255;

impl Client {
    /// GETATTR: gets the object's attributes.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn getattr(&self, object: FileHandle) -> Result<Attributes, Error> {
        let mut args = ops::Getattr { object };
        let answer = self.call(&mut args, None).await?;
        answer.result.map_err(|s| nfs_error(Procedure::Getattr, object, s))
    }

    /// SETATTR: sets attributes; with a guard, only if the object's ctime is equal to it.
    ///
    /// First commits the data that an open [`super::File`] of this client retains for the object, as Linux
    /// does: a later rewrite of data that a restarted server has lost would change the times, clear the
    /// set-user-ID and set-group-ID bits, and extend a truncated file. If the commit fails, only the size is
    /// not set: the data stays retained, and a later commit reports the error.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call; with a size, also those of [`super::File::commit`].
    pub async fn setattr(
        &self,
        object: FileHandle,
        attributes: SetAttributes,
        guard: Option<NfsTime>,
    ) -> Result<Wcc, Error> {
        let since = self.lock_epoch(object);
        if let Some(open) = self.shared.open_files.get(object) {
            let stable = open.commit().await;
            if let Some(size) = attributes.size {
                stable?;
                let me = self.clone();
                let call = async move { me.setattr_call(object, attributes, guard, since).await };
                return open.replace(size..u64::MAX, call, move |_| size..u64::MAX).await;
            }
        }
        self.setattr_call(object, attributes, guard, since).await
    }

    async fn setattr_call(
        &self,
        object: FileHandle,
        attributes: SetAttributes,
        guard: Option<NfsTime>,
        since: LockEpoch,
    ) -> Result<Wcc, Error> {
        let state = match attributes.size {
            Some(_) => self.open_state(object, share_access::WRITE, Some(since))?,
            None => OpenState::NONE,
        };
        let answer = self.call(&mut ops::Setattr { object, attributes, guard, state }, None).await?;
        match answer.result {
            Err(Status::NotSync) if answer.resent => {
                let now = self.getattr(object).await?;
                if is_set(&now, &attributes) {
                    return Ok(Wcc { before: None, after: Some(now), change: None });
                }
                Err(nfs_error(Procedure::Setattr, object, Status::NotSync))
            }
            other => other.map_err(|s| nfs_error(Procedure::Setattr, object, s)),
        }
    }

    /// LOOKUP: looks up a name in a directory.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn lookup(&self, dir: FileHandle, name: impl AsRef<[u8]>) -> Result<Object, Error> {
        let name = name.as_ref();
        let mut args = ops::Lookup { what: self.place(Procedure::Lookup, dir, name).await? };
        let answer = self.call(&mut args, None).await?;
        let ok = answer.result.map_err(|s| named_error(Procedure::Lookup, name, s))?;
        let attributes = match ok.attributes {
            Some(a) => a,
            None => self.getattr(ok.object).await?,
        };
        Ok(Object { handle: ok.object, attributes, dir: Wcc { before: None, after: ok.dir, change: None } })
    }

    /// ACCESS: returns the rights in `wanted` (bits of [`crate::ops::access`]) that the caller has.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn access(&self, object: FileHandle, wanted: u32) -> Result<u32, Error> {
        Ok(self.access_ok(object, wanted).await?.access)
    }

    /// As [`Self::access`], with the object's attributes, in one call if the server sends both.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn access_and_attributes(
        &self,
        object: FileHandle,
        wanted: u32,
    ) -> Result<(u32, Attributes), Error> {
        let ok = self.access_ok(object, wanted).await?;
        let attributes = match ok.attributes {
            Some(a) => a,
            None => self.getattr(object).await?,
        };
        Ok((ok.access, attributes))
    }

    async fn access_ok(&self, object: FileHandle, wanted: u32) -> Result<AccessOk, Error> {
        let mut args = ops::Access { object, access: wanted };
        let answer = self.call(&mut args, None).await?;
        let ok = answer.result.map_err(|s| nfs_error(Procedure::Access, object, s))?;
        Ok(AccessOk { access: ok.access & wanted, ..ok })
    }

    /// READLINK: returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn readlink(&self, symlink: FileHandle) -> Result<Vec<u8>, Error> {
        let mut args = ops::Readlink { symlink };
        // Linux's server (7.3) puts the target at a wrong position of the chunk with NFSv4.
        let memory =
            if self.session().is_some() { None } else { Some(self.buffer(millrace_nfs::v3::MAX_PATH)?) };
        let answer = self.call(&mut args, memory).await?;
        let ok = answer.result.map_err(|s| nfs_error(Procedure::Readlink, symlink, s))?;
        Ok(ok.to_vec())
    }

    /// CREATE: creates a regular file. With [`CreateHow::Exclusive`] it fails if another client has created
    /// the file; the caller must then set the attributes, because servers store the verifier in them:
    /// [`Self::create_new`] does both.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn create(
        &self,
        dir: FileHandle,
        name: impl AsRef<[u8]>,
        how: CreateHow,
    ) -> Result<Object, Error> {
        let name = name.as_ref();
        let at = self.place(Procedure::Create, dir, name).await?;
        let owner = self.runtime().random_u64();
        let answer = self.call(&mut ops::Create { at, how, owner }, None).await?;
        if let (Err(Status::Access), CreateHow::Unchecked(SetAttributes { size: None, .. }), Some(_)) =
            (&answer.result, &how, self.session())
            && let Ok(there) = self.lookup(dir, name).await
            && there.attributes.file_type == FileType::Regular
        {
            // OPEN needs a right to read, which CREATE of NFSv3 does not need for an existing file.
            return Ok(there);
        }
        let mut created = self.created(Procedure::Create, dir, name, answer.result).await?;
        // The call may have truncated an open file: truncate also lost data that was rewritten concurrently.
        if let CreateHow::Unchecked(SetAttributes { size: Some(size), .. }) = how
            && self.shared.open_files.get(created.handle).is_some()
        {
            let truncated = SetAttributes { size: Some(size), ..SetAttributes::default() };
            created.attributes = self.set_attributes(created.handle, truncated).await?;
        }
        Ok(created)
    }

    /// SETATTR, and the attributes after it: with GETATTR, if the server has not returned them.
    pub(super) async fn set_attributes(
        &self,
        file: FileHandle,
        set: SetAttributes,
    ) -> Result<Attributes, Error> {
        match self.setattr(file, set, None).await?.after {
            Some(attributes) => Ok(attributes),
            None => self.getattr(file).await,
        }
    }

    /// MKDIR: creates a directory.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn mkdir(
        &self,
        dir: FileHandle,
        name: impl AsRef<[u8]>,
        attributes: SetAttributes,
    ) -> Result<Object, Error> {
        let name = name.as_ref();
        let mut args = ops::Mkdir { at: self.place(Procedure::Mkdir, dir, name).await?, attributes };
        let answer = self.call(&mut args, None).await?;
        if answer.resent && matches!(answer.result, Err(Status::Exist)) {
            let there = self.lookup(dir, name).await?;
            if there.attributes.file_type == FileType::Directory {
                return Ok(there);
            }
        }
        self.created(Procedure::Mkdir, dir, name, answer.result).await
    }

    /// SYMLINK: creates a symbolic link to `target`.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn symlink(
        &self,
        dir: FileHandle,
        name: impl AsRef<[u8]>,
        target: impl AsRef<[u8]>,
        attributes: SetAttributes,
    ) -> Result<Object, Error> {
        let (name, target) = (name.as_ref(), target.as_ref());
        let text = self.arena().copy_from(target)?.into();
        let mut args =
            ops::Symlink { at: self.place(Procedure::Symlink, dir, name).await?, attributes, target: text };
        let answer = self.call(&mut args, None).await?;
        if answer.resent && matches!(answer.result, Err(Status::Exist)) {
            let there = self.lookup(dir, name).await?;
            if there.attributes.file_type == FileType::Symlink && self.readlink(there.handle).await? == target
            {
                return Ok(there);
            }
        }
        self.created(Procedure::Symlink, dir, name, answer.result).await
    }

    /// MKNOD: creates a device file, socket or named pipe.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn mknod(
        &self,
        dir: FileHandle,
        name: impl AsRef<[u8]>,
        what: MknodWhat,
    ) -> Result<Object, Error> {
        let name = name.as_ref();
        let mut args = ops::Mknod { at: self.place(Procedure::Mknod, dir, name).await?, what };
        let answer = self.call(&mut args, None).await?;
        if answer.resent && matches!(answer.result, Err(Status::Exist)) {
            let there = self.lookup(dir, name).await?;
            if there.attributes.file_type == what.file_type() {
                return Ok(there);
            }
        }
        self.created(Procedure::Mknod, dir, name, answer.result).await
    }

    /// REMOVE: removes a name that is not a directory. Returns the reply's `wcc_data` of `dir`.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn remove(&self, dir: FileHandle, name: impl AsRef<[u8]>) -> Result<Wcc, Error> {
        let name = name.as_ref();
        let mut args = ops::Remove { object: self.place(Procedure::Remove, dir, name).await? };
        let answer = self.call(&mut args, None).await?;
        gone(Procedure::Remove, name, answer)
    }

    /// RMDIR: removes an empty directory. Returns the reply's `wcc_data` of `dir`.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn rmdir(&self, dir: FileHandle, name: impl AsRef<[u8]>) -> Result<Wcc, Error> {
        let name = name.as_ref();
        let mut args = ops::Rmdir { object: self.place(Procedure::Rmdir, dir, name).await? };
        let answer = self.call(&mut args, None).await?;
        gone(Procedure::Rmdir, name, answer)
    }

    /// RENAME: renames an object within or between directories; replaces an existing object if permitted.
    /// Returns the reply's `wcc_data` of both directories.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn rename(
        &self,
        from_dir: FileHandle,
        from: impl AsRef<[u8]>,
        to_dir: FileHandle,
        to: impl AsRef<[u8]>,
    ) -> Result<RenameOk, Error> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let mut args = ops::Rename {
            from: self.place(Procedure::Rename, from_dir, from).await?,
            to: self.place(Procedure::Rename, to_dir, to).await?,
        };
        let answer = self.call(&mut args, None).await?;
        let status = match answer.result {
            Ok(done) => return Ok(done),
            Err(status) => status,
        };
        if answer.resent && status == Status::NoEnt {
            let old = self.lookup(from_dir, from).await;
            if old.is_err_and(|e| e.is_not_found()) && self.lookup(to_dir, to).await.is_ok() {
                return Ok(RenameOk { from: Wcc::default(), to: Wcc::default() });
            }
        }
        Err(named_error(Procedure::Rename, from, status))
    }

    /// LINK: creates a hard link. Returns the reply's attributes of the file and `wcc_data` of `dir`.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn link(
        &self,
        file: FileHandle,
        dir: FileHandle,
        name: impl AsRef<[u8]>,
    ) -> Result<LinkOk, Error> {
        let name = name.as_ref();
        let mut args = ops::Link { file, link: self.place(Procedure::Link, dir, name).await? };
        let answer = self.call(&mut args, None).await?;
        let status = match answer.result {
            Ok(done) => return Ok(done),
            Err(status) => status,
        };
        if answer.resent && status == Status::Exist {
            let there = self.lookup(dir, name).await?.attributes;
            let meant = self.getattr(file).await?;
            if (there.fsid, there.fileid) == (meant.fsid, meant.fileid) {
                return Ok(LinkOk { file: Some(meant), dir: Wcc::default() });
            }
        }
        Err(named_error(Procedure::Link, name, status))
    }

    /// FSSTAT: gets sizes and free space of the object's file system.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn fsstat(&self, root: FileHandle) -> Result<FsStat, Error> {
        let mut args = ops::Fsstat { root };
        let answer = self.call(&mut args, None).await?;
        answer.result.map_err(|s| nfs_error(Procedure::Fsstat, root, s))
    }

    /// FSINFO: gets limits and properties of the file system.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn fsinfo(&self, root: FileHandle) -> Result<FsInfo, Error> {
        let mut args = ops::Fsinfo { root };
        let answer = self.call(&mut args, None).await?;
        answer.result.map_err(|s| nfs_error(Procedure::Fsinfo, root, s))
    }

    /// PATHCONF: gets limits of names and links.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn pathconf(&self, object: FileHandle) -> Result<PathConf, Error> {
        let mut args = ops::Pathconf { object };
        let answer = self.call(&mut args, None).await?;
        answer.result.map_err(|s| nfs_error(Procedure::Pathconf, object, s))
    }

    /// COMMIT: makes UNSTABLE data stable; a `count` of 0 extends to the end of the file. The caller must
    /// compare the verifier with those of the WRITEs, as [`super::File`] does.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn commit(&self, file: FileHandle, offset: u64, count: u32) -> Result<CommitOk, Error> {
        let mut args = ops::Commit { file, offset, count };
        let answer = self.call(&mut args, None).await?;
        answer.result.map_err(|s| nfs_error(Procedure::Commit, file, s))
    }

    /// Checks the length of a name. Linux servers return GARBAGE_ARGS for longer names instead of
    /// NAMETOOLONG.
    pub(super) async fn place<'n>(
        &self,
        procedure: Procedure,
        dir: FileHandle,
        name: &'n [u8],
    ) -> Result<NameIn<'n>, Error> {
        if name.len() > COMMON_NAME_MAX && name.len() > self.pathconf(dir).await?.name_max as usize {
            return Err(named_error(procedure, name, Status::NameTooLong));
        }
        Ok(NameIn { dir, name })
    }

    /// Completes the results of CREATE, MKDIR, SYMLINK and MKNOD, in which handle and attributes are
    /// optional.
    pub(super) async fn created(
        &self,
        procedure: Procedure,
        dir: FileHandle,
        name: &[u8],
        result: Result<CreateOk, Status>,
    ) -> Result<Object, Error> {
        let ok = result.map_err(|s| named_error(procedure, name, s))?;
        let (handle, attributes) = match (ok.object, ok.attributes) {
            (Some(handle), Some(attributes)) => (handle, attributes),
            (Some(handle), None) => (handle, self.getattr(handle).await?),
            (None, _) => {
                let found = self.lookup(dir, name).await?;
                (found.handle, found.attributes)
            }
        };
        Ok(Object { handle, attributes, dir: ok.dir })
    }
}

/// REMOVE and RMDIR: NOENT after a retransmission is success, because the first transmission removed the
/// name.
fn gone(procedure: Procedure, name: &[u8], answer: Answer<Result<Wcc, Status>>) -> Result<Wcc, Error> {
    match answer.result {
        Ok(dir) => Ok(dir),
        Err(Status::NoEnt) if answer.resent => Ok(Wcc::default()),
        Err(status) => Err(named_error(procedure, name, status)),
    }
}

/// Whether `now` has the attributes of `wanted`, except times set to the server's clock.
fn is_set(now: &Attributes, wanted: &SetAttributes) -> bool {
    let time = |t: &ops::SetTime, now: NfsTime| !matches!(t, ops::SetTime::ClientTime(t) if *t != now);
    wanted.mode.is_none_or(|m| m & 0o7777 == now.mode & 0o7777)
        && wanted.uid.is_none_or(|u| u == now.uid)
        && wanted.gid.is_none_or(|g| g == now.gid)
        && wanted.size.is_none_or(|s| s == now.size)
        && time(&wanted.atime, now.atime)
        && time(&wanted.mtime, now.mtime)
}
