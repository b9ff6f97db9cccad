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

use parking_lot::Mutex;
use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
};
use smallvec::SmallVec;

use super::{
    data_file::DataFile,
    descriptors::{self, opening},
    engine::Verifier,
};
use crate::{FileKind, Handle, Identity};

/// How long a permission to read or write, once given by the kernel, is taken for granted. A change of the file's
/// attributes through this server ends it at once; a local one is noticed after this time at the latest.
const GRANT_LIFE: Duration = Duration::from_secs(1);
/// Callers per object whose permission is remembered.
const GRANTS: usize = 4;
/// An object is closed when it was not used for this long, so that a file deleted on this machine gives up its space
/// and a program that was written through us can be executed here.
pub(super) const IDLE: Duration = Duration::from_secs(5);
/// A file with unstable writes is synced, to be closed, when it was not used for this long. By then the kernel has
/// written most of its data back (`vm.dirty_expire_centisecs`, 30 s), and a client that lives has sent COMMIT.
pub(super) const UNSYNCED_IDLE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Grant {
    who: Identity,
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
    let name = proc_name(fd);
    opening(|| {
        rustix::fs::openat(CWD, name.as_str(), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
    })
}

impl Node {
    /// An object opened with `O_PATH`.
    pub(super) fn new(handle: Handle, path: OwnedFd, kind: FileKind) -> Self {
        Self { handle, path, kind, data: Mutex::default(), grants: Mutex::default() }
    }

    /// A regular file opened with `O_PATH`, and for writing.
    pub(super) fn with_writer(handle: Handle, path: OwnedFd, writer: Arc<DataFile>) -> Self {
        let data = DataFds { read: None, write: Some(writer) };
        Self { data: Mutex::new(data), ..Self::new(handle, path, FileKind::Regular) }
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
    pub(super) fn data_fd(&self, write: bool) -> Option<Arc<DataFile>> {
        let data = self.data.lock();
        if write { data.write.clone() } else { data.read.clone() }
    }

    /// A descriptor for reading or writing, opened in the server's name if none is open. Call on a pool thread.
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

    /// A descriptor that `fsync` takes, open already or opened now.
    pub(super) fn open_any(&self) -> Result<Arc<DataFile>, Errno> {
        match self.data_fd(true) {
            Some(fd) => Ok(fd),
            None => self.open_data(false).or_else(|_| self.open_data(true)),
        }
    }

    /// Whether its descriptors are in use nowhere else and need no sync.
    fn may_close(&mut self) -> bool {
        let data = self.data.get_mut();
        let free = |fd: &mut Option<Arc<DataFile>>| {
            fd.as_mut().is_none_or(|fd| Arc::get_mut(fd).is_some_and(|fd| fd.is_synced()))
        };
        free(&mut data.read) && free(&mut data.write)
    }

    /// Its descriptor with unstable writes, if there are any.
    fn unsynced(&self) -> Option<Arc<DataFile>> {
        self.data_fd(true).filter(|fd| !fd.is_synced())
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

impl Slot {
    /// Whether the object is in use nowhere else and needs no sync.
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
    /// Takes out the older eighth of the objects that may be closed at once, so that the cost of finding it is shared
    /// by many insertions.
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

    /// Of the files with unstable writes, the one not used for the longest time.
    fn oldest_unsynced(&self) -> Option<Arc<DataFile>> {
        let unsynced = self.slots.values().filter_map(|s| Some((s.used, s.node.unsynced()?)));
        unsynced.min_by_key(|(used, _)| *used).map(|(_, file)| file)
    }
}

/// The objects that are open, by handle; at most a fixed number, the least recently used go first. An object that is
/// in use, or has unstable writes, is never closed.
#[derive(Debug)]
pub(super) struct NodeCache {
    state: Mutex<State>,
    wanted: usize,
    capacity: AtomicUsize,
    verifier: Arc<Verifier>,
}

impl Drop for NodeCache {
    fn drop(&mut self) {
        // The other caches may take more now.
        descriptors::share();
    }
}

impl NodeCache {
    /// A cache of at most `wanted` objects, or its part of the descriptors. `verifier` changes when a file cannot be
    /// synced before it is closed.
    pub(super) fn new(wanted: usize, verifier: Arc<Verifier>) -> Arc<Self> {
        let capacity = AtomicUsize::new(wanted);
        let cache = Arc::new(Self { state: Mutex::default(), wanted, capacity, verifier });
        descriptors::register(&cache);
        cache
    }

    /// Keeps at most `part` objects from now on.
    pub(super) fn limit(&self, part: usize) {
        self.capacity.store(self.wanted.min(part), Ordering::Relaxed);
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

    /// Keeps `node`, and gives what is kept under its handle: `node`, or one that was there before. Call on a pool
    /// thread: another file may have to be synced to make room.
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

    /// Closes objects that were not used for a long time, after a sync of the oldest one if all need one. Gives their
    /// number.
    pub(super) fn make_room(&self) -> usize {
        let unsynced = {
            let mut state = self.state.lock();
            let closed = state.take_oldest();
            if !closed.is_empty() {
                drop(state);
                return closed.len(); // They are closed here and not under the lock: closing may take time.
            }
            state.oldest_unsynced()
        };
        if let Some(file) = unsynced {
            // The error is in the verifier now.
            let _ = file.sync_now(&self.verifier);
        }
        let closed = self.state.lock().take_oldest();
        closed.len()
    }

    /// Forgets an object that does not exist any more.
    pub(super) fn remove(&self, handle: &Handle) {
        let slot = self.state.lock().slots.remove(handle);
        drop(slot);
    }

    /// Closes what was not used for [`IDLE`] before `now`. Gives the files with unstable writes that were not used for
    /// [`UNSYNCED_IDLE`]: synced, a later call closes them.
    pub(super) fn close_idle(&self, now: Instant) -> Vec<Arc<DataFile>> {
        let before = |slot: &Slot, idle| now.saturating_duration_since(slot.at) > idle;
        let mut state = self.state.lock();
        let idle: Vec<Slot> =
            state.slots.extract_if(|_, s| before(s, IDLE) && s.may_close()).map(|(_, s)| s).collect();
        let old = state.slots.values().filter(|s| before(s, UNSYNCED_IDLE));
        let unsynced = old.filter_map(|s| s.node.unsynced()).collect();
        drop(state);
        drop(idle);
        unsynced
    }

    /// How many objects are open.
    pub(super) fn len(&self) -> usize {
        self.state.lock().slots.len()
    }
}
