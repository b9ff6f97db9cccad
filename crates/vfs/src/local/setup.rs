//! Configuration, and what an open export consists of.

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{CWD, Mode, OFlags};

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
};
use crate::{Arena, FsError, FsInfo, FsResult, FsStat, Handle};

/// How file data is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoMode {
    /// io_uring, or threads where the machine refuses it.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// Threads.
    Blocking,
}

/// What handles are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HandleMode {
    /// Kernel file handles, or the index where they are not to be had.
    #[default]
    Auto,
    /// Kernel file handles (needs `CAP_DAC_READ_SEARCH` and a file system that has them), or an error.
    Kernel,
    /// Inode number and time of birth, with an index of places.
    Index,
}

/// How callers' identities are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdentityMode {
    /// In a process of the superuser, which needs CAP_SETUID and CAP_SETGID, each call is made with the caller's ids. In
    /// a process of another user as [`Self::ServerUser`].
    #[default]
    Auto,
    /// Everything is done as the server's user. For other callers the rules of POSIX are checked before, by mode bits
    /// and without ACLs; what they make belongs to the server's user.
    ServerUser,
}

/// Where the 16-byte key that marks handles comes from. Handles are good as long as it stays the same.
#[derive(Clone, Default)]
pub enum KeySource {
    /// An extended attribute of the root directory. If the file system or our rights do not allow a secret one, the
    /// index mode is used; if none at all is possible, a key that anyone could compute (the index keeps callers
    /// inside even so).
    #[default]
    Attribute,
    /// A file, made at first use. Keep it outside the export.
    File(PathBuf),
    /// These bytes.
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

/// What [`super::LocalFs::open`] needs.
#[derive(Clone)]
pub struct LocalConfig {
    /// The directory to export.
    pub root: PathBuf,
    /// Where READ data goes.
    pub arena: Arena,
    /// Refuse every change ([`FsError::RoFs`]).
    pub read_only: bool,
    /// How file data is moved.
    pub io: IoMode,
    /// Rings of io_uring, each with a thread (1 to 64).
    pub rings: usize,
    /// Threads for calls that may block (1 to 1024); as many again for data where there is no io_uring.
    pub threads: usize,
    /// What handles are made of.
    pub handles: HandleMode,
    /// Where the key that marks handles is kept.
    pub key: KeySource,
    /// Places that the index of [`HandleMode::Index`] knows at most, about 150 bytes each.
    pub index_entries: usize,
    /// How callers' identities are applied.
    pub identity: IdentityMode,
    /// Objects kept open at most, each with up to three descriptors. All exports of a process together take at most
    /// half of its limit of open files (`RLIMIT_NOFILE`, as it is when one is opened), in equal parts.
    pub open_objects: usize,
    /// Make changes of names and attributes durable before they are answered, as RFC 1813 section 4.8 wants. Without
    /// it a crash of this machine may undo changes that clients were told are done.
    pub sync_metadata: bool,
    /// The file system id to give out; else the one that the kernel reports.
    pub fsid: Option<u64>,
}

impl LocalConfig {
    /// The defaults for exporting `root`: automatic choices, durable, 8 threads, one ring, 1024 open objects.
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

/// Why an export cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The directory cannot be opened.
    #[error("cannot open the export directory {path}: {source}")]
    Root {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// `/proc` is needed to open files again.
    #[error("/proc/self/fd is not usable ({source}); mount /proc")]
    NoProc {
        /// What the kernel said.
        source: io::Error,
    },
    /// Kernel file handles were asked for and are not to be had.
    #[error(
        "kernel file handles are not available here ({source}); they need CAP_DAC_READ_SEARCH and a file system that supports them, or choose the index"
    )]
    KernelHandles {
        /// Why.
        source: FsError,
    },
    /// The key that marks handles cannot be read, made or kept secret.
    #[error("the key of the handles cannot be kept ({source}); name a key file")]
    Key {
        /// Why.
        source: io::Error,
    },
    /// io_uring was asked for and is refused.
    #[error("io_uring is refused here ({source}); choose blocking I/O")]
    IoUring {
        /// What the kernel said.
        source: io::Error,
    },
    /// Threads cannot be started.
    #[error("cannot start threads: {source}")]
    Threads {
        /// What the kernel said.
        source: io::Error,
    },
    /// This process is the superuser's and may not take callers' ids.
    #[error(
        "the server runs as root without the right to act as its callers; give it CAP_SETUID and CAP_SETGID, run it as \
         another user, or let it check permissions itself and own what is made"
    )]
    Identities,
    /// The root directory's properties cannot be read.
    #[error("cannot read the properties of the export: {0}")]
    Properties(FsError),
}

/// Locks that order calls on one directory or file which take more than one system call.
const LOCKS: usize = 64;

/// An open export.
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
    attr_inline: bool,
    own_umask: bool,
}

fn open_root(config: &LocalConfig) -> Result<OwnedFd, LocalError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, &config.root, flags, Mode::empty())
        .map_err(|e| LocalError::Root { path: config.root.clone(), source: e.into() })?;
    rustix::fs::openat(CWD, proc_name(root.as_fd()), flags, Mode::empty())
        .map_err(|e| LocalError::NoProc { source: e.into() })?;
    Ok(root)
}

/// Tries the key and the naming in the order of preference.
fn open_tree(config: &LocalConfig, root: OwnedFd, cache: Arc<NodeCache>) -> Result<Arc<Tree>, LocalError> {
    let given = match &config.key {
        KeySource::Attribute => None,
        KeySource::File(path) => Some(key::from_file(path)?),
        KeySource::Bytes(bytes) => Some(*bytes),
    };
    if config.handles != HandleMode::Index {
        let secret = match given {
            Some(key) => Some(key),
            None => key::from_attribute(root.as_fd(), true)?,
        };
        let again =
            root.try_clone().map_err(|e| LocalError::Root { path: config.root.clone(), source: e })?;
        let tree = match secret {
            Some(key) => Tree::new(again, key, Naming::Kernel, Arc::clone(&cache))
                .map_err(|source| LocalError::KernelHandles { source }),
            None => Err(LocalError::Key { source: io::ErrorKind::Unsupported.into() }),
        };
        match tree {
            Ok(tree) => return Ok(tree),
            Err(e) if config.handles == HandleMode::Kernel => return Err(e),
            Err(error) => tracing::warn!(%error, "handles are kept by an index instead"),
        }
    }
    let key: Key = match given {
        Some(key) => key,
        None => key::from_attribute(root.as_fd(), false)?.unwrap_or([0x6d; 16]),
    };
    // Half of the threads serve others while a walk looks for objects.
    let index = Box::new(Index::new(config.index_entries, config.threads / 2));
    Tree::new(root, key, Naming::Index(index), cache).map_err(LocalError::Properties)
}

/// Local file systems whose inodes stay in memory while they are open, so that asking for attributes never waits.
fn answers_at_once(magic: u64) -> bool {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const TMPFS: u64 = 0x0102_1994;
    [EXT4, XFS, BTRFS, TMPFS].contains(&magic)
}

impl Export {
    /// Opens an export and starts its threads.
    pub(super) fn open(config: LocalConfig) -> Result<Self, LocalError> {
        let root = open_root(&config)?;
        let verifier = Verifier::new(u64::from_ne_bytes(key::random()?));
        let cache = NodeCache::new(config.open_objects, Arc::clone(&verifier));
        let tree = open_tree(&config, root, Arc::clone(&cache))?;
        let creds = match config.identity {
            IdentityMode::Auto => Credentials::detect().ok_or(LocalError::Identities)?,
            IdentityMode::ServerUser => Credentials::server_user(),
        };
        let threads = config.threads.clamp(1, 1024);
        let engine = Arc::new(Engine::start(
            config.io,
            config.rings.clamp(1, 64),
            threads,
            config.arena.clone(),
            Arc::clone(&verifier),
        )?);
        let own_umask = std::thread::spawn(sys::own_zero_umask).join().unwrap_or(false);
        let housekeeper = Arc::clone(&engine);
        let tick = move || housekeeper.sync_unattended(cache.close_idle(Instant::now()));
        let pool = Pool::start("local-fs", threads, sys::prepare_name_thread, tick)
            .map_err(|source| LocalError::Threads { source })?;
        let statfs = rustix::fs::fstatfs(tree.mount()).map_err(|e| LocalError::Properties(e.into()))?;
        let statvfs = rustix::fs::fstatvfs(tree.mount()).map_err(|e| LocalError::Properties(e.into()))?;
        let info = FsInfo {
            max_file_size: i64::MAX as u64,
            name_max: u32::try_from(statvfs.f_namemax).unwrap_or(255),
            link_max: sys::path_limit(tree.mount(), libc::_PC_LINK_MAX)
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(32_000),
            time_delta_nanos: 1,
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
            attr_inline: answers_at_once(statfs.f_type as u64),
            own_umask,
        })
    }

    /// The lock that orders calls on `handle`.
    pub(super) fn lock(&self, handle: &Handle) -> MutexGuard<'_, ()> {
        let hash =
            handle.as_bytes().iter().rev().fold(0usize, |h, b| h.wrapping_mul(31).wrapping_add((*b).into()));
        self.locks[hash % LOCKS].lock()
    }

    /// Refuses changes of a read-only export.
    pub(super) fn writable(&self) -> FsResult<()> {
        if self.read_only { Err(FsError::RoFs) } else { Ok(()) }
    }

    /// Whether modes of new objects come out as asked (the threads have creation masks of their own).
    pub(super) fn exact_modes(&self) -> bool {
        self.own_umask
    }

    /// Attributes without a thread, where the file system answers at once and the object is open.
    pub(super) fn getattr_now(&self, file: &Handle) -> Option<FsResult<crate::Attr>> {
        if !self.attr_inline {
            return None;
        }
        let node = self.tree.cached(file)?;
        Some(attr::live_stat(node.as_fd()).and_then(|st| attr::attr(&st, self.fsid)))
    }

    /// Space and file counts.
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
