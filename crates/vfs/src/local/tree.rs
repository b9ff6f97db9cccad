//! From names and handles to open objects, never leaving the export.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, Statx, StatxFlags},
    io::Errno,
};

use super::{
    attr,
    descriptors::opening,
    handle::{self, Body},
    index::Index,
    mac::Key,
    node::{Node, NodeCache},
    sys,
};
use crate::{FileKind, FsError, FsResult, Handle};

/// Deeper directories than this are taken for a loop.
const MAX_DEPTH: usize = 4096;

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
    Index(Index),
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
}

fn same_mount(a: &Statx, b: &Statx) -> bool {
    let known = |s: &Statx| StatxFlags::from_bits_retain(s.stx_mask).contains(StatxFlags::MNT_ID);
    let same_device = (a.stx_dev_major, a.stx_dev_minor) == (b.stx_dev_major, b.stx_dev_minor);
    if known(a) && known(b) { a.stx_mnt_id == b.stx_mnt_id } else { same_device }
}

/// The directory above `dir`.
fn open_above(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    opening(|| rustix::fs::openat(dir, c"..", PATH_FLAGS | OFlags::DIRECTORY, Mode::empty()))
}

impl Tree {
    /// The tree under `root` (opened for reading). With `by_kernel`, an error if the file system or our rights do
    /// not allow kernel handles.
    pub(super) fn new(
        root: OwnedFd,
        key: Key,
        by_kernel: bool,
        index_entries: usize,
        cache: Arc<NodeCache>,
    ) -> FsResult<Self> {
        let path = rustix::fs::openat(&root, c".", PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
        let root_stat = attr::stat(path.as_fd())?;
        let (naming, handle) = if by_kernel {
            let k = sys::name_to_handle(path.as_fd())?;
            let back = sys::open_by_handle(root.as_fd(), &k, libc::O_PATH)?;
            if attr::stat(back.as_fd())?.stx_ino != root_stat.stx_ino {
                return Err(FsError::NotSupp);
            }
            (Naming::Kernel, handle::from_kernel(&key, &k))
        } else {
            let h = handle::from_stat(&key, &root_stat);
            (Naming::Index(Index::new(index_entries)), h)
        };
        let handle = handle.ok_or(FsError::NotSupp)?;
        let root_node = Arc::new(Node::new(handle, path, FileKind::Directory));
        Ok(Self {
            mount: root,
            root: root_node,
            root_stat,
            naming,
            key,
            cache,
            openat2_missing: AtomicBool::new(false),
        })
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
        st.stx_ino == self.root_stat.stx_ino && same_mount(st, &self.root_stat)
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
        if attr::kind(&st)? == FileKind::Directory && !self.is_beneath(fd.as_fd(), &st)? {
            return Err(FsError::Stale);
        }
        Ok((fd, st))
    }

    /// Whether a directory is the root or below it, by walking up.
    pub(super) fn is_beneath(&self, dir: BorrowedFd<'_>, st: &Statx) -> FsResult<bool> {
        let (mut st, mut above): (Statx, Option<OwnedFd>) = (*st, None);
        for _ in 0..MAX_DEPTH {
            if self.is_root(&st) {
                return Ok(true);
            }
            let here = above.as_ref().map_or(dir, AsFd::as_fd);
            let up = open_above(here)?;
            let up_st = attr::stat(up.as_fd())?;
            if up_st.stx_ino == st.stx_ino && same_mount(&up_st, &st) {
                return Ok(false); // The root of everything.
            }
            (st, above) = (up_st, Some(up));
        }
        Ok(false)
    }

    /// Opens the entry `name` (one component, not `.` or `..`) of `dir` with `O_PATH`, in the present name. Symbolic
    /// links are opened themselves; a mount point is refused ([`FsError::Access`]): the export is one mount.
    pub(super) fn open_entry(&self, dir: BorrowedFd<'_>, name: &[u8]) -> FsResult<(OwnedFd, Statx)> {
        let fd = self.open_confined(dir, name)?;
        let st = attr::stat(fd.as_fd())?;
        if same_mount(&st, &self.root_stat) { Ok((fd, st)) } else { Err(FsError::Access) }
    }

    fn open_confined(&self, dir: BorrowedFd<'_>, name: &[u8]) -> FsResult<OwnedFd> {
        if !self.openat2_missing.load(Ordering::Relaxed) {
            let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
            match opening(|| rustix::fs::openat2(dir, name, PATH_FLAGS, Mode::empty(), how)) {
                Err(Errno::NOSYS) => self.openat2_missing.store(true, Ordering::Relaxed),
                Err(Errno::XDEV) => return Err(FsError::Access),
                // A filter that refuses the call looks like a refused permission; the older call tells them apart.
                Err(Errno::PERM) => {}
                other => return Ok(other?),
            }
        }
        // One component, never followed: it cannot lead elsewhere but over a mount, which the caller checks.
        Ok(opening(|| rustix::fs::openat(dir, name, PATH_FLAGS, Mode::empty()))?)
    }

    /// The parent of the directory `dir`; the root's is the root.
    pub(super) fn open_parent(&self, dir: &Node) -> FsResult<(Arc<Node>, Statx)> {
        let st = attr::live_stat(dir.as_fd())?;
        if self.is_root(&st) {
            return Ok((Arc::clone(&self.root), st));
        }
        let up = open_above(dir.as_fd())?;
        let up_st = attr::stat(up.as_fd())?;
        if !self.is_beneath(up.as_fd(), &up_st)? {
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
            Naming::Index(_) => handle::from_stat(&self.key, st),
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
