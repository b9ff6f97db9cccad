//! Open objects, and the bounded cache of them.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_vfs::{FileKind, Handle, Identity};
use parking_lot::Mutex;
use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
};
use smallvec::SmallVec;

use super::{
    data_file::DataFile,
    descriptors::{self, with_free_descriptor},
    engine::Verifier,
};

/// Lifetime of a cached permission to read or write. A change of attributes through this server ends it at
/// once; a local change takes effect after this time.
const GRANT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of cached permissions per object.
const MAX_GRANTS: usize = 4;
/// Idle time after which an object is closed, so that a file deleted locally releases its space, and a
/// program written through this server can be executed locally.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time after which a file with unstable writes is synced so that it can be closed. By then the kernel
/// has written most of its data (`vm.dirty_expire_centisecs`, 30 s), and an active client has sent COMMIT.
pub(super) const UNSYNCED_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Grant {
    caller: Identity,
    write: bool,
    until: Instant,
}

#[derive(Debug, Default)]
struct DataFds {
    read: Option<Arc<DataFile>>,
    write: Option<Arc<DataFile>>,
}

/// An open object of the export.
#[derive(Debug)]
pub(super) struct Node {
    handle: Handle,
    path: OwnedFd,
    kind: FileKind,
    data: Mutex<DataFds>,
    grants: Mutex<SmallVec<[Grant; MAX_GRANTS]>>,
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }
}

/// Path through which the kernel reopens an `O_PATH` descriptor. It always leads to the same object.
pub(super) fn proc_name(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Reopens a regular file or directory with other flags (opening other types could block).
pub(super) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let name = proc_name(fd);
    with_free_descriptor(|| {
        rustix::fs::openat(CWD, name.as_str(), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    })
}

impl Node {
    /// Creates a node from an `O_PATH` descriptor.
    pub(super) fn new(handle: Handle, path: OwnedFd, kind: FileKind) -> Self {
        Self { handle, path, kind, data: Mutex::default(), grants: Mutex::default() }
    }

    /// Creates a node of a regular file that is also open for writing.
    pub(super) fn with_writer(handle: Handle, path: OwnedFd, writer: Arc<DataFile>) -> Self {
        let data = DataFds { read: None, write: Some(writer) };
        Self { data: Mutex::new(data), ..Self::new(handle, path, FileKind::Regular) }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn kind(&self) -> FileKind {
        self.kind
    }

    /// Returns the descriptor for reading or writing if it is open.
    pub(super) fn data_fd(&self, write: bool) -> Option<Arc<DataFile>> {
        let data = self.data.lock();
        if write { data.write.clone() } else { data.read.clone() }
    }

    /// Returns the descriptor for reading or writing; opens it with the server's credentials if necessary.
    /// Call on a pool thread.
    pub(super) fn open_data(&self, write: bool) -> Result<Arc<DataFile>, Errno> {
        if let Some(fd) = self.data_fd(write) {
            return Ok(fd);
        }
        let flags = if write { OFlags::WRONLY } else { OFlags::RDONLY };
        let fd = DataFile::new(reopen(self.as_fd(), flags)?);
        let mut data = self.data.lock();
        let slot = if write { &mut data.write } else { &mut data.read };
        Ok(Arc::clone(slot.get_or_insert(fd)))
    }

    /// Returns a descriptor for `fsync`; opens one if necessary.
    pub(super) fn open_any(&self) -> Result<Arc<DataFile>, Errno> {
        match self.data_fd(true) {
            Some(fd) => Ok(fd),
            None => self.open_data(false).or_else(|_| self.open_data(true)),
        }
    }

    /// Whether its descriptors are otherwise unused and need no sync.
    fn may_close(&mut self) -> bool {
        let data = self.data.get_mut();
        let free = |fd: &mut Option<Arc<DataFile>>| {
            fd.as_mut().is_none_or(|fd| Arc::get_mut(fd).is_some_and(|fd| fd.is_synced()))
        };
        free(&mut data.read) && free(&mut data.write)
    }

    /// The descriptor that has unstable writes, if any.
    fn unsynced(&self) -> Option<Arc<DataFile>> {
        self.data_fd(true).filter(|fd| !fd.is_synced())
    }

    /// Whether this permission of `caller` is cached.
    pub(super) fn is_granted(&self, caller: &Identity, write: bool) -> bool {
        let now = Instant::now();
        self.grants.lock().iter().any(|g| g.write == write && g.until > now && g.caller == *caller)
    }

    /// Caches a permission of `caller`.
    pub(super) fn grant(&self, caller: &Identity, write: bool) {
        let now = Instant::now();
        let mut grants = self.grants.lock();
        grants.retain(|g| g.until > now && !(g.write == write && g.caller == *caller));
        if grants.len() == MAX_GRANTS {
            grants.remove(0);
        }
        grants.push(Grant { caller: caller.clone(), write, until: now + GRANT_TIMEOUT });
    }

    /// Drops all cached permissions, because attributes change.
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

impl Slot {
    /// Whether the object is otherwise unused and needs no sync.
    fn may_close(&mut self) -> bool {
        Arc::get_mut(&mut self.node).is_some_and(Node::may_close)
    }
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<Handle, Slot>,
    clock: u64,
}

impl State {
    /// Removes the least recently used eighth of the objects that can be closed at once, to amortize the cost
    /// of the search.
    fn take_oldest(&mut self) -> Vec<Slot> {
        let mut ages: Vec<u64> =
            self.slots.values_mut().filter_map(|s| s.may_close().then_some(s.used)).collect();
        if ages.is_empty() {
            return Vec::new();
        }
        let nth = ages.len() / 8;
        let (_, limit, _) = ages.select_nth_unstable(nth);
        let limit = *limit;
        self.slots.extract_if(|_, s| s.used <= limit && s.may_close()).map(|(_, s)| s).collect()
    }

    /// The least recently used file with unstable writes.
    fn oldest_unsynced(&self) -> Option<Arc<DataFile>> {
        let unsynced = self.slots.values().filter_map(|s| Some((s.used, s.node.unsynced()?)));
        unsynced.min_by_key(|(used, _)| *used).map(|(_, file)| file)
    }
}

/// LRU cache of open objects by handle, with a fixed capacity. Objects that are in use, or have unstable
/// writes, are not closed.
#[derive(Debug)]
pub(super) struct NodeCache {
    state: Mutex<State>,
    wanted: usize,
    capacity: AtomicUsize,
    verifier: Arc<Verifier>,
}

impl Drop for NodeCache {
    fn drop(&mut self) {
        // Other caches may use the released descriptors now.
        descriptors::share();
    }
}

impl NodeCache {
    /// Creates a cache of at most `wanted` objects, or its share of the descriptors. `verifier` changes if a
    /// file cannot be synced before it is closed.
    pub(super) fn new(wanted: usize, verifier: Arc<Verifier>) -> Arc<Self> {
        let capacity = AtomicUsize::new(wanted);
        let cache = Arc::new(Self { state: Mutex::default(), wanted, capacity, verifier });
        descriptors::register(&cache);
        cache
    }

    /// Limits the cache to `part` objects.
    pub(super) fn limit(&self, part: usize) {
        self.capacity.store(self.wanted.min(part), Ordering::Relaxed);
    }

    /// Returns the object if it is open.
    pub(super) fn get(&self, handle: &Handle) -> Option<Arc<Node>> {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        let slot = state.slots.get_mut(handle)?;
        slot.used = clock;
        slot.at = Instant::now();
        Some(Arc::clone(&slot.node))
    }

    /// Inserts `node` and returns it, or the node already cached under its handle. Call on a pool thread:
    /// another file may have to be synced to make room.
    pub(super) fn insert(&self, node: Node) -> Arc<Node> {
        let mut state = self.state.lock();
        state.clock += 1;
        let (used, at) = (state.clock, Instant::now());
        let handle = node.handle();
        let slot = state.slots.entry(handle).or_insert_with(|| Slot { node: Arc::new(node), used, at });
        slot.used = used;
        let node = Arc::clone(&slot.node);
        let full = state.slots.len() > self.capacity.load(Ordering::Relaxed);
        drop(state);
        if full {
            self.make_room();
        }
        node
    }

    /// Closes the least recently used objects, after syncing the oldest one if all need a sync. Returns their
    /// number.
    pub(super) fn make_room(&self) -> usize {
        let unsynced = {
            let mut state = self.state.lock();
            let closed = state.take_oldest();
            if !closed.is_empty() {
                drop(state);
                return closed.len(); // Closing may block, so it is done without holding the lock.
            }
            state.oldest_unsynced()
        };
        if let Some(file) = unsynced {
            // The error has changed the verifier.
            let _ = file.sync_now(&self.verifier);
        }
        let closed = self.state.lock().take_oldest();
        closed.len()
    }

    /// Removes an object that no longer exists.
    pub(super) fn remove(&self, handle: &Handle) {
        let slot = self.state.lock().slots.remove(handle);
        drop(slot);
    }

    /// Closes objects that have been idle for [`IDLE_TIMEOUT`] at `now`. Returns files with unstable writes
    /// that have been idle for [`UNSYNCED_IDLE_TIMEOUT`]; once synced, a later call closes them.
    pub(super) fn close_idle(&self, now: Instant) -> Vec<Arc<DataFile>> {
        let before = |slot: &Slot, idle| now.saturating_duration_since(slot.at) > idle;
        let mut state = self.state.lock();
        let idle: Vec<Slot> =
            state.slots.extract_if(|_, s| before(s, IDLE_TIMEOUT) && s.may_close()).map(|(_, s)| s).collect();
        let old = state.slots.values().filter(|s| before(s, UNSYNCED_IDLE_TIMEOUT));
        let unsynced = old.filter_map(|s| s.node.unsynced()).collect();
        drop(state);
        drop(idle);
        unsynced
    }

    /// Number of open objects.
    pub(super) fn len(&self) -> usize {
        self.state.lock().slots.len()
    }
}
