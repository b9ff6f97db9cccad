//! Operations that look up or change names.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use millrace_vfs::{
    Attr, CreateHow, Created, FileKind, FsError, FsResult, Handle, Identity, NewNode, SetAttr, SetTime, Wcc,
    WccAttr,
};
use rustix::{
    fs::{AtFlags, CWD, Dev, FileType, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps},
    io::Errno,
    time::{ClockId, clock_gettime},
};

use super::{
    attr,
    cred::{W, X},
    data_file::DataFile,
    descriptors::{with_free_descriptor, with_free_descriptor_retrying},
    node::{Node, proc_name, reopen},
    setup::Export,
};

/// The longest target of a symbolic link (`PATH_MAX`, without the NUL).
const TARGET_MAX: usize = 4095;
/// Mode of a file if the client has not sent one.
const DEFAULT_MODE: u32 = 0o600;

impl Export {
    /// Opens the directory of a handle.
    pub(super) fn directory(&self, dir: &Handle) -> FsResult<(Arc<Node>, Statx)> {
        let node = self.tree.open(dir)?;
        if node.kind() != FileKind::Directory {
            return Err(FsError::NotDir);
        }
        let st = attr::live_stat(node.as_fd())?;
        Ok((node, st))
    }

    /// Opens a directory and checks that `caller` may change its entries.
    fn writable_directory(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
    ) -> FsResult<(Arc<Node>, Statx)> {
        self.writable()?;
        let (node, st) = self.directory(dir)?;
        self.info.check_name(name)?;
        self.creds.precheck(caller, &st, W | X)?;
        Ok((node, st))
    }

    /// The mode for creating an object.
    fn creation_mode(&self, caller: &Identity, set: &SetAttr) -> Mode {
        let mode = set.mode.map_or(DEFAULT_MODE, |mode| self.creds.creatable_mode(caller, mode));
        Mode::from_raw_mode(mode & 0o7777)
    }

    /// The attributes of a creation in `dir`, after the umask of its caller. The kernel applies a default ACL.
    fn masked(&self, dir: &Node, set: &SetAttr) -> FsResult<SetAttr> {
        let masked = set.mode.map(|mode| mode & !set.umask);
        let applies = masked != set.mode && !has_default_acl(dir)?;
        Ok(SetAttr { mode: if applies { masked } else { set.mode }, umask: 0, ..*set })
    }

    /// Attributes of the directory after a change.
    fn dir_after(&self, dir: &Node) -> FsResult<Wcc> {
        self.after(&attr::stat(dir.as_fd())?)
    }

    pub(super) fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> FsResult<(Handle, Attr)> {
        let (node, st) = self.directory(dir)?;
        self.info.check_name(name)?;
        self.creds.precheck(caller, &st, X)?;
        if name == b"." || name == b".." {
            if self.creds.allowed(caller, node.as_fd(), &st, X)? == 0 {
                return Err(FsError::Access);
            }
            let (found, st) = if name == b"." { (node, st) } else { self.tree.open_parent(&node)? };
            return Ok((found.handle(), attr::attr(&st, self.fsid)?));
        }
        let (fd, st) = self.creds.as_caller(caller, || self.tree.open_entry(node.as_fd(), name))?;
        let handle = self.tree.record_entry(dir, name, fd.as_fd(), &st)?;
        let attr = attr::attr(&st, self.fsid)?;
        self.tree.cache.insert(Node::new(handle, fd, attr.kind));
        Ok((handle, attr))
    }

    /// Opens the existing object `name`.
    fn open_existing(&self, dir: &Node, name: &[u8]) -> FsResult<(Arc<Node>, Statx)> {
        let (fd, st) = self.tree.open_entry(dir.as_fd(), name)?;
        let handle = self.tree.record_entry(&dir.handle(), name, fd.as_fd(), &st)?;
        Ok((self.tree.cache.insert(Node::new(handle, fd, attr::kind(&st)?)), st))
    }

    /// Caches the regular file just created as `name`. It is opened through its descriptor, since the name
    /// may already refer to another file.
    fn insert_created(&self, dir: &Node, name: &[u8], file: OwnedFd) -> FsResult<(Arc<Node>, Statx)> {
        let fd = with_free_descriptor_retrying(|| Ok(reopen(file.as_fd(), OFlags::PATH)?))?;
        let st = attr::stat(fd.as_fd())?;
        let handle = self.tree.record_entry(&dir.handle(), name, fd.as_fd(), &st)?;
        let node = Node::with_writer(handle, fd, DataFile::new(file));
        Ok((self.tree.cache.insert(node), st))
    }

    /// The attributes in `set` that the creation of an object, which has the status `st`, has left to set.
    fn left_to_set(&self, caller: &Identity, node: &Node, st: &Statx, set: &SetAttr) -> SetAttr {
        let mut set = *set;
        // Only the superuser may change the owner. For others the requested owner is the default anyway, or
        // not permitted.
        if caller.uid != 0 || !self.creds.by_kernel() {
            (set.uid, set.gid) = (None, None);
        }
        set.mode = set.mode.map(|mode| self.creds.creatable_mode(caller, mode));
        let exact = self.exact_modes() || set.mode.is_none_or(|m| m & 0o7777 == attr::mode(st));
        if node.kind() == FileKind::Symlink || (exact && set.uid.is_none() && set.gid.is_none()) {
            set.mode = None;
        }
        set
    }

    /// Completes a create: sets the attributes that creation itself did not set.
    fn finish_create(
        &self,
        caller: &Identity,
        dir: &Node,
        (node, st): (Arc<Node>, Statx),
        set: &SetAttr,
    ) -> FsResult<Created> {
        let set = self.left_to_set(caller, &node, &st, set);
        self.finish(&self.creds.owner_of_new(caller), dir, (node, st), &set)
    }

    /// Sets attributes of a new object, or of a file opened by CREATE; syncs; builds the result.
    fn finish(
        &self,
        caller: &Identity,
        dir: &Node,
        (node, st): (Arc<Node>, Statx),
        set: &SetAttr,
    ) -> FsResult<Created> {
        if *set != SetAttr::default() {
            self.apply(caller, &node, &st, set)?;
        }
        self.sync_entry(&node, dir)?;
        let attr = attr::attr(&attr::stat(node.as_fd())?, self.fsid)?;
        Ok(Created { handle: node.handle(), attr, dir: self.dir_after(dir)? })
    }

    pub(super) fn create(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        how: &CreateHow,
    ) -> FsResult<Created> {
        let (node, _) = self.writable_directory(caller, dir, name)?;
        if name == b"." || name == b".." {
            return Err(FsError::Exist);
        }
        let set = match how {
            CreateHow::Unchecked(set) | CreateHow::Guarded(set) => self.masked(&node, set)?,
            CreateHow::Exclusive(verifier, set) => {
                let set = self.masked(&node, set)?;
                return self.create_exclusive(caller, (dir, &node), name, *verifier, &set);
            }
        };
        let mode = self.creation_mode(caller, &set);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || with_free_descriptor(|| rustix::fs::openat(&*node, name, flags, mode));
        match (self.creds.as_caller(caller, || Ok(open()))?, how) {
            (Ok(file), _) => {
                let new = self.insert_created(&node, name, file)?;
                self.finish_create(caller, &node, new, &set)
            }
            (Err(Errno::EXIST), CreateHow::Unchecked(_)) => {
                let found = self.open_existing(&node, name)?;
                if found.0.kind() != FileKind::Regular {
                    return Err(FsError::Exist);
                }
                let only_size = SetAttr { size: set.size, ..SetAttr::default() };
                self.finish(caller, &node, found, &only_size)
            }
            (Err(e), _) => Err(e.into()),
        }
    }

    fn create_exclusive(
        &self,
        caller: &Identity,
        (dir, node): (&Handle, &Node),
        name: &[u8],
        verifier: [u8; 8],
        set: &SetAttr,
    ) -> FsResult<Created> {
        let size = set.size.unwrap_or(0);
        if i64::try_from(size).is_err() {
            return Err(FsError::FBig);
        }
        // The times hold the verifier.
        let set = SetAttr { size: None, atime: SetTime::Keep, mtime: SetTime::Keep, ..*set };
        let mode = self.creation_mode(caller, &set);
        // Without O_TMPFILE, a retransmitted call must not see the file before its verifier is set.
        let _lock = self.lock(dir);
        let times = verifier_times(verifier);
        match self.creds.as_caller(caller, || Ok(create_with_times(node, name, mode, size, &times)))? {
            Ok(file) => {
                let new = self.insert_created(node, name, file)?;
                self.finish_create(caller, node, new, &set)
            }
            Err(Errno::EXIST) => self.created_before(caller, node, name, &times, &set),
            Err(e) => Err(e.into()),
        }
    }

    /// Result of a retransmitted EXCLUSIVE create, recognized by the verifier in the file's times. The server may have
    /// stopped before it set all attributes, so these are set again, with the rights of the caller: the times of any file
    /// are a verifier that others can read.
    fn created_before(
        &self,
        caller: &Identity,
        dir: &Node,
        name: &[u8],
        times: &Timestamps,
        set: &SetAttr,
    ) -> FsResult<Created> {
        let (node, st) = self.open_existing(dir, name)?;
        let attr = attr::attr(&st, self.fsid)?;
        let is_ours = attr.kind == FileKind::Regular
            && times.last_access.tv_sec == attr.atime.seconds
            && times.last_modification.tv_sec == attr.mtime.seconds;
        if !is_ours {
            return Err(FsError::Exist);
        }
        let set = self.left_to_set(caller, &node, &st, set);
        self.finish(caller, dir, (node, st), &set)
    }

    pub(super) fn create_node(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        new: &NewNode,
        set: &SetAttr,
    ) -> FsResult<Created> {
        let (node, _) = self.writable_directory(caller, dir, name)?;
        if name == b"." || name == b".." {
            return Err(FsError::Exist);
        }
        if set.size.is_some_and(|s| s != 0) {
            return Err(FsError::Inval);
        }
        let set = SetAttr { size: None, ..self.masked(&node, set)? };
        self.creds.precheck_mknod(caller, new)?;
        let mode = self.creation_mode(caller, &set);
        let special = |kind, dev| Ok(rustix::fs::mknodat(&*node, name, kind, mode, dev)?);
        let dev = |major, minor| -> Dev { rustix::fs::makedev(major, minor) };
        let started = clock_gettime(ClockId::RealtimeCoarse);
        self.creds.as_caller(caller, || match new {
            NewNode::Directory => {
                let dir_mode = set.mode.map_or(Mode::RWXU, |m| Mode::from_raw_mode(m & 0o7777));
                Ok(rustix::fs::mkdirat(&*node, name, dir_mode)?)
            }
            NewNode::Symlink(target) => {
                if target.is_empty() || target.contains(&0) {
                    return Err(FsError::Inval);
                }
                if target.len() > TARGET_MAX {
                    return Err(FsError::NameTooLong);
                }
                Ok(rustix::fs::symlinkat(target.as_slice(), &*node, name)?)
            }
            NewNode::Block(major, minor) => special(FileType::BlockDevice, dev(*major, *minor)),
            NewNode::Character(major, minor) => special(FileType::CharacterDevice, dev(*major, *minor)),
            NewNode::Socket => special(FileType::Socket, 0),
            NewNode::Fifo => special(FileType::Fifo, 0),
        })?;
        let found = with_free_descriptor_retrying(|| self.open_existing(&node, name))?;
        if self.is_new(caller, new, &found.1, started) {
            self.finish_create(caller, &node, found, &set)
        } else {
            // A local process has put this object under the name since; the created one is elsewhere, or
            // gone.
            self.finish(caller, &node, found, &SetAttr::default())
        }
    }

    /// Whether an object may be the one that `caller` has just created, after `started`: same type, same
    /// owner, and a later birth time (if the file system stores it).
    fn is_new(&self, caller: &Identity, created: &NewNode, st: &Statx, started: Timespec) -> bool {
        let kind = match created {
            NewNode::Directory => FileKind::Directory,
            NewNode::Symlink(_) => FileKind::Symlink,
            NewNode::Block(..) => FileKind::Block,
            NewNode::Character(..) => FileKind::Character,
            NewNode::Socket => FileKind::Socket,
            NewNode::Fifo => FileKind::Fifo,
        };
        // Some file systems store whole seconds only, or even seconds.
        let started = match st.stx_btime.tv_nsec {
            0 => (started.tv_sec - 1, 0),
            _ => (started.tv_sec, started.tv_nsec),
        };
        let birth_time = (st.stx_btime.tv_sec, i64::from(st.stx_btime.tv_nsec));
        attr::kind(st) == Ok(kind)
            && st.stx_uid == self.creds.owner_of_new(caller).uid
            && (!attr::has(st, StatxFlags::BTIME) || birth_time >= started)
    }

    /// REMOVE, or RMDIR with `directory`.
    pub(super) fn unlink(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        directory: bool,
    ) -> FsResult<Wcc> {
        let (node, dir_st) = self.writable_directory(caller, dir, name)?;
        match name {
            b"." => return Err(FsError::Inval),
            b".." => return Err(if directory { FsError::Exist } else { FsError::Inval }),
            _ => {}
        }
        let doomed = self.tree.open_entry(node.as_fd(), name).ok();
        if let Some((_, st)) = &doomed {
            self.creds.precheck_sticky(caller, &dir_st, st)?;
            let is_dir = attr::kind(st)? == FileKind::Directory;
            // The kernel's errno for unlinking a directory differs between file systems.
            if is_dir && !directory {
                return Err(FsError::IsDir);
            }
        }
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        self.removing(doomed.as_ref(), || {
            self.creds.as_caller(caller, || Ok(rustix::fs::unlinkat(&*node, name, flags)?))
        })?;
        if let Some((fd, st)) = doomed {
            self.after_unlink(dir, name, fd.as_fd(), &st);
        }
        self.sync_object(&node)?;
        self.dir_after(&node)
    }

    /// Removes a link of an object by `remove`. A held object is kept.
    fn removing(
        &self,
        object: Option<&(OwnedFd, Statx)>,
        remove: impl FnOnce() -> FsResult<()>,
    ) -> FsResult<()> {
        let kept = match object {
            Some((fd, st)) => self.tree.keep(fd.as_fd(), st)?,
            None => None,
        };
        let removed = remove();
        if let Some((handle, kept)) = kept {
            self.tree.holds.settle(&handle, kept);
        }
        removed
    }

    /// Updates index and cache after an object has lost a name, so that its space is released with the last
    /// one.
    fn after_unlink(&self, dir: &Handle, name: &[u8], fd: std::os::fd::BorrowedFd<'_>, before: &Statx) {
        // If a local process has just put another object under the name, the previous one still exists.
        let dead = attr::stat(fd).is_ok_and(|st| st.stx_nlink == 0);
        if let Ok(handle) = self.tree.handle_of(fd, before) {
            self.tree.forget(&handle, dir, name, dead);
        }
    }

    pub(super) fn rename(
        &self,
        caller: &Identity,
        (from_dir, from): (&Handle, &[u8]),
        (to_dir, to): (&Handle, &[u8]),
    ) -> FsResult<(Wcc, Wcc)> {
        let (source, source_st) = self.writable_directory(caller, from_dir, from)?;
        let (target, target_st) = self.writable_directory(caller, to_dir, to)?;
        if [from, to].iter().any(|n| *n == b"." || *n == b"..") {
            return Err(FsError::Inval);
        }
        let (moved, moved_st) =
            self.creds.as_caller(caller, || self.tree.open_entry(source.as_fd(), from))?;
        self.creds.precheck_sticky(caller, &source_st, &moved_st)?;
        if attr::kind(&moved_st)? == FileKind::Directory && from_dir != to_dir {
            self.creds.precheck(caller, &moved_st, W)?; // The `..` entry of the moved directory changes.
        }
        let replaced = self.tree.open_entry(target.as_fd(), to).ok();
        if let Some((_, st)) = &replaced {
            self.creds.precheck_sticky(caller, &target_st, st)?;
        }
        self.removing(replaced.as_ref(), || {
            self.creds.as_caller(caller, || Ok(rustix::fs::renameat(&*source, from, &*target, to)?))
        })?;
        let same = replaced.as_ref().is_some_and(|(_, st)| attr::same_object(st, &moved_st));
        if !same {
            if let Some((fd, st)) = &replaced {
                self.after_unlink(to_dir, to, fd.as_fd(), st);
            }
            if let Ok(handle) = self.tree.handle_of(moved.as_fd(), &moved_st) {
                self.tree.note(&handle, to_dir, to);
            }
        }
        self.sync_object(&target)?;
        if from_dir != to_dir {
            self.sync_object(&source)?;
        }
        let (source, target) = (self.dir_after(&source)?, self.dir_after(&target)?);
        Ok(if same { (unchanged(source), unchanged(target)) } else { (source, target) })
    }

    pub(super) fn link(
        &self,
        caller: &Identity,
        file: &Handle,
        dir: &Handle,
        name: &[u8],
    ) -> FsResult<(Attr, Wcc)> {
        let object = self.tree.open(file)?;
        attr::live_stat(object.as_fd())?;
        let (node, _) = self.writable_directory(caller, dir, name)?;
        if object.kind() == FileKind::Directory {
            return Err(FsError::IsDir);
        }
        if name == b"." || name == b".." {
            return Err(FsError::Exist);
        }
        // The link in /proc leads to the object itself, even if that is a symbolic link.
        let existing = proc_name(object.as_fd());
        self.creds.as_caller(caller, || {
            Ok(rustix::fs::linkat(CWD, existing.as_str(), &*node, name, AtFlags::SYMLINK_FOLLOW)?)
        })?;
        self.tree.note(file, dir, name);
        self.sync_entry(&object, &node)?;
        let attr = attr::attr(&attr::stat(object.as_fd())?, self.fsid)?;
        Ok((attr, self.dir_after(&node)?))
    }
}

/// Attributes of a directory that an operation did not change. If another one did, they differ from those that the
/// client has.
fn unchanged(wcc: Wcc) -> Wcc {
    Wcc { before: wcc.after.as_ref().map(WccAttr::from), ..wcc }
}

/// Whether a directory has a default ACL.
fn has_default_acl(dir: &Node) -> FsResult<bool> {
    let path = proc_name(dir.as_fd());
    match rustix::fs::getxattr(path.as_str(), c"system.posix_acl_default", &mut [0_u8; 1]) {
        Ok(_) | Err(Errno::RANGE) => Ok(true),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Creates a regular file that has this mode, size and `times` when its name appears: if the server is killed, no file is
/// left that a retransmitted EXCLUSIVE create would take for another one. If the file system does not support O_TMPFILE,
/// there is a short moment without the times.
fn create_with_times(
    dir: &Node,
    name: &[u8],
    mode: Mode,
    size: u64,
    times: &Timestamps,
) -> Result<OwnedFd, Errno> {
    let set = |file: &OwnedFd| {
        if size > 0 {
            rustix::fs::ftruncate(file, size)?;
        }
        rustix::fs::futimens(file, times)
    };
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match with_free_descriptor(|| rustix::fs::openat(dir, c".", flags | OFlags::TMPFILE, mode)) {
        Ok(file) => {
            set(&file)?;
            rustix::fs::linkat(CWD, proc_name(file.as_fd()), dir, name, AtFlags::SYMLINK_FOLLOW)?;
            Ok(file)
        }
        // The errors of file systems without O_TMPFILE support, and of old kernels.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            let named = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = with_free_descriptor(|| rustix::fs::openat(dir, name, named, mode))?;
            set(&file)?;
            Ok(file)
        }
        Err(e) => Err(e),
    }
}

/// Encodes an EXCLUSIVE verifier as times: 31 bits of each half in the seconds, which every file system
/// stores.
fn verifier_times(v: [u8; 8]) -> Timestamps {
    let half = |b: [u8; 4]| Timespec { tv_sec: (u32::from_be_bytes(b) & 0x7fff_ffff).into(), tv_nsec: 0 };
    let [a, b, c, d, e, f, g, h] = v;
    Timestamps { last_modification: half([a, b, c, d]), last_access: half([e, f, g, h]) }
}
