//! Opens objects by name and by handle, confined to the export.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_vfs::{FileKind, FsError, FsResult, Handle};
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags},
    io::Errno,
};

use super::{
    attr,
    descriptors::{self, with_free_descriptor},
    handle::{self, Body},
    holds::{Holds, Kept},
    index::Index,
    mac::Key,
    node::{Node, NodeCache, proc_name},
    sys,
};

/// Delays between attempts to open a handle. The kernel returns ENOMEM while the inode number of a removed
/// object is being reused (`iget_locked` finds an inode that is being created), and ESTALE shortly after.
const DECODE_RETRY_DELAYS: [Duration; 5] = [
    Duration::from_micros(100),
    Duration::from_millis(1),
    Duration::from_millis(4),
    Duration::from_millis(10),
    Duration::from_millis(30),
];

const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How handles identify objects.
pub(super) enum Naming {
    /// Kernel file handles.
    Kernel,
    /// Inode number and birth time, with an index of locations.
    Index(Box<Index>),
}

/// The directory tree of an export.
pub(super) struct Tree {
    /// The root, opened for reading, for `open_by_handle_at` and `statfs`.
    mount: OwnedFd,
    root: Arc<Node>,
    root_stat: Statx,
    naming: Naming,
    key: Key,
    pub(super) cache: Arc<NodeCache>,
    pub(super) holds: Holds<Node>,
    openat2_missing: AtomicBool,
    /// Whether the root is that of its mount: then the kernel refuses `..` outside of the export (`path_connected`).
    is_mount_root: bool,
    /// Number of steps of the checks that directories are below the root: a few system calls each.
    #[cfg(test)]
    pub(super) steps: std::sync::atomic::AtomicU64,
    this: Weak<Self>,
}

fn same_mount(a: &Statx, b: &Statx) -> bool {
    let known = |s: &Statx| attr::has(s, StatxFlags::MNT_ID);
    if known(a) && known(b) { a.stx_mnt_id == b.stx_mnt_id } else { attr::same_device(a, b) }
}

/// Maximum number of levels per `openat` (three bytes each, up to `PATH_MAX`).
const MAX_STEP: usize = 1024;
const FIRST_STEP: usize = 256;
/// Maximum path length returned by the kernel, with the NUL (`PATH_MAX`).
const PATH_BYTES: usize = 4096;

/// Position of a directory relative to the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// The root, or below it.
    Beneath,
    Outside,
    /// The path of the object exceeds the kernel's limit.
    TooDeep,
}

/// Maximum number of attempts while concurrent renames change the path.
const RENAME_ATTEMPTS: usize = 16;

/// The part of `path` below `root`, if `path` is below it.
fn relative_path<'p>(root: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(root.strip_suffix(b"/").unwrap_or(root))?;
    rest.strip_prefix(b"/").filter(|rest| !rest.is_empty())
}

/// Opens the ancestor `levels` above `dir`; ESTALE if the root of its mount does not contain it (any more).
pub(super) fn open_above(dir: BorrowedFd<'_>, levels: usize) -> Result<OwnedFd, Errno> {
    let path = "../".repeat(levels);
    with_free_descriptor(|| {
        rustix::fs::openat(dir, path.as_str(), PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())
    })
    // The kernel refuses `..` in a directory that was moved out of its mount (`path_connected`).
    .map_err(|e| if e == Errno::NOENT { Errno::STALE } else { e })
}

impl Tree {
    /// Creates the tree of `root` (opened for reading). Fails for [`Naming::Kernel`] if the file system or
    /// the process's privileges do not allow kernel handles.
    pub(super) fn new(root: OwnedFd, key: Key, naming: Naming, cache: Arc<NodeCache>) -> FsResult<Arc<Self>> {
        let path = rustix::fs::openat(&root, c".", PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
        let root_stat = attr::stat(path.as_fd())?;
        let handle = if matches!(naming, Naming::Kernel) {
            let k = sys::name_to_handle(path.as_fd())?;
            let back = sys::open_by_handle(root.as_fd(), &k, libc::O_PATH)?;
            if !attr::same_object(&attr::stat(back.as_fd())?, &root_stat) {
                return Err(FsError::NotSupp);
            }
            handle::from_kernel(&key, &k)
        } else {
            handle::from_stat(&key, &root_stat, &root_stat)
        };
        let handle = handle.ok_or(FsError::NotSupp)?;
        let root_node = Arc::new(Node::new(handle, path, FileKind::Directory));
        let is_mount_root = root_stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        Ok(Arc::new_cyclic(|this| Self {
            mount: root,
            root: root_node,
            root_stat,
            naming,
            key,
            cache,
            holds: Holds::default(),
            openat2_missing: AtomicBool::new(false),
            is_mount_root,
            #[cfg(test)]
            steps: Default::default(),
            this: Weak::clone(this),
        }))
    }

    /// A weak reference, valid while the export is open.
    pub(super) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.this)
    }

    /// The index of locations, if handles are not the kernel's.
    pub(super) fn index(&self) -> Option<&Index> {
        match &self.naming {
            Naming::Kernel => None,
            Naming::Index(index) => Some(index),
        }
    }

    /// The root directory.
    pub(super) fn root(&self) -> &Arc<Node> {
        &self.root
    }

    /// The root, opened for reading.
    pub(super) fn mount(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Whether handles are kernel file handles.
    pub(super) fn by_kernel(&self) -> bool {
        matches!(self.naming, Naming::Kernel)
    }

    /// Whether `st` is the root's.
    pub(super) fn is_root(&self, st: &Statx) -> bool {
        attr::same_object(st, &self.root_stat) && same_mount(st, &self.root_stat)
    }

    /// Inode number of the root.
    pub(super) fn root_ino(&self) -> u64 {
        self.root_stat.stx_ino
    }

    /// Returns the object of `handle` if it is open.
    pub(super) fn cached(&self, handle: &Handle) -> Option<Arc<Node>> {
        if *handle == self.root.handle() { Some(Arc::clone(&self.root)) } else { self.cache.get(handle) }
    }

    /// Opens the object of `handle` with the server's credentials. Call on a pool thread.
    pub(super) fn open(&self, handle: &Handle) -> FsResult<Arc<Node>> {
        if let Some(node) = self.cached(handle).or_else(|| self.holds.node(handle)) {
            return Ok(node);
        }
        let (fd, st) = match (handle::open(&self.key, handle)?, &self.naming) {
            (Body::Kernel(k), Naming::Kernel) => self.open_kernel(&k)?,
            (Body::Index, Naming::Index(index)) => index.open(self, handle)?,
            // A handle from before the kind of handles was changed.
            _ => return Err(FsError::Stale),
        };
        Ok(self.cache.insert(Node::new(*handle, fd, attr::kind(&st)?)))
    }

    fn open_kernel(&self, k: &sys::KernelHandle) -> FsResult<(OwnedFd, Statx)> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let open = || with_free_descriptor(|| sys::open_by_handle(self.mount.as_fd(), k, flags));
        let mut last = open();
        for pause in DECODE_RETRY_DELAYS {
            if last.as_ref().err() != Some(&Errno::NOMEM) {
                break;
            }
            std::thread::sleep(pause);
            last = open();
        }
        let fd = last.map_err(|e| match e {
            Errno::STALE | Errno::NOENT | Errno::INVAL | Errno::LOOP => FsError::Stale,
            e => e.into(),
        })?;
        let st = attr::live_stat(fd.as_fd())?;
        // A local process may have moved the directory out of the export.
        if attr::kind(&st)? == FileKind::Directory && !self.is_beneath(fd.as_fd())? {
            return Err(FsError::Stale);
        }
        Ok((fd, st))
    }

    /// Opens the ancestor `levels` above `dir`, as [`open_above`].
    fn open_above(&self, dir: BorrowedFd<'_>, levels: usize) -> Result<OwnedFd, Errno> {
        #[cfg(test)]
        self.steps.fetch_add(1, Ordering::Relaxed);
        open_above(dir, levels)
    }

    /// Whether a directory is the root or below it. If the root is not that of its mount, its path is compared. The
    /// kernel returns paths of at most `PATH_MAX` bytes; a directory with a longer path is below the root if its nearest
    /// ancestor with a shorter path is.
    pub(super) fn is_beneath(&self, dir: BorrowedFd<'_>) -> FsResult<bool> {
        if self.is_mount_root {
            return match self.open_above(dir, 1) {
                Err(Errno::STALE) => Ok(false),
                opened => Ok(opened.map(|_| true)?),
            };
        }
        match self.position_of(dir)? {
            Position::Beneath => return Ok(true),
            Position::Outside => return Ok(false),
            Position::TooDeep => {}
        }
        // Double the step until it leads past the root, then halve it.
        let (mut deep, mut step, mut passed): (Option<OwnedFd>, usize, bool) = (None, FIRST_STEP, false);
        loop {
            let above = self.open_above(deep.as_ref().map_or(dir, AsFd::as_fd), step)?;
            match self.position_of(above.as_fd())? {
                Position::Beneath => return Ok(true),
                Position::Outside if step == 1 => return Ok(false),
                Position::Outside => (step, passed) = (step / 2, true),
                Position::TooDeep => {
                    deep = Some(above);
                    if !passed {
                        step = (step * 2).min(MAX_STEP);
                    }
                }
            }
        }
    }

    /// Determines the position of a directory. Its path and the root's give a relative path; the directory is
    /// beneath if that path leads to it. (Paths alone prove nothing: the kernel also returns one for a
    /// directory outside of a bind mount.)
    fn position_of(&self, dir: BorrowedFd<'_>) -> FsResult<Position> {
        #[cfg(test)]
        self.steps.fetch_add(1, Ordering::Relaxed);
        let st = attr::stat(dir)?;
        if !same_mount(&st, &self.root_stat) {
            return Ok(Position::Outside);
        }
        let path = |fd| rustix::fs::readlinkat(CWD, proc_name(fd), Vec::with_capacity(PATH_BYTES));
        let mut before = None;
        for _ in 0..RENAME_ATTEMPTS {
            let root = path(self.root.as_fd())?.into_bytes();
            let here = match path(dir) {
                Err(Errno::NAMETOOLONG) => return Ok(Position::TooDeep),
                other => other?.into_bytes(),
            };
            if self.is_root(&st) || self.resolves_to(relative_path(&root, &here), &st)? {
                return Ok(Position::Beneath);
            }
            // The result is final unless the directory, the root or one between them has been renamed.
            let now = Some((root, here));
            if now == before {
                return Ok(Position::Outside);
            }
            before = now;
        }
        Err(FsError::Jukebox)
    }

    /// Whether `path`, relative to the root, leads to the object with these attributes.
    fn resolves_to(&self, path: Option<&[u8]>, st: &Statx) -> FsResult<bool> {
        let Some(path) = path else { return Ok(false) };
        match self.open_confined(self.root.as_fd(), path) {
            Ok(fd) => Ok(attr::same_object(&attr::stat(fd.as_fd())?, st)),
            Err(FsError::NoEnt | FsError::NotDir | FsError::NameTooLong | FsError::Access) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Opens the entry `name` (one component, not `.` or `..`) of `dir` with `O_PATH` and the current
    /// credentials. Symbolic links are not followed. A mount point is rejected ([`FsError::Access`]): an
    /// export is one mount.
    pub(super) fn open_entry(&self, dir: BorrowedFd<'_>, name: &[u8]) -> FsResult<(OwnedFd, Statx)> {
        let fd = self.open_confined(dir, name)?;
        let st = attr::stat(fd.as_fd())?;
        if same_mount(&st, &self.root_stat) { Ok((fd, st)) } else { Err(FsError::Access) }
    }

    /// Opens `path` relative to `dir` with `O_PATH`; an empty path opens `dir` itself. Symbolic links are not
    /// followed, and mount points not crossed.
    pub(super) fn open_path(&self, dir: BorrowedFd<'_>, path: &[Box<[u8]>]) -> FsResult<(OwnedFd, Statx)> {
        let mut at = with_free_descriptor(|| rustix::io::fcntl_dupfd_cloexec(dir, 0))?;
        let mut rest = path.iter().peekable();
        while rest.peek().is_some() {
            // A part has as many components as fit into PATH_BYTES.
            let mut part = Vec::new();
            while let Some(name) = rest.next_if(|n| part.is_empty() || part.len() + n.len() + 2 < PATH_BYTES)
            {
                if !part.is_empty() {
                    part.push(b'/');
                }
                part.extend_from_slice(name);
            }
            at = self.open_confined(at.as_fd(), &part)?;
        }
        let st = attr::stat(at.as_fd())?;
        if same_mount(&st, &self.root_stat) { Ok((at, st)) } else { Err(FsError::Access) }
    }

    /// Opens `name`, of one or more components other than `.` and `..`.
    fn open_confined(&self, dir: BorrowedFd<'_>, name: &[u8]) -> FsResult<OwnedFd> {
        if !self.openat2_missing.load(Ordering::Relaxed) {
            let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            match with_free_descriptor(|| rustix::fs::openat2(dir, name, PATH_FLAGS, Mode::empty(), how)) {
                Err(Errno::NOSYS) => self.openat2_missing.store(true, Ordering::Relaxed),
                Err(Errno::XDEV) => return Err(FsError::Access),
                // A seccomp filter that blocks openat2 returns EPERM too; the fallback distinguishes them.
                Err(Errno::PERM) => {}
                other => return Ok(other?),
            }
        }
        // Single components, not followed, can leave the tree only through a mount point, which the caller
        // checks.
        let mut at: Option<OwnedFd> = None;
        for part in name.split(|b| *b == b'/') {
            let dir = at.as_ref().map_or(dir, AsFd::as_fd);
            at = Some(with_free_descriptor(|| rustix::fs::openat(dir, part, PATH_FLAGS, Mode::empty()))?);
        }
        at.ok_or(FsError::Inval)
    }

    /// Opens the parent of the directory `dir`; the root is its own parent.
    pub(super) fn open_parent(&self, dir: &Node) -> FsResult<(Arc<Node>, Statx)> {
        let st = attr::live_stat(dir.as_fd())?;
        if self.is_root(&st) {
            return Ok((Arc::clone(&self.root), st));
        }
        let up = self.open_above(dir.as_fd(), 1)?;
        let up_st = attr::stat(up.as_fd())?;
        if !self.is_mount_root && !self.is_beneath(up.as_fd())? {
            return Err(FsError::Stale);
        }
        if self.is_root(&up_st) {
            return Ok((Arc::clone(&self.root), up_st));
        }
        let handle = self.handle_of(up.as_fd(), &up_st)?;
        Ok((self.cache.insert(Node::new(handle, up, FileKind::Directory)), up_st))
    }

    /// The handle of an open object.
    pub(super) fn handle_of(&self, fd: BorrowedFd<'_>, st: &Statx) -> FsResult<Handle> {
        let handle = match &self.naming {
            Naming::Kernel => handle::from_kernel(&self.key, &sys::name_to_handle(fd)?),
            Naming::Index(_) => handle::from_stat(&self.key, st, &self.root_stat),
        };
        handle.ok_or(FsError::ServerFault)
    }

    /// Returns the handle of the entry `name` of `dir`, which has just been opened, and records its location.
    pub(super) fn record_entry(
        &self,
        dir: &Handle,
        name: &[u8],
        fd: BorrowedFd<'_>,
        st: &Statx,
    ) -> FsResult<Handle> {
        let handle = self.handle_of(fd, st)?;
        self.note(&handle, dir, name);
        Ok(handle)
    }

    /// Records the location of an object.
    pub(super) fn note(&self, handle: &Handle, dir: &Handle, name: &[u8]) {
        if let Naming::Index(index) = &self.naming {
            index.note(*handle, *dir, name);
        }
    }

    /// Keeps an object that is about to lose a link, if it is held. The caller passes the result to
    /// [`Holds::settle`].
    pub(super) fn keep(&self, fd: BorrowedFd<'_>, st: &Statx) -> FsResult<Option<(Handle, Kept<Node>)>> {
        if self.holds.is_empty() {
            return Ok(None);
        }
        let handle = self.handle_of(fd, st)?;
        if !self.holds.is_held(&handle) {
            return Ok(None);
        }
        let node = match self.cached(&handle) {
            Some(node) => node,
            None => {
                let fd = with_free_descriptor(|| rustix::io::fcntl_dupfd_cloexec(fd, 0))?;
                Arc::new(Node::new(handle, fd, attr::kind(st)?))
            }
        };
        let kept = self.holds.keep(&handle, *st, node, descriptors::kept_files());
        Ok(kept.map(|kept| (handle, kept)))
    }

    /// Records that a name was removed, and with `dead` that the object was too.
    pub(super) fn forget(&self, handle: &Handle, dir: &Handle, name: &[u8], dead: bool) {
        if let Naming::Index(index) = &self.naming {
            index.forget(handle, dir, name, dead);
        }
        if dead && !self.holds.is_kept(handle) {
            self.cache.remove(handle);
        }
    }
}
