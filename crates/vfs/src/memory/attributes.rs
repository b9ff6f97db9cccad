//! GETATTR, SETATTR, ACCESS and READLINK.

use std::ops::ControlFlow;

use super::{
    MAX_FILE_SIZE, MemoryFs,
    content::Truncated,
    inode::{Body, Inode, InodeState},
    permission::{self, check_group, check_owner, check_root, check_write},
};
use crate::{
    Access, Attr, FileKind, FsError, FsResult, Handle, Identity, SetAttr, SetTime, Time, Wcc, WccAttr,
};

impl MemoryFs {
    pub(super) fn getattr_now(&self, file: &Handle) -> FsResult<Attr> {
        let inode = self.inode(file)?;
        let st = inode.read()?;
        Ok(self.attr(&inode, &st))
    }

    pub(super) fn access_now(
        &self,
        caller: &Identity,
        file: &Handle,
        wanted: Access,
    ) -> FsResult<(Access, Attr)> {
        let inode = self.inode(file)?;
        let st = inode.read()?;
        let attr = self.attr(&inode, &st);
        Ok((Access(attr.rights(caller).0 & wanted.0), attr))
    }

    pub(super) fn readlink_now(&self, link: &Handle) -> FsResult<(Vec<u8>, Attr)> {
        let inode = self.inode(link)?;
        let st = inode.read()?;
        let Body::Symlink(target) = &st.body else { return Err(FsError::Inval) };
        Ok((target.to_vec(), self.attr(&inode, &st)))
    }

    /// A step of SETATTR: all steps but the last truncate the file.
    pub(super) fn setattr_now(
        &self,
        caller: &Identity,
        file: &Handle,
        set: &SetAttr,
        guard: Option<Time>,
    ) -> FsResult<ControlFlow<Wcc>> {
        let inode = self.inode(file)?;
        let mut st = inode.write()?;
        if guard.is_some_and(|ctime| ctime != st.ctime) {
            return Err(FsError::NotSync);
        }
        check_settable(&inode, &st, caller, set)?;
        let before = Some(WccAttr::from(&self.attr(&inode, &st)));
        let mut truncated = Truncated::default();
        if *set != SetAttr::default() {
            truncated = self.apply(&inode, &mut st, caller, set)?;
        }
        let after = Some(self.attr(&inode, &st));
        drop(st);
        Ok(if truncated.unfinished {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(Wcc { before, after })
        })
    }

    /// Applies changes that have been checked; only the size if the truncation is not finished. Drop the truncated content
    /// after releasing the lock.
    fn apply(
        &self,
        inode: &Inode,
        st: &mut InodeState,
        caller: &Identity,
        set: &SetAttr,
    ) -> FsResult<Truncated> {
        let (now, before) = (self.now(), st.change);
        let mut truncated = Truncated::default();
        if let Some(size) = set.size {
            truncated = self.resize(st, caller, size, now)?;
        }
        if truncated.unfinished {
            return Ok(truncated);
        }
        if set.uid.is_some() || set.gid.is_some() {
            st.uid = set.uid.unwrap_or(st.uid);
            st.gid = set.gid.unwrap_or(st.gid);
            // Set-ID bits were granted for the old owner.
            if inode.kind != FileKind::Directory {
                st.mode = permission::without_set_id(st.mode);
            }
        }
        if let Some(mode) = set.mode {
            st.mode = permission::settable_mode(mode, st.gid, caller);
        }
        if st.change == before {
            st.set_ctime(now);
        }
        set_times(st, set, now);
        Ok(truncated)
    }

    /// Truncates or extends a regular file. mtime changes only if the size does.
    pub(super) fn resize(
        &self,
        st: &mut InodeState,
        caller: &Identity,
        size: u64,
        now: Time,
    ) -> FsResult<Truncated> {
        let content = st.content_mut()?;
        let differs = content.size() != size;
        let truncated = content.set_size(&self.quota, size);
        if differs {
            st.mode = permission::mode_after_write(st.mode, caller);
            st.set_mtime_and_ctime(now);
        }
        Ok(truncated)
    }
}

pub(super) fn set_times(st: &mut InodeState, set: &SetAttr, now: Time) {
    let chosen = |how: SetTime, old: Time| match how {
        SetTime::Keep => old,
        SetTime::Now => now,
        SetTime::To(t) => t,
    };
    st.atime = chosen(set.atime, st.atime);
    st.mtime = chosen(set.mtime, st.mtime);
}

/// Checks that the values are valid for this type of object.
pub(super) fn check_values(kind: FileKind, set: &SetAttr) -> FsResult<()> {
    if set.size.is_some() && kind != FileKind::Regular {
        return Err(FsError::Inval);
    }
    if set.size.is_some_and(|s| s > MAX_FILE_SIZE) {
        return Err(FsError::FBig);
    }
    let bad = |how: SetTime| matches!(how, SetTime::To(t) if t.nanos >= 1_000_000_000);
    if bad(set.atime) || bad(set.mtime) { Err(FsError::Inval) } else { Ok(()) }
}

/// Checks that `caller` may make all of these changes, before any is made.
fn check_settable(inode: &Inode, st: &InodeState, caller: &Identity, set: &SetAttr) -> FsResult<()> {
    check_values(inode.kind, set)?;
    if set.size.is_some() {
        check_write(st, caller)?;
    }
    if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
        check_owner(st, caller)?;
    }
    if set.uid.is_some_and(|uid| uid != st.uid) {
        check_root(caller)?;
    }
    if let Some(gid) = set.gid.filter(|gid| *gid != st.gid) {
        check_group(caller, gid)?;
    }
    let to = |how| matches!(how, SetTime::To(_));
    if to(set.atime) || to(set.mtime) {
        check_owner(st, caller)?;
    }
    if set.atime == SetTime::Now || set.mtime == SetTime::Now {
        check_owner(st, caller).or_else(|_| check_write(st, caller))?;
    }
    Ok(())
}
