//! Locations of objects, for exports without kernel handles.
//!
//! A handle contains an inode number and its birth time; the index maps it to the directory and name under
//! which the object was last seen. Renames through this server update it. After a restart, or after a rename
//! by a local process, the object may not be at its recorded location. A thread then walks the export, looks
//! for the wanted objects, and fills the index with the others. Calls that want them fail with
//! [`FsError::Jukebox`] (a few wait briefly first); other calls are not affected. An object that a complete
//! walk has not found is [`FsError::Stale`].
//!
//! The index holds a fixed number of locations in two generations. A location that is used or recorded is in
//! the recent generation; when that is full, it becomes the old one, and the previous old one is dropped
//! except for the ancestors of retained directories. An export with more objects causes walks; a walk takes
//! time proportional to the export, so there are pauses between walks.
//!
//! If the file system does not store birth times, a reused inode number is mistaken for the old object.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use millrace_vfs::{FileKind, FsError, FsResult, Handle};
use parking_lot::{Condvar, Mutex};
use rustix::{
    fs::{OFlags, RawDir, Statx},
    io::Errno,
};

use super::{
    attr,
    node::{Node, reopen},
    tree::{Tree, open_above},
};

/// Pause between walks: this multiple of the duration of the last walk, and at least [`MIN_PAUSE`].
const PAUSE_FACTOR: u32 = 10;
const MIN_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// Time that a call waits for a walk before it fails with JUKEBOX.
const WALK_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 500 });

#[derive(Debug, Clone)]
struct Location {
    dir: Handle,
    name: Box<[u8]>,
    /// Number of walks started when this was recorded.
    walks: u64,
}

#[derive(Debug, Default)]
struct Locations {
    recent: HashMap<Handle, Location>,
    old: HashMap<Handle, Location>,
    /// Wanted objects, each with the number of the first walk that proves its absence by not finding it.
    wanted: HashMap<Handle, u64>,
    /// Objects that a complete walk has not found, so that they do not cause another walk.
    gone: HashSet<Handle>,
    walks: u64,
    /// All objects found by the last walk are in the index or in `gone`.
    all: bool,
}

impl Locations {
    /// Returns a location and moves it to the recent generation.
    fn find(&mut self, handle: &Handle, limit: usize) -> Option<Location> {
        if let Some(location) = self.recent.get(handle) {
            return Some(location.clone());
        }
        let location = self.old.remove(handle)?;
        self.insert(*handle, location.clone(), limit);
        Some(location)
    }

    fn insert(&mut self, handle: Handle, location: Location, limit: usize) {
        self.old.remove(&handle);
        self.recent.insert(handle, location);
        if self.recent.len() > limit / 2 {
            self.age(limit / 2);
        }
    }

    /// Turns the recent generation into the old one. Keeps up to `limit` ancestors of its directories from
    /// the previous old generation.
    fn age(&mut self, limit: usize) {
        let mut dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.recent));
        let mut above: Vec<Handle> = self.old.values().map(|p| p.dir).collect();
        let mut room = limit;
        while let Some(dir) = above.pop() {
            if room > 0
                && let Some(location) = dropped.remove(&dir)
            {
                room -= 1;
                above.push(location.dir);
                self.old.insert(dir, location);
            }
        }
        self.all &= dropped.is_empty();
    }

    /// Records a location found by a walk, unless a newer one is known.
    fn record(&mut self, handle: Handle, location: Location, limit: usize) {
        let room = self.recent.len() + self.old.len() < limit;
        let known = match self.recent.get_mut(&handle) {
            Some(known) => Some(known),
            None => self.old.get_mut(&handle),
        };
        match known {
            Some(known) if known.walks < location.walks => *known = location,
            Some(_) => {}
            None if room => drop(self.old.insert(handle, location)),
            None => self.all = false,
        }
    }

    fn mark_gone(&mut self, handle: Handle, limit: usize) {
        if self.gone.len() >= limit {
            self.gone.clear();
        }
        self.gone.insert(handle);
    }
}

#[derive(Debug, Default)]
struct Walks {
    running: bool,
    /// Earliest start of the next walk.
    next_walk: Option<Instant>,
    /// Number of calls that wait for the end of the walk.
    waiting: usize,
}

/// Locations of a limited number of objects.
pub(super) struct Index {
    locations: Mutex<Locations>,
    limit: usize,
    walks: Mutex<Walks>,
    ended: Condvar,
    /// Maximum number of waiting calls.
    waiters: usize,
    /// A test holds this lock to block walks.
    #[cfg(test)]
    pub(super) pause: Mutex<()>,
}

impl Index {
    /// Creates an empty index of at most `limit` locations. At most `waiters` threads wait for a walk.
    pub(super) fn new(limit: usize, waiters: usize) -> Self {
        Self {
            locations: Mutex::default(),
            limit: limit.max(2),
            walks: Mutex::default(),
            ended: Condvar::new(),
            waiters,
            #[cfg(test)]
            pause: Mutex::default(),
        }
    }

    /// Number of walks so far.
    #[cfg(test)]
    pub(super) fn walk_count(&self) -> u64 {
        self.locations.lock().walks
    }

    /// Whether a walk is in progress.
    #[cfg(test)]
    pub(super) fn is_walking(&self) -> bool {
        self.walks.lock().running
    }

    /// Sets the delay until the next walk.
    #[cfg(test)]
    pub(super) fn set_next_walk(&self, next_walk: Duration) {
        self.walks.lock().next_walk = Some(Instant::now() + next_walk);
    }

    /// Records a location.
    pub(super) fn note(&self, handle: Handle, dir: Handle, name: &[u8]) {
        let mut locations = self.locations.lock();
        locations.gone.remove(&handle);
        locations.wanted.remove(&handle);
        let walks = locations.walks;
        locations.insert(handle, Location { dir, name: name.into(), walks }, self.limit);
    }

    /// Records that a name was removed, and with `dead` that the object was too.
    pub(super) fn forget(&self, handle: &Handle, dir: &Handle, name: &[u8], dead: bool) {
        let mut locations = self.locations.lock();
        let Locations { recent, old, all, .. } = &mut *locations;
        for generation in [recent, old] {
            if generation.get(handle).is_some_and(|p| p.dir == *dir && *p.name == *name) {
                generation.remove(handle);
                // The object has other links, which only a walk can find.
                *all &= dead;
            }
        }
        if dead {
            locations.wanted.remove(handle);
            locations.mark_gone(*handle, self.limit);
        }
    }

    /// Opens the object of a handle, at its recorded location or after a short walk.
    pub(super) fn open(&self, tree: &Tree, handle: &Handle) -> FsResult<(OwnedFd, Statx)> {
        for last in [false, true] {
            if let Some(found) = self.open_recorded(tree, handle) {
                return Ok(found);
            }
            if !self.request(handle) {
                return Err(FsError::Stale);
            }
            if last || !self.wait_for_walk(tree) {
                break;
            }
        }
        Err(FsError::Jukebox)
    }

    /// Requests an object from the next walk. Returns `false` if a complete walk has not found it.
    fn request(&self, handle: &Handle) -> bool {
        let walked = self.walks.lock().next_walk.is_some_and(|next_walk| next_walk > Instant::now());
        let mut locations = self.locations.lock();
        let known = locations.recent.contains_key(handle) || locations.old.contains_key(handle);
        if locations.gone.contains(handle) || (walked && locations.all && !known) {
            return false;
        }
        let next = locations.walks + 1;
        if locations.wanted.len() < self.limit {
            locations.wanted.entry(*handle).or_insert(next);
        }
        true
    }

    /// Starts a walk unless one is in progress or has just ended, and waits for it. Returns `false` if it has
    /// not ended.
    fn wait_for_walk(&self, tree: &Tree) -> bool {
        let mut walks = self.walks.lock();
        if !walks.running {
            if walks.next_walk.is_some_and(|next_walk| next_walk > Instant::now()) || !self.start_walk(tree) {
                return false;
            }
            walks.running = true;
        }
        if walks.waiting >= self.waiters {
            return false;
        }
        walks.waiting += 1;
        let limit = Instant::now() + WALK_TIMEOUT;
        while walks.running && !self.ended.wait_until(&mut walks, limit).timed_out() {}
        walks.waiting -= 1;
        !walks.running
    }

    fn start_walk(&self, tree: &Tree) -> bool {
        let tree = tree.weak();
        let walk = move || {
            if let Some(owner) = tree.upgrade()
                && let Some(index) = owner.index()
            {
                index.walk(&tree);
            }
        };
        thread::Builder::new()
            .name("local-walk".into())
            .spawn(walk)
            .inspect_err(|error| tracing::error!(%error, "cannot start a thread to walk the export"))
            .is_ok()
    }

    /// Opens the recorded path from the root, and verifies that it leads to the object.
    fn open_recorded(&self, tree: &Tree, handle: &Handle) -> Option<(OwnedFd, Statx)> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut at = *handle;
        let mut start: Option<Arc<Node>> = None;
        while start.is_none() {
            let location = self.locations.lock().find(&at, self.limit)?;
            names.push(location.name);
            at = location.dir;
            // Start at the nearest open ancestor; the root is always open.
            start = tree.cached(&at);
            if names.len() > self.limit {
                return None; // Locations recorded at different times may form a cycle.
            }
        }
        names.reverse();
        let (fd, st) = tree.open_path(start?.as_fd(), &names).ok()?;
        (tree.handle_of(fd.as_fd(), &st).ok()? == *handle).then_some((fd, st))
    }

    /// Walks the export and determines which wanted objects are gone.
    fn walk(&self, tree: &Weak<Tree>) {
        let (number, wanted) = {
            let mut locations = self.locations.lock();
            locations.walks += 1;
            locations.all = true;
            (locations.walks, locations.wanted.len())
        };
        #[cfg(test)]
        drop(self.pause.lock());
        let started = Instant::now();
        let _end = WalkGuard { index: self, started };
        tracing::info!(wanted, "walking the export to locate objects by handle");
        let complete = Walk { index: self, number, levels: Vec::new(), complete: true }.run(tree);
        tracing::info!(took = ?started.elapsed(), complete, "walked the export");
        let mut locations = self.locations.lock();
        locations.all &= complete;
        if complete {
            let gone: Vec<_> = locations.wanted.extract_if(|_, since| *since <= number).collect();
            gone.into_iter().for_each(|(handle, _)| locations.mark_gone(handle, self.limit));
        }
    }
}

/// Ends a walk in all cases, and sets the pause until the next one.
struct WalkGuard<'a> {
    index: &'a Index,
    started: Instant,
}

impl Drop for WalkGuard<'_> {
    fn drop(&mut self) {
        let next_walk = (self.started.elapsed() * PAUSE_FACTOR).max(MIN_PAUSE);
        let mut walks = self.index.walks.lock();
        walks.next_walk = Some(Instant::now() + next_walk);
        walks.running = false;
        self.index.ended.notify_all();
    }
}

/// A directory on the current path of the walk, with the names of subdirectories still to be visited.
struct Level {
    handle: Handle,
    name: Box<[u8]>,
    todo: Vec<Box<[u8]>>,
}

/// A depth-first walk that keeps one directory open.
struct Walk<'a> {
    index: &'a Index,
    number: u64,
    levels: Vec<Level>,
    /// Nothing was skipped so far.
    complete: bool,
}

impl Walk<'_> {
    /// Runs the walk. Returns whether it was complete. Ends early when the export is closed.
    fn run(mut self, tree: &Weak<Tree>) -> bool {
        let begin = |walk: &mut Self| {
            let tree = tree.upgrade()?;
            let root = tree.root();
            walk.enter(&tree, root.as_fd(), root.handle(), Box::default()).ok()?
        };
        let Some(mut at) = begin(&mut self) else { return false };
        while let Some(level) = self.levels.last_mut() {
            let Some(tree) = tree.upgrade() else { return false };
            let next = match level.todo.pop() {
                Some(name) => self.descend(&tree, at.as_fd(), name),
                None => self.ascend(&tree, at.as_fd()),
            };
            match next {
                Ok(Some(fd)) => at = fd,
                Ok(None) => {}
                Err(_) => self.complete = false,
            }
        }
        self.complete
    }

    /// Enters the entry `name` of the directory `at`, if it is a readable directory.
    fn descend(&mut self, tree: &Tree, at: BorrowedFd<'_>, name: Box<[u8]>) -> FsResult<Option<OwnedFd>> {
        let (fd, st) = match tree.open_entry(at, &name) {
            Err(FsError::NoEnt | FsError::Access) => return Ok(None),
            other => other?,
        };
        if attr::kind(&st)? != FileKind::Directory {
            return Ok(None);
        }
        let handle = tree.handle_of(fd.as_fd(), &st)?;
        self.enter(tree, fd.as_fd(), handle, name)
    }

    /// Lists a directory and makes it the current one. Unreadable directories are skipped: their content is
    /// not served.
    fn enter(
        &mut self,
        tree: &Tree,
        dir: BorrowedFd<'_>,
        handle: Handle,
        name: Box<[u8]>,
    ) -> FsResult<Option<OwnedFd>> {
        self.levels.push(Level { handle, name, todo: Vec::new() });
        let listed = reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY).map_err(Into::into);
        let listed = listed.and_then(|fd| self.list(tree, &fd, handle).map(|todo| (fd, todo)));
        match listed {
            Ok((fd, todo)) => {
                if let Some(level) = self.levels.last_mut() {
                    level.todo = todo;
                }
                Ok(Some(fd))
            }
            Err(e) => {
                self.levels.pop();
                if e == FsError::Access { Ok(None) } else { Err(e) }
            }
        }
    }

    /// Records the entries of a directory. Returns the names of its subdirectories.
    fn list(&mut self, tree: &Tree, dir: &OwnedFd, handle: Handle) -> FsResult<Vec<Box<[u8]>>> {
        let mut below = Vec::new();
        let mut buf = Vec::with_capacity(32 << 10);
        let mut entries = RawDir::new(dir, buf.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let (child, st) = match tree.open_entry(dir.as_fd(), name) {
                Ok(opened) => opened,
                Err(FsError::NoEnt | FsError::Access) => continue,
                // The entry may be a wanted object: descriptors or memory are exhausted, or an I/O error
                // occurred.
                Err(_) => {
                    self.complete = false;
                    continue;
                }
            };
            let found = tree.handle_of(child.as_fd(), &st)?;
            self.record(found, Location { dir: handle, name: name.into(), walks: self.number });
            if attr::kind(&st) == Ok(FileKind::Directory) {
                below.push(name.into());
            }
        }
        Ok(below)
    }

    /// Records the location of an object, and of its ancestors if it is wanted.
    fn record(&self, handle: Handle, location: Location) {
        let limit = self.index.limit;
        let mut locations = self.index.locations.lock();
        if locations.wanted.remove(&handle).is_none() {
            return locations.record(handle, location, limit);
        }
        let pairs = self.levels.iter().zip(self.levels.iter().skip(1));
        for (above, level) in pairs {
            let location = Location { dir: above.handle, name: level.name.clone(), walks: self.number };
            locations.insert(level.handle, location, limit);
        }
        locations.insert(handle, location, limit);
    }

    /// Returns to the parent directory, or to the next ancestor that is still at its location.
    fn ascend(&mut self, tree: &Tree, at: BorrowedFd<'_>) -> FsResult<Option<OwnedFd>> {
        self.levels.pop();
        let Some(level) = self.levels.last() else { return Ok(None) };
        if let Ok(fd) = open_above(at, 1)
            && has_handle(tree, fd.as_fd(), &level.handle)
        {
            return Ok(Some(fd));
        }
        while let Some(level) = self.levels.last() {
            let names: Vec<_> = self.levels.iter().skip(1).map(|l| l.name.clone()).collect();
            if let Ok((fd, _)) = tree.open_path(tree.root().as_fd(), &names)
                && has_handle(tree, fd.as_fd(), &level.handle)
            {
                return Ok(Some(fd));
            }
            self.complete = false;
            self.levels.pop();
        }
        Ok(None)
    }
}

/// Whether the handle of an open directory is `handle`.
fn has_handle(tree: &Tree, fd: BorrowedFd<'_>, handle: &Handle) -> bool {
    let found = attr::stat(fd).map_err(Errno::into).and_then(|st| tree.handle_of(fd, &st));
    found == Ok(*handle)
}
