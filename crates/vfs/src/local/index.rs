//! Where objects are, for when there are no kernel handles.
//!
//! A handle names an inode number and its time of birth; the index knows the directory and the name under which the
//! object was last seen. Renames through this server keep it right. After a restart, or after a rename by a local
//! program, a handle is not found where the index says. Then a thread walks the export, looks for the objects that are
//! wanted, and fills the index with the others. The calls that want them are answered [`FsError::Jukebox`] (a few wait
//! for a moment first), all others go on. An object that a whole walk has not found is gone ([`FsError::Stale`]).
//!
//! The index holds a fixed number of places in two generations. A place that is used or noted is in the young one; when
//! that is full, it becomes the old one, and the old one is dropped except for the directories above what is kept.
//! An export with more objects costs walks: a walk takes time in proportion to the export, so walks are spaced.
//!
//! Where the file system keeps no times of birth, a reused inode number is taken for the old object.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

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
use crate::{FileKind, FsError, FsResult, Handle};

/// A walk is not repeated before this many times its own duration, and this long at least.
const REST_FACTOR: u32 = 10;
const MIN_REST: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// How long a call waits for a walk before the client has to send it again.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 500 });

#[derive(Debug, Clone)]
struct Place {
    dir: Handle,
    name: Box<[u8]>,
    /// The number of walks begun when this was noted.
    walks: u64,
}

#[derive(Debug, Default)]
struct Places {
    young: HashMap<Handle, Place>,
    old: HashMap<Handle, Place>,
    /// Objects to be looked for, with the number of the walk from which on a walk that does not meet them is a proof.
    wanted: HashMap<Handle, u64>,
    /// Objects known to be gone, so that asking for them again does not cost another walk.
    gone: HashSet<Handle>,
    walks: u64,
    /// Everything that the last walk has met is here still, except what is gone.
    all: bool,
}

impl Places {
    /// Where an object is; its place is young from now on.
    fn find(&mut self, handle: &Handle, limit: usize) -> Option<Place> {
        if let Some(place) = self.young.get(handle) {
            return Some(place.clone());
        }
        let place = self.old.remove(handle)?;
        self.insert(*handle, place.clone(), limit);
        Some(place)
    }

    fn insert(&mut self, handle: Handle, place: Place, limit: usize) {
        self.old.remove(&handle);
        self.young.insert(handle, place);
        if self.young.len() > limit / 2 {
            self.age(limit / 2);
        }
    }

    /// Makes the young generation the old one. Of the old one the directories above it stay, up to `limit` of them.
    fn age(&mut self, limit: usize) {
        let mut dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        let mut above: Vec<Handle> = self.old.values().map(|p| p.dir).collect();
        let mut room = limit;
        while let Some(dir) = above.pop() {
            if room > 0
                && let Some(place) = dropped.remove(&dir)
            {
                room -= 1;
                above.push(place.dir);
                self.old.insert(dir, place);
            }
        }
        self.all &= dropped.is_empty();
    }

    /// Takes what a walk has met, unless something newer is known.
    fn meet(&mut self, handle: Handle, place: Place, limit: usize) {
        let room = self.young.len() + self.old.len() < limit;
        let known = match self.young.get_mut(&handle) {
            Some(known) => Some(known),
            None => self.old.get_mut(&handle),
        };
        match known {
            Some(known) if known.walks < place.walks => *known = place,
            Some(_) => {}
            None if room => drop(self.old.insert(handle, place)),
            None => self.all = false,
        }
    }

    fn bury(&mut self, handle: Handle, limit: usize) {
        if self.gone.len() >= limit {
            self.gone.clear();
        }
        self.gone.insert(handle);
    }
}

#[derive(Debug, Default)]
struct Walks {
    running: bool,
    /// Before this a walk is not repeated.
    rest: Option<Instant>,
    /// Calls that wait for the end of the walk.
    waiting: usize,
}

/// The places of at most a fixed number of objects.
pub(super) struct Index {
    places: Mutex<Places>,
    limit: usize,
    walks: Mutex<Walks>,
    ended: Condvar,
    /// Calls that may wait at once.
    waiters: usize,
    /// Held by a test, it stops walks.
    #[cfg(test)]
    pub(super) pause: Mutex<()>,
}

impl Index {
    /// An empty index of at most `limit` places. At most `waiters` threads wait for a walk at once.
    pub(super) fn new(limit: usize, waiters: usize) -> Self {
        Self {
            places: Mutex::default(),
            limit: limit.max(2),
            walks: Mutex::default(),
            ended: Condvar::new(),
            waiters,
            #[cfg(test)]
            pause: Mutex::default(),
        }
    }

    /// The number of walks so far.
    #[cfg(test)]
    pub(super) fn walks_begun(&self) -> u64 {
        self.places.lock().walks
    }

    /// Whether a walk is running.
    #[cfg(test)]
    pub(super) fn is_walking(&self) -> bool {
        self.walks.lock().running
    }

    /// Has the next walk begin after `rest`, and not before.
    #[cfg(test)]
    pub(super) fn rest_for(&self, rest: Duration) {
        self.walks.lock().rest = Some(Instant::now() + rest);
    }

    /// Notes a place.
    pub(super) fn note(&self, handle: Handle, dir: Handle, name: &[u8]) {
        let mut places = self.places.lock();
        places.gone.remove(&handle);
        places.wanted.remove(&handle);
        let walks = places.walks;
        places.insert(handle, Place { dir, name: name.into(), walks }, self.limit);
    }

    /// Notes that a name is gone; with `dead`, the object too.
    pub(super) fn forget(&self, handle: &Handle, dir: &Handle, name: &[u8], dead: bool) {
        let mut places = self.places.lock();
        let Places { young, old, all, .. } = &mut *places;
        for generation in [young, old] {
            if generation.get(handle).is_some_and(|p| p.dir == *dir && *p.name == *name) {
                generation.remove(handle);
                // The object has other links; only a walk finds them.
                *all &= dead;
            }
        }
        if dead {
            places.wanted.remove(handle);
            places.bury(*handle, self.limit);
        }
    }

    /// Opens the object behind a handle, if it is where it was or a walk finds it soon.
    pub(super) fn open(&self, tree: &Tree, handle: &Handle) -> FsResult<(OwnedFd, Statx)> {
        for last in [false, true] {
            if let Some(found) = self.open_in_place(tree, handle) {
                return Ok(found);
            }
            if !self.want(handle) {
                return Err(FsError::Stale);
            }
            if last || !self.await_walk(tree) {
                break;
            }
        }
        Err(FsError::Jukebox)
    }

    /// Has the next walk look for an object. False if it is known to be gone: a walk was whole and has not met it.
    fn want(&self, handle: &Handle) -> bool {
        let walked = self.walks.lock().rest.is_some_and(|rest| rest > Instant::now());
        let mut places = self.places.lock();
        let known = places.young.contains_key(handle) || places.old.contains_key(handle);
        if places.gone.contains(handle) || (walked && places.all && !known) {
            return false;
        }
        let next = places.walks + 1;
        if places.wanted.len() < self.limit {
            places.wanted.entry(*handle).or_insert(next);
        }
        true
    }

    /// Starts a walk, unless one is running or has ended lately, and waits for it. False if it has not ended.
    fn await_walk(&self, tree: &Tree) -> bool {
        let mut walks = self.walks.lock();
        if !walks.running {
            if walks.rest.is_some_and(|rest| rest > Instant::now()) || !self.start_walk(tree) {
                return false;
            }
            walks.running = true;
        }
        if walks.waiting >= self.waiters {
            return false;
        }
        walks.waiting += 1;
        let limit = Instant::now() + PATIENCE;
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

    /// Follows the noted places from the root down, and makes sure that it is the object meant.
    fn open_in_place(&self, tree: &Tree, handle: &Handle) -> Option<(OwnedFd, Statx)> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut at = *handle;
        let mut start: Option<Arc<Node>> = None;
        while start.is_none() {
            let place = self.places.lock().find(&at, self.limit)?;
            names.push(place.name);
            at = place.dir;
            // An ancestor that is open is the start; the root always is.
            start = tree.cached(&at);
            if names.len() > self.limit {
                return None; // Places of different times may form a circle.
            }
        }
        names.reverse();
        let (fd, st) = tree.open_path(start?.as_fd(), &names).ok()?;
        (tree.handle_of(fd.as_fd(), &st).ok()? == *handle).then_some((fd, st))
    }

    /// Walks the export, and decides about the objects that are wanted.
    fn walk(&self, tree: &Weak<Tree>) {
        let (number, wanted) = {
            let mut places = self.places.lock();
            places.walks += 1;
            places.all = true;
            (places.walks, places.wanted.len())
        };
        #[cfg(test)]
        drop(self.pause.lock());
        let began = Instant::now();
        let _end = EndOfWalk { index: self, began };
        tracing::info!(wanted, "walking the export to find objects by their handles");
        let whole = Walk { index: self, number, levels: Vec::new(), whole: true }.run(tree);
        tracing::info!(took = ?began.elapsed(), whole, "walked the export");
        let mut places = self.places.lock();
        places.all &= whole;
        if whole {
            let gone: Vec<_> = places.wanted.extract_if(|_, since| *since <= number).collect();
            gone.into_iter().for_each(|(handle, _)| places.bury(handle, self.limit));
        }
    }
}

/// Lets the next walk begin, after a rest, however this one ends.
struct EndOfWalk<'a> {
    index: &'a Index,
    began: Instant,
}

impl Drop for EndOfWalk<'_> {
    fn drop(&mut self) {
        let rest = (self.began.elapsed() * REST_FACTOR).max(MIN_REST);
        let mut walks = self.index.walks.lock();
        walks.rest = Some(Instant::now() + rest);
        walks.running = false;
        self.index.ended.notify_all();
    }
}

/// A directory that is being walked, with the names of the directories in it that are still to be walked.
struct Level {
    handle: Handle,
    name: Box<[u8]>,
    todo: Vec<Box<[u8]>>,
}

/// A walk over the export, depth first, with one open directory.
struct Walk<'a> {
    index: &'a Index,
    number: u64,
    levels: Vec<Level>,
    /// Nothing was left out so far.
    whole: bool,
}

impl Walk<'_> {
    /// Walks. True if nothing was left out. Ends early when the export is closed.
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
                Err(_) => self.whole = false,
            }
        }
        self.whole
    }

    /// Enters the entry `name` of the directory `at`, if it is a directory that may be read.
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

    /// Lists a directory and makes it the current one. What may not be read is not served either.
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

    /// Notes the entries of a directory. Gives the names of the directories among them.
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
                // The entry may be an object that is wanted: a lack of descriptors or memory, or an I/O error.
                Err(_) => {
                    self.whole = false;
                    continue;
                }
            };
            let found = tree.handle_of(child.as_fd(), &st)?;
            self.meet(found, Place { dir: handle, name: name.into(), walks: self.number });
            if attr::kind(&st) == Ok(FileKind::Directory) {
                below.push(name.into());
            }
        }
        Ok(below)
    }

    /// Notes where an object is, and the directories above it if it is wanted.
    fn meet(&self, handle: Handle, place: Place) {
        let limit = self.index.limit;
        let mut places = self.index.places.lock();
        if places.wanted.remove(&handle).is_none() {
            return places.meet(handle, place, limit);
        }
        let pairs = self.levels.iter().zip(self.levels.iter().skip(1));
        for (above, level) in pairs {
            let place = Place { dir: above.handle, name: level.name.clone(), walks: self.number };
            places.insert(level.handle, place, limit);
        }
        places.insert(handle, place, limit);
    }

    /// Leaves the current directory for the one above, or for the next one above that is still where it was.
    fn ascend(&mut self, tree: &Tree, at: BorrowedFd<'_>) -> FsResult<Option<OwnedFd>> {
        self.levels.pop();
        let Some(level) = self.levels.last() else { return Ok(None) };
        if let Ok(fd) = open_above(at, 1)
            && is(tree, fd.as_fd(), &level.handle)
        {
            return Ok(Some(fd));
        }
        while let Some(level) = self.levels.last() {
            let names: Vec<_> = self.levels.iter().skip(1).map(|l| l.name.clone()).collect();
            if let Ok((fd, _)) = tree.open_path(tree.root().as_fd(), &names)
                && is(tree, fd.as_fd(), &level.handle)
            {
                return Ok(Some(fd));
            }
            self.whole = false;
            self.levels.pop();
        }
        Ok(None)
    }
}

/// Whether an open directory is the one of this handle.
fn is(tree: &Tree, fd: BorrowedFd<'_>, handle: &Handle) -> bool {
    let found = attr::stat(fd).map_err(Errno::into).and_then(|st| tree.handle_of(fd, &st));
    found == Ok(*handle)
}
