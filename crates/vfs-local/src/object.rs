//! Operations on one object: attributes, access rights, link targets.

use std::{
    os::fd::AsFd,
    sync::{Arc, Weak},
};

use millrace_vfs::{
    Access, Attr, FileKind, FsError, FsResult, Handle, Hold, Identity, SetAttr, SetTime, Time, Wcc,
};
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

/// A hold of a file.
struct HeldFile {
    export: Weak<Export>,
    handle: Handle,
}

impl HeldFile {
    fn new(export: &Arc<Export>, handle: &Handle) -> Self {
        export.tree.holds.add(handle);
        Self { export: Arc::downgrade(export), handle: *handle }
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        let Some(export) = self.export.upgrade() else { return };
        let handle = self.handle;
        if let Some(kept) = export.tree.holds.release(&handle) {
            // The kernel may free much space when the last descriptor is closed.
            let tree = Arc::clone(&export.tree);
            export.pool.push(Box::new(move || {
                tree.cache.remove(&handle);
                drop(kept);
            }));
        }
    }
}

impl Export {
    /// Holds a file without a pool thread, if statx(2) does not block and the file is open.
    pub(super) fn hold_now(self: &Arc<Self>, file: &Handle) -> Option<FsResult<Option<Hold>>> {
        let node = self.tree.cached(file).filter(|_| self.attr_inline)?;
        Some(self.hold_node(&node))
    }

    pub(super) fn hold(self: &Arc<Self>, file: &Handle) -> FsResult<Option<Hold>> {
        let node = self.tree.open(file)?;
        self.hold_node(&node)
    }

    fn hold_node(self: &Arc<Self>, node: &Node) -> FsResult<Option<Hold>> {
        if node.kind() != FileKind::Regular {
            return Ok(None);
        }
        // The hold is created before the check, so that a removal after the check finds it.
        let held = HeldFile::new(self, &node.handle());
        attr::live_stat(node.as_fd())?;
        Ok(Some(Box::new(held)))
    }

    pub(super) fn getattr(&self, file: &Handle) -> FsResult<Attr> {
        let node = self.tree.open(file)?;
        attr::attr(&attr::live_stat(node.as_fd())?, self.fsid)
    }

    pub(super) fn readlink(&self, caller: &Identity, link: &Handle) -> FsResult<(Vec<u8>, Attr)> {
        let node = self.tree.open(link)?;
        if node.kind() != FileKind::Symlink {
            return Err(FsError::Inval);
        }
        let target = self.creds.as_caller(caller, || Ok(rustix::fs::readlinkat(&*node, c"", Vec::new())?))?;
        Ok((target.into_bytes(), attr::attr(&attr::live_stat(node.as_fd())?, self.fsid)?))
    }

    pub(super) fn access(
        &self,
        caller: &Identity,
        file: &Handle,
        wanted: Access,
    ) -> FsResult<(Access, Attr)> {
        let node = self.tree.open(file)?;
        let st = attr::live_stat(node.as_fd())?;
        let granted = self.creds.allowed(caller, node.as_fd(), &st, R | W | X)?;
        let has = |want: u32| granted & want == want;
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
        caller: &Identity,
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
        self.apply(caller, &node, &st, set)?;
        drop(lock);
        self.sync_object(&node)?;
        self.after(&attr::stat(node.as_fd())?)
    }

    /// Sets attributes in an order in which none undoes another: size (clears set-ID bits, changes mtime),
    /// owner (clears set-ID bits), mode, times. Ownership is checked before any change.
    pub(super) fn apply(&self, caller: &Identity, node: &Node, st: &Statx, set: &SetAttr) -> FsResult<()> {
        let explicit = matches!(set.atime, SetTime::To(_)) || matches!(set.mtime, SetTime::To(_));
        let needs_owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || explicit;
        if needs_owner && !self.creds.owns(caller, st) {
            return Err(FsError::Perm);
        }
        self.creds.precheck_owner(caller, st, set)?;
        if let SetTime::To(t) = set.atime {
            check_time(t)?;
        }
        if let SetTime::To(t) = set.mtime {
            check_time(t)?;
        }
        node.revoke_grants();
        if let Some(size) = set.size {
            self.set_size(caller, node, st, size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.set_owner(caller, node, set)?;
        }
        // That of a symbolic link has no meaning, and Linux cannot change it; its NFS server ignores it too.
        if let Some(mode) = set.mode.filter(|_| node.kind() != FileKind::Symlink) {
            let mode = self.creds.settable_mode(caller, set.gid.unwrap_or(st.stx_gid), mode);
            self.set_mode(caller, node, mode)?;
        }
        self.set_times(caller, node, st, set)
    }

    fn set_mode(&self, caller: &Identity, node: &Node, mode: u32) -> FsResult<()> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let name = proc_name(node.as_fd());
        self.creds.as_caller(caller, || Ok(rustix::fs::chmodat(CWD, &name, mode, AtFlags::empty())?))
    }

    fn set_size(&self, caller: &Identity, node: &Node, st: &Statx, size: u64) -> FsResult<()> {
        match node.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDir),
            _ => return Err(FsError::Inval),
        }
        if i64::try_from(size).is_err() {
            return Err(FsError::FBig);
        }
        self.creds.may_transfer(caller, node.as_fd(), st, true)?;
        // Opened with the server's credentials, since the owner may write a file of any mode; truncated with
        // the caller's, whose lack of CAP_FSETID makes the kernel clear set-ID bits.
        let fd = reopen(node.as_fd(), OFlags::WRONLY)?;
        if let Some(mode) = self.creds.mode_after_change(caller, st) {
            // Only the owner may change the mode; if the server is not the owner, the kernel clears the bits.
            let _ = self.set_mode(caller, node, mode);
        }
        self.creds.as_caller(caller, || Ok(rustix::fs::ftruncate(&fd, size)?))
    }

    fn set_owner(&self, caller: &Identity, node: &Node, set: &SetAttr) -> FsResult<()> {
        // -1 means "unchanged" to the kernel, so it is not a valid ID.
        if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
            return Err(FsError::Inval);
        }
        let uid = set.uid.map(Uid::from_raw);
        let gid = set.gid.map(Gid::from_raw);
        self.creds.as_caller(caller, || Ok(rustix::fs::chownat(node, c"", uid, gid, AtFlags::EMPTY_PATH)?))
    }

    fn set_times(&self, caller: &Identity, node: &Node, st: &Statx, set: &SetAttr) -> FsResult<()> {
        if set.atime == SetTime::Keep && set.mtime == SetTime::Keep {
            return Ok(());
        }
        let times = Timestamps {
            last_access: attr::timespec(set.atime),
            last_modification: attr::timespec(set.mtime),
        };
        // Setting the current time requires only write permission; the kernel allows that only for both times
        // together.
        if !self.creds.owns(caller, st) && self.creds.allowed(caller, node.as_fd(), st, W)? == 0 {
            return Err(FsError::Access);
        }
        match rustix::fs::utimensat(node, c"", &times, AtFlags::EMPTY_PATH) {
            Err(Errno::INVAL) => {
                Ok(rustix::fs::utimensat(CWD, proc_name(node.as_fd()), &times, AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }

    /// Makes an object's attributes durable, if configured.
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

    /// Makes a new object and its entry in `dir` durable, if configured. Links and special files need no
    /// separate sync: journaling file systems commit the inode with the entry.
    pub(super) fn sync_entry(&self, node: &Node, dir: &Node) -> FsResult<()> {
        if matches!(node.kind(), FileKind::Regular | FileKind::Directory) {
            self.sync_object(node)?;
        }
        self.sync_object(dir)
    }

    /// Syncs the whole file system: links, special files, and files that the server may not open cannot be
    /// synced individually.
    fn sync_all(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(self.tree.mount())
    }
}

fn check_time(t: Time) -> FsResult<()> {
    if t.nanos < 1_000_000_000 { Ok(()) } else { Err(FsError::Inval) }
}
