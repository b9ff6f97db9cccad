//! From names and handles to open objects, never leaving the export.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags},
    io::Errno,
};

use super::{
    attr,
    descriptors::opening,
    handle::{self, Body},
    index::Index,
    mac::Key,
    node::{Node, NodeCache, proc_name},
    sys,
};
use crate::{FileKind, FsError, FsResult, Handle};

/// Pauses before a handle is tried again. The kernel says "no memory" also while the inode number of an object that
/// is gone is being given to a new one (`iget_locked` finds an inode in creation); a little later it says "stale".
const DECODE_PAUSES: [Duration; 5] = [
    Duration::from_micros(100),
    Duration::from_millis(1),
    Duration::from_millis(4),
    Duration::from_millis(10),
    Duration::from_millis(30),
];

const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How handles name objects.
pub(super) enum Naming {
    /// By kernel handles.
    Kernel,
    /// By inode number and time of birth, found through an index of places.
    Index(Box<Index>),
}

/// The export's tree.
pub(super) struct Tree {
    /// The root, opened for reading: what `open_by_handle_at` and `statfs` take.
    mount: OwnedFd,
    root: Arc<Node>,
    root_stat: Statx,
    naming: Naming,
    key: Key,
    pub(super) cache: Arc<NodeCache>,
    openat2_missing: AtomicBool,
    this: Weak<Self>,
}

fn same_mount(a: &Statx, b: &Statx) -> bool {
    let known = |s: &Statx| attr::has(s, StatxFlags::MNT_ID);
    if known(a) && known(b) { a.stx_mnt_id == b.stx_mnt_id } else { attr::same_device(a, b) }
}

/// The most directories to climb in one call (three bytes each, of at most `PATH_MAX`).
const MAX_STEP: usize = 1024;
const FIRST_STEP: usize = 256;
/// The longest path that the kernel gives, with its end (`PATH_MAX`).
const PATH_BYTES: usize = 4096;

/// Where a directory is, seen from the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The root, or below it.
    Beneath,
    Outside,
    /// Its path is longer than the kernel tells.
    TooDeep,
}

/// How often a directory is looked at that others rename meanwhile.
const RENAMES: usize = 16;

/// What of `path` is below `root`, if it begins with it.
fn below<'p>(root: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(root.strip_suffix(b"/").unwrap_or(root))?;
    rest.strip_prefix(b"/").filter(|rest| !rest.is_empty())
}

/// The directory `levels` above `dir`.
pub(super) fn open_above(dir: BorrowedFd<'_>, levels: usize) -> Result<OwnedFd, Errno> {
    let path = "../".repeat(levels);
    opening(|| rustix::fs::openat(dir, path.as_str(), PATH_FLAGS | OFlags::DIRECTORY, Mode::empty()))
}

impl Tree {
    /// The tree under `root` (opened for reading). An error if the file system or our rights do not allow kernel
    /// handles, where `naming` is by them.
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
        Ok(Arc::new_cyclic(|this| Self {
            mount: root,
            root: root_node,
            root_stat,
            naming,
            key,
            cache,
            openat2_missing: AtomicBool::new(false),
            this: Weak::clone(this),
        }))
    }

    /// The tree, as long as the export is open.
    pub(super) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.this)
    }

    /// The index of places, where there are no kernel handles.
    pub(super) fn index(&self) -> Option<&Index> {
        match &self.naming {
            Naming::Kernel => None,
            Naming::Index(index) => Some(index),
        }
    }

    /// The root.
    pub(super) fn root(&self) -> &Arc<Node> {
        &self.root
    }

    /// The root, opened for reading.
    pub(super) fn mount(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Whether handles are the kernel's.
    pub(super) fn by_kernel(&self) -> bool {
        matches!(self.naming, Naming::Kernel)
    }

    /// Whether this is the root's inode.
    pub(super) fn is_root(&self, st: &Statx) -> bool {
        attr::same_object(st, &self.root_stat) && same_mount(st, &self.root_stat)
    }

    /// The root's inode number.
    pub(super) fn root_ino(&self) -> u64 {
        self.root_stat.stx_ino
    }

    /// The object behind `handle` if it is open already.
    pub(super) fn cached(&self, handle: &Handle) -> Option<Arc<Node>> {
        if *handle == self.root.handle() { Some(Arc::clone(&self.root)) } else { self.cache.get(handle) }
    }

    /// The object behind `handle`, opened in the server's name. Call on a pool thread.
    pub(super) fn open(&self, handle: &Handle) -> FsResult<Arc<Node>> {
        if let Some(node) = self.cached(handle) {
            return Ok(node);
        }
        let (fd, st) = match (handle::open(&self.key, handle)?, &self.naming) {
            (Body::Kernel(k), Naming::Kernel) => self.open_kernel(&k)?,
            (Body::Index, Naming::Index(index)) => index.open(self, handle)?,
            // Given out before the way of naming was changed.
            _ => return Err(FsError::Stale),
        };
        Ok(self.cache.insert(Node::new(*handle, fd, attr::kind(&st)?)))
    }

    fn open_kernel(&self, k: &sys::KernelHandle) -> FsResult<(OwnedFd, Statx)> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let open = || opening(|| sys::open_by_handle(self.mount.as_fd(), k, flags));
        let mut last = open();
        for pause in DECODE_PAUSES {
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
        // Someone on this machine may have moved a directory out of the export since.
        if attr::kind(&st)? == FileKind::Directory && !self.is_beneath(fd.as_fd())? {
            return Err(FsError::Stale);
        }
        Ok((fd, st))
    }

    /// Whether a directory is the root or below it, by its path. The kernel gives paths of at most `PATH_MAX` bytes, so
    /// a directory with a longer path is below the root if the first ancestor with a path is.
    pub(super) fn is_beneath(&self, dir: BorrowedFd<'_>) -> FsResult<bool> {
        match self.place_of(dir)? {
            Place::Beneath => return Ok(true),
            Place::Outside => return Ok(false),
            Place::TooDeep => {}
        }
        // Larger and larger steps, until one leads past the root; then smaller and smaller ones.
        let (mut deep, mut step, mut passed): (Option<OwnedFd>, usize, bool) = (None, FIRST_STEP, false);
        loop {
            let above = open_above(deep.as_ref().map_or(dir, AsFd::as_fd), step)?;
            match self.place_of(above.as_fd())? {
                Place::Beneath => return Ok(true),
                Place::Outside if step == 1 => return Ok(false),
                Place::Outside => (step, passed) = (step / 2, true),
                Place::TooDeep => {
                    deep = Some(above);
                    if !passed {
                        step = (step * 2).min(MAX_STEP);
                    }
                }
            }
        }
    }

    /// Where a directory is. Its path and the root's say how it could be reached from the root; it is beneath if it is
    /// reached so. (By themselves paths prove nothing: the kernel gives one also to what lies beyond a bind mount.)
    fn place_of(&self, dir: BorrowedFd<'_>) -> FsResult<Place> {
        let st = attr::stat(dir)?;
        if !same_mount(&st, &self.root_stat) {
            return Ok(Place::Outside);
        }
        let path = |fd| rustix::fs::readlinkat(CWD, proc_name(fd), Vec::with_capacity(PATH_BYTES));
        let mut before = None;
        for _ in 0..RENAMES {
            let root = path(self.root.as_fd())?.into_bytes();
            let here = match path(dir) {
                Err(Errno::NAMETOOLONG) => return Ok(Place::TooDeep),
                other => other?.into_bytes(),
            };
            if self.is_root(&st) || self.leads_to(below(&root, &here), &st)? {
                return Ok(Place::Beneath);
            }
            // Unless somebody renames the directory, the root or one between them, the answer stays.
            let now = Some((root, here));
            if now == before {
                return Ok(Place::Outside);
            }
            before = now;
        }
        Err(FsError::Jukebox)
    }

    /// Whether the object with these attributes is at `path` from the root.
    fn leads_to(&self, path: Option<&[u8]>, st: &Statx) -> FsResult<bool> {
        let Some(path) = path else { return Ok(false) };
        match self.open_confined(self.root.as_fd(), path) {
            Ok(fd) => Ok(attr::same_object(&attr::stat(fd.as_fd())?, st)),
            Err(FsError::NoEnt | FsError::NotDir | FsError::NameTooLong | FsError::Access) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Opens the entry `name` (one component, not `.` or `..`) of `dir` with `O_PATH`, in the present name. Symbolic
    /// links are opened themselves; a mount point is refused ([`FsError::Access`]): the export is one mount.
    pub(super) fn open_entry(&self, dir: BorrowedFd<'_>, name: &[u8]) -> FsResult<(OwnedFd, Statx)> {
        let fd = self.open_confined(dir, name)?;
        let st = attr::stat(fd.as_fd())?;
        if same_mount(&st, &self.root_stat) { Ok((fd, st)) } else { Err(FsError::Access) }
    }

    /// Opens the object at `path`, from `dir` downwards, with `O_PATH`; the directory itself without names. No symbolic
    /// link is followed and no mount point is crossed.
    pub(super) fn open_path(&self, dir: BorrowedFd<'_>, path: &[Box<[u8]>]) -> FsResult<(OwnedFd, Statx)> {
        let mut at = opening(|| rustix::io::fcntl_dupfd_cloexec(dir, 0))?;
        let mut rest = path.iter().peekable();
        while rest.peek().is_some() {
            // As many names as a path may have.
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

    /// Opens `name`, of one component or more, none of which is `.` or `..`.
    fn open_confined(&self, dir: BorrowedFd<'_>, name: &[u8]) -> FsResult<OwnedFd> {
        if !self.openat2_missing.load(Ordering::Relaxed) {
            let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            match opening(|| rustix::fs::openat2(dir, name, PATH_FLAGS, Mode::empty(), how)) {
                Err(Errno::NOSYS) => self.openat2_missing.store(true, Ordering::Relaxed),
                Err(Errno::XDEV) => return Err(FsError::Access),
                // A filter that refuses the call looks like a refused permission; the older call tells them apart.
                Err(Errno::PERM) => {}
                other => return Ok(other?),
            }
        }
        // One component, never followed: it cannot lead elsewhere but over a mount, which the caller checks.
        let mut at: Option<OwnedFd> = None;
        for part in name.split(|b| *b == b'/') {
            let dir = at.as_ref().map_or(dir, AsFd::as_fd);
            at = Some(opening(|| rustix::fs::openat(dir, part, PATH_FLAGS, Mode::empty()))?);
        }
        at.ok_or(FsError::Inval)
    }

    /// The parent of the directory `dir`; the root's is the root.
    pub(super) fn open_parent(&self, dir: &Node) -> FsResult<(Arc<Node>, Statx)> {
        let st = attr::live_stat(dir.as_fd())?;
        if self.is_root(&st) {
            return Ok((Arc::clone(&self.root), st));
        }
        let up = open_above(dir.as_fd(), 1)?;
        let up_st = attr::stat(up.as_fd())?;
        if !self.is_beneath(up.as_fd())? {
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

    /// Gives the entry `name` of `dir`, just opened, its handle, and notes its place.
    pub(super) fn name_entry(
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

    /// Notes where an object is.
    pub(super) fn note(&self, handle: &Handle, dir: &Handle, name: &[u8]) {
        if let Naming::Index(index) = &self.naming {
            index.note(*handle, *dir, name);
        }
    }

    /// Notes that a name is gone; with `dead`, the object too.
    pub(super) fn forget(&self, handle: &Handle, dir: &Handle, name: &[u8], dead: bool) {
        if let Naming::Index(index) = &self.naming {
            index.forget(handle, dir, name, dead);
        }
        if dead {
            self.cache.remove(handle);
        }
    }
}
