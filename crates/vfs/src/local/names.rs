//! Calls that look up or change names.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
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
    descriptors::{opening, opening_made},
    node::{Node, proc_name, reopen},
    setup::Export,
};
use crate::{Attr, CreateHow, Created, FileKind, FsError, FsResult, Handle, Identity, NewNode, SetAttr, Wcc};

/// The longest target of a symbolic link (`PATH_MAX`, without the NUL).
const TARGET_MAX: usize = 4095;
/// The mode of a file until the client sets it, when it sent none.
const NO_MODE: u32 = 0o600;

impl Export {
    /// Refuses names that are no single component.
    fn check_name(&self, name: &[u8]) -> FsResult<()> {
        if name.is_empty() || name.contains(&0) || name.contains(&b'/') {
            return Err(FsError::Inval);
        }
        if name.len() > self.info.name_max as usize { Err(FsError::NameTooLong) } else { Ok(()) }
    }

    /// The directory behind a handle.
    pub(super) fn directory(&self, dir: &Handle) -> FsResult<(Arc<Node>, Statx)> {
        let node = self.tree.open(dir)?;
        if node.kind() != FileKind::Directory {
            return Err(FsError::NotDir);
        }
        let st = attr::live_stat(node.as_fd())?;
        Ok((node, st))
    }

    /// The directory behind a handle, for a change of its entries by `who`.
    fn directory_to_change(&self, who: &Identity, dir: &Handle, name: &[u8]) -> FsResult<(Arc<Node>, Statx)> {
        self.writable()?;
        let (node, st) = self.directory(dir)?;
        self.check_name(name)?;
        self.creds.precheck(who, &st, W | X)?;
        Ok((node, st))
    }

    /// The mode with which an object is made.
    fn mode_to_make(&self, who: &Identity, set: &SetAttr) -> Mode {
        let mode = set.mode.map_or(NO_MODE, |mode| self.creds.makeable(who, mode));
        Mode::from_raw_mode(mode & 0o7777)
    }

    /// The directory's change.
    fn dir_after(&self, dir: &Node) -> FsResult<Wcc> {
        self.after(&attr::stat(dir.as_fd())?)
    }

    pub(super) fn lookup(&self, who: &Identity, dir: &Handle, name: &[u8]) -> FsResult<(Handle, Attr)> {
        let (node, st) = self.directory(dir)?;
        self.check_name(name)?;
        self.creds.precheck(who, &st, X)?;
        if name == b"." || name == b".." {
            if self.creds.allowed(who, node.as_fd(), &st, X)? == 0 {
                return Err(FsError::Access);
            }
            let (found, st) = if name == b"." { (node, st) } else { self.tree.open_parent(&node)? };
            return Ok((found.handle(), attr::attr(&st, self.fsid)?));
        }
        let (fd, st) = self.creds.as_caller(who, || self.tree.open_entry(node.as_fd(), name))?;
        let handle = self.tree.name_entry(dir, name, fd.as_fd(), &st)?;
        let attr = attr::attr(&st, self.fsid)?;
        self.tree.cache.insert(Node::new(handle, fd, attr.kind));
        Ok((handle, attr))
    }

    /// Opens what is there under `name`.
    fn find(&self, dir: &Node, name: &[u8]) -> FsResult<(Arc<Node>, Statx)> {
        let (fd, st) = self.tree.open_entry(dir.as_fd(), name)?;
        let handle = self.tree.name_entry(&dir.handle(), name, fd.as_fd(), &st)?;
        Ok((self.tree.cache.insert(Node::new(handle, fd, attr::kind(&st)?)), st))
    }

    /// Keeps the regular file that was just made under `name`. It is reached by its descriptor: by its name there may
    /// be another file by now.
    fn adopt(&self, dir: &Node, name: &[u8], file: OwnedFd) -> FsResult<(Arc<Node>, Statx)> {
        let fd = opening_made(|| Ok(reopen(file.as_fd(), OFlags::PATH)?))?;
        let st = attr::stat(fd.as_fd())?;
        let handle = self.tree.name_entry(&dir.handle(), name, fd.as_fd(), &st)?;
        let node = Node::with_writer(handle, fd, DataFile::new(file));
        Ok((self.tree.cache.insert(node), st))
    }

    /// Finishes the creation of an object that is open: attributes that the making itself did not set.
    fn finish_new(
        &self,
        who: &Identity,
        dir: &Node,
        (node, st): (Arc<Node>, Statx),
        set: &SetAttr,
    ) -> FsResult<Created> {
        let mut set = *set;
        // Only the superuser gives files away; what others ask for is what they get anyway, or not theirs to ask.
        if who.uid != 0 || !self.creds.by_kernel() {
            (set.uid, set.gid) = (None, None);
        }
        set.mode = set.mode.map(|mode| self.creds.makeable(who, mode));
        let exact = self.exact_modes() || set.mode.is_none_or(|m| m & 0o7777 == attr::mode(&st));
        if node.kind() == FileKind::Symlink || (exact && set.uid.is_none() && set.gid.is_none()) {
            set.mode = None;
        }
        self.finish(&self.creds.maker(who), dir, (node, st), &set)
    }

    /// Sets attributes of an object that was made, or opened by CREATE; durability; the answer.
    fn finish(
        &self,
        who: &Identity,
        dir: &Node,
        (node, st): (Arc<Node>, Statx),
        set: &SetAttr,
    ) -> FsResult<Created> {
        if *set != SetAttr::default() {
            self.apply(who, &node, &st, set)?;
        }
        self.sync_entry(&node, dir)?;
        let attr = attr::attr(&attr::stat(node.as_fd())?, self.fsid)?;
        Ok(Created { handle: node.handle(), attr, dir: self.dir_after(dir)? })
    }

    pub(super) fn create(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &[u8],
        how: &CreateHow,
    ) -> FsResult<Created> {
        let (node, _) = self.directory_to_change(who, dir, name)?;
        if name == b"." || name == b".." {
            return Err(FsError::Exist);
        }
        let set = match how {
            CreateHow::Unchecked(set) | CreateHow::Guarded(set) => *set,
            CreateHow::Exclusive(verifier) => return self.create_exclusive(who, dir, &node, name, *verifier),
        };
        let mode = self.mode_to_make(who, &set);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || opening(|| rustix::fs::openat(&*node, name, flags, mode));
        match (self.creds.as_caller(who, || Ok(open()))?, how) {
            (Ok(file), _) => {
                let new = self.adopt(&node, name, file)?;
                self.finish_new(who, &node, new, &set)
            }
            (Err(Errno::EXIST), CreateHow::Unchecked(_)) => {
                let found = self.find(&node, name)?;
                if found.0.kind() != FileKind::Regular {
                    return Err(FsError::Exist);
                }
                let only_size = SetAttr { size: set.size, ..SetAttr::default() };
                self.finish(who, &node, found, &only_size)
            }
            (Err(e), _) => Err(e.into()),
        }
    }

    fn create_exclusive(
        &self,
        who: &Identity,
        dir: &Handle,
        node: &Node,
        name: &[u8],
        verifier: [u8; 8],
    ) -> FsResult<Created> {
        // Where a file cannot be made unnamed, a repeated call must not see it before its verifier is there.
        let _lock = self.lock(dir);
        let times = verifier_times(verifier);
        match self.creds.as_caller(who, || Ok(make_with_times(node, name, &times)))? {
            Ok(file) => {
                let new = self.adopt(node, name, file)?;
                self.finish_new(who, node, new, &SetAttr::default())
            }
            Err(Errno::EXIST) => self.created_before(node, name, &times),
            Err(e) => Err(e.into()),
        }
    }

    /// The answer to an EXCLUSIVE create that was carried out before, recognised by its verifier in the times.
    fn created_before(&self, dir: &Node, name: &[u8], times: &Timestamps) -> FsResult<Created> {
        let (node, st) = self.find(dir, name)?;
        let attr = attr::attr(&st, self.fsid)?;
        let ours = attr.kind == FileKind::Regular
            && times.last_access.tv_sec == attr.atime.seconds
            && times.last_modification.tv_sec == attr.mtime.seconds;
        if !ours {
            return Err(FsError::Exist);
        }
        Ok(Created { handle: node.handle(), attr, dir: self.dir_after(dir)? })
    }

    pub(super) fn make(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &[u8],
        new: &NewNode,
        set: &SetAttr,
    ) -> FsResult<Created> {
        let (node, _) = self.directory_to_change(who, dir, name)?;
        if name == b"." || name == b".." {
            return Err(FsError::Exist);
        }
        if set.size.is_some_and(|s| s != 0) {
            return Err(FsError::Inval);
        }
        let set = SetAttr { size: None, ..*set };
        self.creds.precheck_make(who, new)?;
        let mode = self.mode_to_make(who, &set);
        let special = |kind, dev| Ok(rustix::fs::mknodat(&*node, name, kind, mode, dev)?);
        let dev = |major, minor| -> Dev { rustix::fs::makedev(major, minor) };
        let began = clock_gettime(ClockId::RealtimeCoarse);
        self.creds.as_caller(who, || match new {
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
        let found = opening_made(|| self.find(&node, name))?;
        if self.is_new(who, new, &found.1, began) {
            self.finish_new(who, &node, found, &set)
        } else {
            // Somebody has put it under this name since; what was made is elsewhere, or gone.
            self.finish(who, &node, found, &SetAttr::default())
        }
    }

    /// Whether an object may be the one that `who` has just made, since `began`: it is of the same kind, the maker's,
    /// and was born since (where the file system keeps times of birth).
    fn is_new(&self, who: &Identity, made: &NewNode, st: &Statx, began: Timespec) -> bool {
        let kind = match made {
            NewNode::Directory => FileKind::Directory,
            NewNode::Symlink(_) => FileKind::Symlink,
            NewNode::Block(..) => FileKind::Block,
            NewNode::Character(..) => FileKind::Character,
            NewNode::Socket => FileKind::Socket,
            NewNode::Fifo => FileKind::Fifo,
        };
        // Some file systems keep whole seconds only, or even ones.
        let began = match st.stx_btime.tv_nsec {
            0 => (began.tv_sec - 1, 0),
            _ => (began.tv_sec, began.tv_nsec),
        };
        let born = (st.stx_btime.tv_sec, i64::from(st.stx_btime.tv_nsec));
        attr::kind(st) == Ok(kind)
            && st.stx_uid == self.creds.maker(who).uid
            && (!attr::has(st, StatxFlags::BTIME) || born >= began)
    }

    /// REMOVE, and RMDIR with `directory`.
    pub(super) fn unlink(&self, who: &Identity, dir: &Handle, name: &[u8], directory: bool) -> FsResult<Wcc> {
        let (node, dir_st) = self.directory_to_change(who, dir, name)?;
        match name {
            b"." => return Err(FsError::Inval),
            b".." => return Err(if directory { FsError::Exist } else { FsError::Inval }),
            _ => {}
        }
        let doomed = self.tree.open_entry(node.as_fd(), name).ok();
        if let Some((_, st)) = &doomed {
            self.creds.precheck_sticky(who, &dir_st, st)?;
            let is_dir = attr::kind(st)? == FileKind::Directory;
            // The kernel's word for unlinking a directory differs between file systems.
            if is_dir && !directory {
                return Err(FsError::IsDir);
            }
        }
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        self.creds.as_caller(who, || Ok(rustix::fs::unlinkat(&*node, name, flags)?))?;
        if let Some((fd, st)) = doomed {
            self.after_unlink(dir, name, fd.as_fd(), &st);
        }
        self.sync_object(&node)?;
        self.dir_after(&node)
    }

    /// Lets go of an object that lost a name, so that its space comes back with its last one.
    fn after_unlink(&self, dir: &Handle, name: &[u8], fd: std::os::fd::BorrowedFd<'_>, before: &Statx) {
        // Someone may have put another object under the name just before; then this one lives on.
        let dead = attr::stat(fd).is_ok_and(|st| st.stx_nlink == 0);
        if let Ok(handle) = self.tree.handle_of(fd, before) {
            self.tree.forget(&handle, dir, name, dead);
        }
    }

    pub(super) fn rename(
        &self,
        who: &Identity,
        (from_dir, from): (&Handle, &[u8]),
        (to_dir, to): (&Handle, &[u8]),
    ) -> FsResult<(Wcc, Wcc)> {
        let (source, source_st) = self.directory_to_change(who, from_dir, from)?;
        let (target, target_st) = self.directory_to_change(who, to_dir, to)?;
        if [from, to].iter().any(|n| *n == b"." || *n == b"..") {
            return Err(FsError::Inval);
        }
        let (moved, moved_st) = self.creds.as_caller(who, || self.tree.open_entry(source.as_fd(), from))?;
        self.creds.precheck_sticky(who, &source_st, &moved_st)?;
        if attr::kind(&moved_st)? == FileKind::Directory && from_dir != to_dir {
            self.creds.precheck(who, &moved_st, W)?; // Its entry .. changes.
        }
        let replaced = self.tree.open_entry(target.as_fd(), to).ok();
        if let Some((_, st)) = &replaced {
            self.creds.precheck_sticky(who, &target_st, st)?;
        }
        self.creds.as_caller(who, || Ok(rustix::fs::renameat(&*source, from, &*target, to)?))?;
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
        Ok((self.dir_after(&source)?, self.dir_after(&target)?))
    }

    pub(super) fn link(
        &self,
        who: &Identity,
        file: &Handle,
        dir: &Handle,
        name: &[u8],
    ) -> FsResult<(Attr, Wcc)> {
        let object = self.tree.open(file)?;
        attr::live_stat(object.as_fd())?;
        let (node, _) = self.directory_to_change(who, dir, name)?;
        if object.kind() == FileKind::Directory {
            return Err(FsError::IsDir);
        }
        if name == b"." || name == b".." {
            return Err(FsError::Exist);
        }
        // The link in /proc leads to the object itself, even if that is a symbolic link.
        let existing = proc_name(object.as_fd());
        self.creds.as_caller(who, || {
            Ok(rustix::fs::linkat(CWD, existing.as_str(), &*node, name, AtFlags::SYMLINK_FOLLOW)?)
        })?;
        self.tree.note(file, dir, name);
        self.sync_entry(&object, &node)?;
        let attr = attr::attr(&attr::stat(object.as_fd())?, self.fsid)?;
        Ok((attr, self.dir_after(&node)?))
    }
}

/// Makes a regular file that has `times` from the moment its name appears: whenever the server is killed, there is no
/// file that a repeated EXCLUSIVE create would take for another's. Without unnamed files in the file system there is
/// such a moment.
fn make_with_times(dir: &Node, name: &[u8], times: &Timestamps) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(NO_MODE);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match opening(|| rustix::fs::openat(dir, c".", flags | OFlags::TMPFILE, mode)) {
        Ok(file) => {
            rustix::fs::futimens(&file, times)?;
            rustix::fs::linkat(CWD, proc_name(file.as_fd()), dir, name, AtFlags::SYMLINK_FOLLOW)?;
            Ok(file)
        }
        // What open(2) gives where there are none: the file system's own word, or that of an old kernel.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            let named = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = opening(|| rustix::fs::openat(dir, name, named, mode))?;
            rustix::fs::futimens(&file, times)?;
            Ok(file)
        }
        Err(e) => Err(e),
    }
}

/// An EXCLUSIVE verifier as times: 31 bits of each half in the seconds, which every file system stores.
fn verifier_times(v: [u8; 8]) -> Timestamps {
    let half = |b: [u8; 4]| Timespec { tv_sec: (u32::from_be_bytes(b) & 0x7fff_ffff).into(), tv_nsec: 0 };
    let [a, b, c, d, e, f, g, h] = v;
    Timestamps { last_modification: half([a, b, c, d]), last_access: half([e, f, g, h]) }
}
