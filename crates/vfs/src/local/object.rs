//! Calls on one object: attributes, rights, link targets.

use std::os::fd::AsFd;

use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, Statx, Timestamps, Uid},
    io::Errno,
};

use super::{
    attr,
    cred::{R, W, X},
    data_file::data_may_be_lost,
    node::{Node, proc_name, reopen},
    setup::Export,
};
use crate::{Access, Attr, FileKind, FsError, FsResult, Handle, Identity, SetAttr, SetTime, Time, Wcc};

impl Export {
    pub(super) fn getattr(&self, file: &Handle) -> FsResult<Attr> {
        let node = self.tree.open(file)?;
        attr::attr(&attr::live_stat(node.as_fd())?, self.fsid)
    }

    pub(super) fn readlink(&self, who: &Identity, link: &Handle) -> FsResult<(Vec<u8>, Attr)> {
        let node = self.tree.open(link)?;
        if node.kind() != FileKind::Symlink {
            return Err(FsError::Inval);
        }
        let target = self.creds.as_caller(who, || Ok(rustix::fs::readlinkat(&*node, c"", Vec::new())?))?;
        Ok((target.into_bytes(), attr::attr(&attr::live_stat(node.as_fd())?, self.fsid)?))
    }

    pub(super) fn access(&self, who: &Identity, file: &Handle, wanted: Access) -> FsResult<(Access, Attr)> {
        let node = self.tree.open(file)?;
        let st = attr::live_stat(node.as_fd())?;
        let got = self.creds.allowed(who, node.as_fd(), &st, R | W | X)?;
        let has = |want: u32| got & want == want;
        let change = Access::MODIFY | Access::EXTEND;
        let mut bits = 0;
        if has(R) {
            bits |= Access::READ;
        }
        if node.kind() == FileKind::Directory {
            if has(X) {
                bits |= Access::LOOKUP;
            }
            if has(W | X) {
                bits |= change | Access::DELETE;
            }
        } else {
            if has(W) {
                bits |= change;
            }
            if has(X) {
                bits |= Access::EXECUTE;
            }
        }
        if self.read_only {
            bits &= !(change | Access::DELETE);
        }
        Ok((Access(bits & wanted.0), attr::attr(&st, self.fsid)?))
    }

    pub(super) fn setattr(
        &self,
        who: &Identity,
        file: &Handle,
        set: &SetAttr,
        guard: Option<Time>,
    ) -> FsResult<Wcc> {
        self.writable()?;
        let node = self.tree.open(file)?;
        let lock = self.lock(file);
        let st = attr::live_stat(node.as_fd())?;
        let ctime = attr::attr(&st, self.fsid)?.ctime;
        if guard.is_some_and(|g| g != ctime) {
            return Err(FsError::NotSync);
        }
        self.apply(who, &node, &st, set)?;
        drop(lock);
        self.sync_object(&node)?;
        self.after(&attr::stat(node.as_fd())?)
    }

    /// Applies attributes in the order that keeps each from undoing another: size (clears set-id bits, moves
    /// mtime), owner (clears set-id bits), mode, times. What needs ownership is refused before anything is changed.
    pub(super) fn apply(&self, who: &Identity, node: &Node, st: &Statx, set: &SetAttr) -> FsResult<()> {
        let explicit = matches!(set.atime, SetTime::To(_)) || matches!(set.mtime, SetTime::To(_));
        let needs_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || explicit;
        if needs_owner && !self.creds.owns(who, st) {
            return Err(FsError::Perm);
        }
        self.creds.precheck_owner(who, st, set)?;
        if let SetTime::To(t) = set.atime {
            check_time(t)?;
        }
        if let SetTime::To(t) = set.mtime {
            check_time(t)?;
        }
        node.revoke_grants();
        if let Some(size) = set.size {
            self.set_size(who, node, st, size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.set_owner(who, node, set)?;
        }
        if let Some(mode) = set.mode {
            if node.kind() == FileKind::Symlink {
                return Err(FsError::NotSupp);
            }
            let mode = self.creds.settable(who, set.gid.unwrap_or(st.stx_gid), mode);
            self.set_mode(who, node, mode)?;
        }
        self.set_times(who, node, st, set)
    }

    fn set_mode(&self, who: &Identity, node: &Node, mode: u32) -> FsResult<()> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let name = proc_name(node.as_fd());
        self.creds.as_caller(who, || Ok(rustix::fs::chmodat(CWD, &name, mode, AtFlags::empty())?))
    }

    fn set_size(&self, who: &Identity, node: &Node, st: &Statx, size: u64) -> FsResult<()> {
        match node.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDir),
            _ => return Err(FsError::Inval),
        }
        if i64::try_from(size).is_err() {
            return Err(FsError::FBig);
        }
        self.creds.may_transfer(who, node.as_fd(), st, true)?;
        // Opened by the server (the owner may write a file of any mode), cut by the caller, whose lack of
        // capabilities makes the kernel clear set-id bits.
        let fd = reopen(node.as_fd(), OFlags::WRONLY)?;
        if let Some(mode) = self.creds.mode_after_change(who, st) {
            // Only the owner may; to a server that is not the owner the kernel does it.
            let _ = self.set_mode(who, node, mode);
        }
        self.creds.as_caller(who, || Ok(rustix::fs::ftruncate(&fd, size)?))
    }

    fn set_owner(&self, who: &Identity, node: &Node, set: &SetAttr) -> FsResult<()> {
        // -1 means "leave it" to the kernel, so it is no id.
        if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
            return Err(FsError::Inval);
        }
        let uid = set.uid.map(Uid::from_raw);
        let gid = set.gid.map(Gid::from_raw);
        self.creds.as_caller(who, || Ok(rustix::fs::chownat(node, c"", uid, gid, AtFlags::EMPTY_PATH)?))
    }

    fn set_times(&self, who: &Identity, node: &Node, st: &Statx, set: &SetAttr) -> FsResult<()> {
        if set.atime == SetTime::Keep && set.mtime == SetTime::Keep {
            return Ok(());
        }
        let times = Timestamps {
            last_access: attr::timespec(set.atime),
            last_modification: attr::timespec(set.mtime),
        };
        // "Now" is also allowed to those who may write; the kernel knows that only for both times at once.
        if !self.creds.owns(who, st) && self.creds.allowed(who, node.as_fd(), st, W)? == 0 {
            return Err(FsError::Access);
        }
        match rustix::fs::utimensat(node, c"", &times, AtFlags::EMPTY_PATH) {
            Err(Errno::INVAL) => {
                Ok(rustix::fs::utimensat(CWD, proc_name(node.as_fd()), &times, AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }

    /// Makes an object's attributes durable, if that is wanted.
    pub(super) fn sync_object(&self, node: &Node) -> FsResult<()> {
        if !self.sync_metadata {
            return Ok(());
        }
        let synced = match node.kind() {
            FileKind::Regular => match node.open_any() {
                Ok(file) => return Ok(file.sync_now(&self.verifier)?),
                Err(_) => self.sync_all(),
            },
            FileKind::Directory => match reopen(node.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(dir) => rustix::fs::fsync(dir),
                Err(_) => self.sync_all(),
            },
            _ => self.sync_all(),
        };
        synced.map_err(|e| {
            if data_may_be_lost(e) {
                self.verifier.change();
            }
            e.into()
        })
    }

    /// Makes an object durable that has a new entry in `dir`, and the entry, if that is wanted. Of a link or a special
    /// file nothing else is to be synced: file systems with a journal sync the inode with the entry.
    pub(super) fn sync_entry(&self, node: &Node, dir: &Node) -> FsResult<()> {
        if matches!(node.kind(), FileKind::Regular | FileKind::Directory) {
            self.sync_object(node)?;
        }
        self.sync_object(dir)
    }

    /// Makes everything durable. Links and special files cannot be synced by themselves, nor what we may not open.
    fn sync_all(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(self.tree.mount())
    }
}

fn check_time(t: Time) -> FsResult<()> {
    if t.nanos < 1_000_000_000 { Ok(()) } else { Err(FsError::Inval) }
}
