//! Configuration and state of an export.

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use millrace_vfs::{Arena, FsError, FsInfo, FsResult, FsStat, Handle};
use parking_lot::{Mutex, MutexGuard};
use rustix::{
    fs::{CWD, Mode, OFlags},
    mount::OpenTreeFlags,
};

use super::{
    attr,
    cred::Credentials,
    engine::{Engine, Verifier},
    index::Index,
    key,
    mac::Key,
    node::{NodeCache, proc_name},
    pool::Pool,
    sys,
    tree::{Naming, Tree},
    uring::RingContext,
};

/// Engine of file data transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoMode {
    /// io_uring, or threads if it is not available.
    #[default]
    Auto,
    /// io_uring; fails if it is not available.
    IoUring,
    /// Blocking threads.
    Blocking,
}

/// Kind of file handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HandleMode {
    /// Kernel file handles, or the index if they are not available.
    #[default]
    Auto,
    /// Kernel file handles (requires `CAP_DAC_READ_SEARCH` and support by the file system); fails if not
    /// available.
    Kernel,
    /// Inode number and birth time, with an index of locations.
    Index,
}

/// How callers' credentials are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdentityMode {
    /// If the process runs as root, which requires CAP_SETUID and CAP_SETGID, calls use the caller's
    /// credentials. Otherwise like [`Self::ServerUser`].
    #[default]
    Auto,
    /// All calls use the server's credentials. Other callers are checked first by the POSIX rules, with mode
    /// bits and without ACLs; objects that they create belong to the server's user.
    ServerUser,
}

/// Source of the 16-byte key that authenticates handles. Handles are valid as long as the key is unchanged.
#[derive(Clone, Default)]
pub enum KeySource {
    /// An extended attribute of the root directory. If the file system or the process's privileges do not
    /// allow a secret attribute, handles use the index; if no attribute is possible, a well-known key is used
    /// (the index still confines callers to the export).
    #[default]
    Attribute,
    /// A file, created at first use. Keep it outside the export.
    File(PathBuf),
    /// The given bytes.
    Bytes([u8; 16]),
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attribute => f.write_str("Attribute"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Bytes(_) => f.write_str("Bytes(..)"),
        }
    }
}

/// Parameters of [`super::LocalFs::open`].
#[derive(Clone)]
pub struct LocalConfig {
    /// The directory to export.
    pub root: PathBuf,
    /// Arena for READ data.
    pub arena: Arena,
    /// Reject all changes ([`FsError::RoFs`]).
    pub read_only: bool,
    /// Engine of file data transfers.
    pub io: IoMode,
    /// Number of io_uring instances, each with a thread (1 to 64).
    pub rings: usize,
    /// Number of threads for blocking calls (1 to 1024); the same number again for data if io_uring is not
    /// available.
    pub threads: usize,
    /// Kind of file handles.
    pub handles: HandleMode,
    /// Source of the key that authenticates handles.
    pub key: KeySource,
    /// Maximum number of locations in the index of [`HandleMode::Index`], about 150 bytes each.
    pub index_entries: usize,
    /// How callers' credentials are applied.
    pub identity: IdentityMode,
    /// Maximum number of objects kept open, each with up to four descriptors. All exports of a process
    /// together use at most half of its descriptor limit (`RLIMIT_NOFILE` when an export is opened), in equal
    /// shares.
    pub open_objects: usize,
    /// Make changes of names and attributes durable before the call completes, as RFC 1813 section 4.8
    /// requires. Without it, a crash of the host may undo completed changes.
    pub sync_metadata: bool,
    /// File system ID; by default the one that the kernel reports.
    pub fsid: Option<u64>,
}

impl LocalConfig {
    /// Defaults for exporting `root`: automatic selection of features, durable metadata, 8 threads, one
    /// io_uring, 1024 open objects.
    pub fn new(root: impl Into<PathBuf>, arena: Arena) -> Self {
        Self {
            root: root.into(),
            arena,
            read_only: false,
            io: IoMode::Auto,
            rings: 1,
            threads: 8,
            handles: HandleMode::Auto,
            key: KeySource::Attribute,
            index_entries: 500_000,
            identity: IdentityMode::Auto,
            open_objects: 1024,
            sync_metadata: true,
            fsid: None,
        }
    }
}

/// Error of opening an export.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The directory cannot be opened.
    #[error("cannot open the export directory {path}: {source}")]
    Root {
        /// The directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// `/proc` is required to reopen files.
    #[error("cannot open /proc/self/fd ({source}); mount /proc")]
    NoProc {
        /// The error.
        source: io::Error,
    },
    /// Kernel file handles were requested and are not available.
    #[error(
        "kernel file handles are not available ({source}); they require CAP_DAC_READ_SEARCH and a file system that supports them, or use the index"
    )]
    KernelHandles {
        /// The error.
        source: FsError,
    },
    /// The key that authenticates handles cannot be read, created or kept secret.
    #[error("cannot store the key that authenticates file handles ({source}); configure a key file")]
    Key {
        /// The error.
        source: io::Error,
    },
    /// io_uring was requested and is not available.
    #[error("io_uring is not available ({source}); use blocking I/O")]
    IoUring {
        /// The error.
        source: io::Error,
    },
    /// Threads cannot be started.
    #[error("cannot start threads: {source}")]
    Threads {
        /// The error.
        source: io::Error,
    },
    /// The process runs as root without the capability to use callers' credentials.
    #[error(
        "the server runs as root but cannot use its callers' credentials; grant CAP_SETUID and CAP_SETGID, run it as \
         another user, or let it check permissions itself (new files then belong to the server's user)"
    )]
    Identities,
    /// The file system's properties cannot be read.
    #[error("cannot read the properties of the export: {0}")]
    Properties(FsError),
}

/// Locks that serialize operations of several system calls on one directory or file, selected by hash of the
/// handle.
const LOCKS: usize = 64;

/// State of an open export.
pub(super) struct Export {
    pub(super) tree: Arc<Tree>,
    pub(super) creds: Credentials,
    pub(super) engine: Arc<Engine>,
    pub(super) pool: Pool,
    pub(super) verifier: Arc<Verifier>,
    pub(super) info: FsInfo,
    pub(super) fsid: u64,
    pub(super) read_only: bool,
    pub(super) sync_metadata: bool,
    locks: [Mutex<()>; LOCKS],
    pub(super) attr_inline: bool,
    own_umask: bool,
    /// The root on the mount of the path, which stays in use: umount(8) fails with EBUSY.
    _in_use: OwnedFd,
}

fn open_root(config: &LocalConfig) -> Result<OwnedFd, LocalError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, &config.root, flags, Mode::empty())
        .map_err(|e| LocalError::Root { path: config.root.clone(), source: e.into() })?;
    rustix::fs::openat(CWD, proc_name(root.as_fd()), flags, Mode::empty())
        .map_err(|e| LocalError::NoProc { source: e.into() })?;
    Ok(root)
}

/// Opens the directory `root` on a private mount without the mounts below it, so that mount points are the directories
/// that they cover. Needs CAP_SYS_ADMIN; `None` without it.
fn open_covered(root: &OwnedFd) -> Option<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let private = rustix::mount::open_tree(root, c"", flags).ok()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&private, c".", flags, Mode::empty()).ok()
}

/// Selects key and kind of handles in order of preference.
fn open_tree(config: &LocalConfig, root: OwnedFd, cache: Arc<NodeCache>) -> Result<Arc<Tree>, LocalError> {
    let configured_key = match &config.key {
        KeySource::Attribute => None,
        KeySource::File(path) => Some(key::from_file(path)?),
        KeySource::Bytes(bytes) => Some(*bytes),
    };
    if config.handles != HandleMode::Index {
        let secret = match configured_key {
            Some(key) => Some(key),
            None => key::from_attribute(root.as_fd(), true)?,
        };
        let root_copy =
            root.try_clone().map_err(|e| LocalError::Root { path: config.root.clone(), source: e })?;
        let tree = match secret {
            Some(key) => Tree::new(root_copy, key, Naming::Kernel, Arc::clone(&cache))
                .map_err(|source| LocalError::KernelHandles { source }),
            None => Err(LocalError::Key { source: io::ErrorKind::Unsupported.into() }),
        };
        match tree {
            Ok(tree) => return Ok(tree),
            Err(e) if config.handles == HandleMode::Kernel => return Err(e),
            Err(error) => tracing::warn!(%error, "using an index instead of kernel file handles"),
        }
    }
    let key: Key = match configured_key {
        Some(key) => key,
        None => key::from_attribute(root.as_fd(), false)?.unwrap_or([0x6d; 16]),
    };
    // Half of the threads remain available while others wait for a walk.
    let index = Box::new(Index::new(config.index_entries, config.threads / 2));
    Tree::new(root, key, Naming::Index(index), cache).map_err(LocalError::Properties)
}

/// Local file systems whose files can share storage, as far as their options permit.
fn may_clone(magic: u64) -> bool {
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const BCACHEFS: u64 = 0xca45_1a4e;
    [XFS, BTRFS, BCACHEFS].contains(&magic)
}

/// Local file systems that reserve blocks for a user, by default root.
fn reserves_blocks(magic: u64) -> bool {
    /// Also that of ext2 and ext3.
    const EXT4: u64 = 0xef53;
    const F2FS: u64 = 0xf2f5_2010;
    const UBIFS: u64 = 0x2405_1905;
    [EXT4, F2FS, UBIFS].contains(&magic)
}

/// Local file systems that keep the inodes of open files in memory, so that statx(2) does not block.
fn stat_never_blocks(magic: u64) -> bool {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const TMPFS: u64 = 0x0102_1994;
    [EXT4, XFS, BTRFS, TMPFS].contains(&magic)
}

impl Export {
    /// Opens an export and starts its threads.
    pub(super) fn open(config: LocalConfig) -> Result<Self, LocalError> {
        let in_use = open_root(&config)?;
        let root = match open_covered(&in_use) {
            Some(root) => root,
            None => {
                let failed = |e| LocalError::Root { path: config.root.clone(), source: e };
                in_use.try_clone().map_err(failed)?
            }
        };
        let verifier = Verifier::new(u64::from_ne_bytes(key::random()?));
        let cache = NodeCache::new(config.open_objects, Arc::clone(&verifier));
        let tree = open_tree(&config, root, Arc::clone(&cache))?;
        let creds = match config.identity {
            IdentityMode::Auto => Credentials::detect().ok_or(LocalError::Identities)?,
            IdentityMode::ServerUser => Credentials::server_user(),
        };
        let threads = config.threads.clamp(1, 1024);
        let statfs = rustix::fs::fstatfs(tree.mount()).map_err(|e| LocalError::Properties(e.into()))?;
        let magic = statfs.f_type as u64;
        let context = RingContext {
            arena: config.arena.clone(),
            verifier: Arc::clone(&verifier),
            threads,
            reserved_blocks: reserves_blocks(magic),
        };
        let engine = Arc::new(Engine::start(config.io, config.rings.clamp(1, 64), context)?);
        let own_umask = std::thread::spawn(sys::own_zero_umask).join().unwrap_or(false);
        let housekeeper = Arc::clone(&engine);
        let tick = move || housekeeper.sync_in_background(cache.close_idle(Instant::now()));
        let pool = Pool::start("local-fs", threads, sys::prepare_name_thread, tick)
            .map_err(|source| LocalError::Threads { source })?;
        let statvfs = rustix::fs::fstatvfs(tree.mount()).map_err(|e| LocalError::Properties(e.into()))?;
        let info = FsInfo {
            max_file_size: i64::MAX as u64,
            name_max: u32::try_from(statvfs.f_namemax).unwrap_or(255),
            link_max: sys::path_limit(tree.mount(), libc::_PC_LINK_MAX)
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(32_000),
            time_delta_nanos: 1,
            writable: !config.read_only,
            hard_links: true,
            symlinks: true,
            sparse_files: true,
            xattrs: attr::has_xattrs(tree.mount()),
            clone_block: if may_clone(magic) { statvfs.f_bsize as u32 } else { 0 },
            change_counter: false,
            verifier_in_times: true,
        };
        Ok(Self {
            tree,
            creds,
            engine,
            pool,
            verifier,
            info,
            fsid: config.fsid.unwrap_or(statvfs.f_fsid),
            read_only: config.read_only,
            sync_metadata: config.sync_metadata,
            locks: [const { Mutex::new(()) }; LOCKS],
            attr_inline: stat_never_blocks(magic),
            own_umask,
            _in_use: in_use,
        })
    }

    /// The lock that serializes operations on `handle`.
    pub(super) fn lock(&self, handle: &Handle) -> MutexGuard<'_, ()> {
        let hash =
            handle.as_bytes().iter().rev().fold(0usize, |h, b| h.wrapping_mul(31).wrapping_add((*b).into()));
        self.locks[hash % LOCKS].lock()
    }

    /// Rejects changes of a read-only export.
    pub(super) fn writable(&self) -> FsResult<()> {
        if self.read_only { Err(FsError::RoFs) } else { Ok(()) }
    }

    /// Whether new objects get exactly the requested mode, since the threads have their own, zero umask.
    pub(super) fn exact_modes(&self) -> bool {
        self.own_umask
    }

    /// Returns attributes without a pool thread, if statx(2) does not block and the object is open.
    pub(super) fn getattr_now(&self, file: &Handle) -> Option<FsResult<millrace_vfs::Attr>> {
        if !self.attr_inline {
            return None;
        }
        let node = self.tree.cached(file)?;
        Some(attr::live_stat(node.as_fd()).and_then(|st| attr::attr(&st, self.fsid)))
    }

    pub(super) fn space(&self) -> FsResult<FsStat> {
        let s = rustix::fs::fstatvfs(self.tree.mount())?;
        let bytes = |blocks: u64| blocks.saturating_mul(s.f_frsize);
        Ok(FsStat {
            total_bytes: bytes(s.f_blocks),
            free_bytes: bytes(s.f_bfree),
            available_bytes: bytes(s.f_bavail),
            total_files: s.f_files,
            free_files: s.f_ffree,
            available_files: s.f_favail,
        })
    }
}
