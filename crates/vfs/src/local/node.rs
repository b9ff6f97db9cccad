//! Open objects, and the bounded cache of them.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
};
use smallvec::SmallVec;

use crate::{FileKind, FsResult, Handle, Identity};

/// How long a permission to read or write, once given by the kernel, is taken for granted. A change of the file's
/// attributes through this server ends it at once; a local one is noticed after this time at the latest.
const GRANT_LIFE: Duration = Duration::from_secs(1);
/// Callers per object whose permission is remembered.
const GRANTS: usize = 4;
/// An object that nobody used for this long is closed, so that a file deleted on this machine gives up its space and
/// a program that was written through us can be executed here.
const IDLE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Grant {
    who: Identity,
    write: bool,
    until: Instant,
}

#[derive(Debug, Default)]
struct DataFds {
    read: Option<Arc<OwnedFd>>,
    write: Option<Arc<OwnedFd>>,
}

/// An open object of the export.
#[derive(Debug)]
pub(super) struct Node {
    handle: Handle,
    path: OwnedFd,
    kind: FileKind,
    data: Mutex<DataFds>,
    grants: Mutex<SmallVec<[Grant; GRANTS]>>,
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }
}

/// The name under which the kernel opens an `O_PATH` descriptor again. It is a link to that very object and cannot
/// lead anywhere else.
pub(super) fn proc_name(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens a regular file or a directory again with other flags (anything else could wait for a peer).
pub(super) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, proc_name(fd), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

impl Node {
    /// An object opened with `O_PATH`.
    pub(super) fn new(handle: Handle, path: OwnedFd, kind: FileKind) -> Self {
        Self { handle, path, kind, data: Mutex::default(), grants: Mutex::default() }
    }

    /// Its handle.
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// What it is.
    pub(super) fn kind(&self) -> FileKind {
        self.kind
    }

    /// A descriptor for reading or writing, if one is open already.
    pub(super) fn data_fd(&self, write: bool) -> Option<Arc<OwnedFd>> {
        let data = self.data.lock();
        if write { data.write.clone() } else { data.read.clone() }
    }

    /// A descriptor for reading or writing, opened in the server's name if none is open. Call on a pool thread.
    pub(super) fn open_data(&self, write: bool) -> FsResult<Arc<OwnedFd>> {
        if let Some(fd) = self.data_fd(write) {
            return Ok(fd);
        }
        let flags = if write { OFlags::WRONLY } else { OFlags::RDONLY };
        let fd = Arc::new(reopen(self.as_fd(), flags)?);
        let mut data = self.data.lock();
        let slot = if write { &mut data.write } else { &mut data.read };
        Ok(Arc::clone(slot.get_or_insert(fd)))
    }

    /// A descriptor that `fsync` takes, open already or opened now.
    pub(super) fn open_any(&self) -> FsResult<Arc<OwnedFd>> {
        match self.data_fd(true) {
            Some(fd) => Ok(fd),
            None => self.open_data(false).or_else(|_| self.open_data(true)),
        }
    }

    /// Whether `who` was lately found to be allowed this.
    pub(super) fn is_granted(&self, who: &Identity, write: bool) -> bool {
        let now = Instant::now();
        self.grants.lock().iter().any(|g| g.write == write && g.until > now && g.who == *who)
    }

    /// Remembers that `who` is allowed this.
    pub(super) fn grant(&self, who: &Identity, write: bool) {
        let now = Instant::now();
        let mut grants = self.grants.lock();
        grants.retain(|g| g.until > now && !(g.write == write && g.who == *who));
        if grants.len() == GRANTS {
            grants.remove(0);
        }
        grants.push(Grant { who: who.clone(), write, until: now + GRANT_LIFE });
    }

    /// Forgets all permissions, because the object's attributes change.
    pub(super) fn revoke_grants(&self) {
        self.grants.lock().clear();
    }
}

#[derive(Debug)]
struct Slot {
    node: Arc<Node>,
    used: u64,
    at: Instant,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<Handle, Slot>,
    clock: u64,
}

/// The objects that are open, by handle; at most a fixed number, the least recently used go first.
#[derive(Debug)]
pub(super) struct NodeCache {
    state: Mutex<State>,
    capacity: usize,
}

impl NodeCache {
    /// A cache of at most `capacity` objects (each may hold three descriptors).
    pub(super) fn new(capacity: usize) -> Self {
        Self { state: Mutex::default(), capacity: capacity.max(1) }
    }

    /// The object, if it is open.
    pub(super) fn get(&self, handle: &Handle) -> Option<Arc<Node>> {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        let slot = state.slots.get_mut(handle)?;
        slot.used = clock;
        slot.at = Instant::now();
        Some(Arc::clone(&slot.node))
    }

    /// Keeps `node`, and gives what is kept under its handle: `node`, or one that was there before.
    pub(super) fn insert(&self, node: Node) -> Arc<Node> {
        let mut state = self.state.lock();
        state.clock += 1;
        let (used, at) = (state.clock, Instant::now());
        let handle = node.handle();
        let slot = state.slots.entry(handle).or_insert_with(|| Slot { node: Arc::new(node), used, at });
        slot.used = used;
        let node = Arc::clone(&slot.node);
        let evicted = if state.slots.len() > self.capacity { self.evict(&mut state) } else { Vec::new() };
        drop(state);
        drop(evicted); // Closing may take time; not under the lock.
        node
    }

    /// Takes out the older eighth at once, so that the cost of finding it is shared by many insertions.
    fn evict(&self, state: &mut State) -> Vec<Slot> {
        let mut ages: Vec<u64> = state.slots.values().map(|s| s.used).collect();
        let nth = (ages.len() / 8).min(ages.len() - 1);
        let (_, limit, _) = ages.select_nth_unstable(nth);
        let limit = *limit;
        state.slots.extract_if(|_, s| s.used <= limit).map(|(_, s)| s).collect()
    }

    /// Forgets an object.
    pub(super) fn remove(&self, handle: &Handle) {
        let slot = self.state.lock().slots.remove(handle);
        drop(slot);
    }

    /// Closes what nobody used for a while.
    pub(super) fn close_idle(&self) {
        let Some(limit) = Instant::now().checked_sub(IDLE) else { return };
        let idle: Vec<Slot> =
            self.state.lock().slots.extract_if(|_, s| s.at < limit).map(|(_, s)| s).collect();
        drop(idle);
    }

    /// How many objects are open.
    pub(super) fn len(&self) -> usize {
        self.state.lock().slots.len()
    }
}
