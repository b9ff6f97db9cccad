//! Where objects are, for when there are no kernel handles.
//!
//! A handle names an inode number and its time of birth; the index knows the directory and the name under which the
//! object was last seen. Renames through this server keep it right. After a restart, or after a rename by someone
//! else, a handle is not found where the index says; then the export is walked once and the index filled with all
//! that is there. Limits: the walk costs time in proportion to the export, so walks are spaced (meanwhile such
//! handles are answered [`FsError::Jukebox`]: the client tries again); where the file system keeps no times of
//! birth, a reused inode number is taken for the old object; and over [`Index`]'s bound the index starts anew.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::fs::{OFlags, RawDir, Statx};

use super::{attr, node::reopen, tree::Tree};
use crate::{FileKind, FsError, FsResult, Handle};

/// The longest chain of directories that is followed.
const MAX_DEPTH: usize = 1024;
/// A walk is not repeated before this many times its own duration, and this long at least.
const REST_FACTOR: u32 = 10;
const MIN_REST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
struct Place {
    dir: Handle,
    name: Box<[u8]>,
    /// The number of walks begun when this was noted.
    walks: u64,
}

#[derive(Debug, Default)]
struct Places {
    map: HashMap<Handle, Place>,
    /// Objects known to be gone, so that asking for them again does not cost another walk.
    gone: HashSet<Handle>,
    walks: u64,
}

struct LastWalk {
    may_repeat: Instant,
    /// Everything fitted into the index and could be read.
    complete: bool,
}

/// The places of at most a fixed number of objects.
pub(super) struct Index {
    places: Mutex<Places>,
    limit: usize,
    /// One walk at a time.
    walk: Mutex<Option<LastWalk>>,
}

impl Index {
    /// An empty index of at most `limit` places.
    pub(super) fn new(limit: usize) -> Self {
        Self { places: Mutex::default(), limit: limit.max(1), walk: Mutex::default() }
    }

    /// Notes a place. A full index starts anew (the next miss walks the export).
    pub(super) fn note(&self, handle: Handle, dir: Handle, name: &[u8]) {
        let mut places = self.places.lock();
        if places.map.len() >= self.limit && !places.map.contains_key(&handle) {
            tracing::warn!(limit = self.limit, "the index of places is full and starts anew");
            places.map.clear();
        }
        places.gone.remove(&handle);
        let walks = places.walks;
        places.map.insert(handle, Place { dir, name: name.into(), walks });
    }

    /// Notes that a name is gone; with `dead`, the object too.
    pub(super) fn forget(&self, handle: &Handle, dir: &Handle, name: &[u8], dead: bool) {
        let mut places = self.places.lock();
        if places.map.get(handle).is_some_and(|p| p.dir == *dir && *p.name == *name) {
            places.map.remove(handle);
        }
        if dead {
            self.bury(&mut places, *handle);
        }
    }

    fn bury(&self, places: &mut Places, handle: Handle) {
        if places.gone.len() >= self.limit {
            places.gone.clear();
        }
        places.gone.insert(handle);
    }

    /// Opens the object behind a handle, walking the export if it is not where it was.
    pub(super) fn open(&self, tree: &Tree, handle: &Handle) -> FsResult<(OwnedFd, Statx)> {
        if let Some(found) = self.open_in_place(tree, handle) {
            return Ok(found);
        }
        if self.places.lock().gone.contains(handle) {
            return Err(FsError::Stale);
        }
        let mut last = self.walk.lock();
        // Another call's walk may have found it while we waited.
        if let Some(found) = self.open_in_place(tree, handle) {
            return Ok(found);
        }
        if last.as_ref().is_some_and(|l| l.may_repeat > Instant::now()) {
            let complete = last.as_ref().is_some_and(|l| l.complete);
            let known = self.places.lock().map.contains_key(handle);
            return Err(if complete && !known { FsError::Stale } else { FsError::Jukebox });
        }
        let began = Instant::now();
        let complete = self.fill(tree)?;
        let rest = (began.elapsed() * REST_FACTOR).max(MIN_REST);
        *last = Some(LastWalk { may_repeat: Instant::now() + rest, complete });
        drop(last);
        match self.open_in_place(tree, handle) {
            Some(found) => Ok(found),
            None if complete => {
                self.bury(&mut self.places.lock(), *handle);
                Err(FsError::Stale)
            }
            None => Err(FsError::Jukebox),
        }
    }

    /// Follows the noted places from the root down, and makes sure that it is the object meant.
    fn open_in_place(&self, tree: &Tree, handle: &Handle) -> Option<(OwnedFd, Statx)> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut at = *handle;
        let mut fd: Option<std::sync::Arc<super::node::Node>> = None;
        while fd.is_none() {
            let place = self.places.lock().map.get(&at)?.clone();
            names.push(place.name);
            at = place.dir;
            // An ancestor that is open is the start; the root always is.
            fd = tree.cached(&at);
            if names.len() > MAX_DEPTH {
                return None;
            }
        }
        let start = fd?;
        let mut open: Option<(OwnedFd, Statx)> = None;
        for name in names.iter().rev() {
            let dir = open.as_ref().map_or(start.as_fd(), |(fd, _)| fd.as_fd());
            open = Some(tree.open_entry(dir, name).ok()?);
        }
        let (fd, st) = open?;
        (tree.handle_of(fd.as_fd(), &st).ok()? == *handle).then_some((fd, st))
    }

    /// Walks the export and notes every place. True if nothing was left out.
    fn fill(&self, tree: &Tree) -> FsResult<bool> {
        tracing::info!("walking the export to find handles again");
        let walks = {
            let mut places = self.places.lock();
            places.walks += 1;
            places.walks
        };
        let mut walk =
            Walk { tree, limit: self.limit, walks, found: HashMap::new(), todo: Vec::new(), complete: true };
        walk.todo.push((tree.root().handle(), Vec::new()));
        while let Some((dir, path)) = walk.todo.pop() {
            if walk.list(dir, &path).is_err() {
                walk.complete = false;
            }
        }
        let mut places = self.places.lock();
        // What was noted while we walked is newer than what we saw.
        let newer = std::mem::replace(&mut places.map, walk.found);
        places.map.extend(newer.into_iter().filter(|(_, p)| p.walks == walks));
        Ok(walk.complete)
    }
}

/// A walk over the export. Directories that are still to be listed are kept as paths, not as descriptors, of which
/// a wide directory would need too many.
struct Walk<'a> {
    tree: &'a Tree,
    limit: usize,
    walks: u64,
    found: HashMap<Handle, Place>,
    todo: Vec<(Handle, Vec<Box<[u8]>>)>,
    complete: bool,
}

impl Walk<'_> {
    fn list(&mut self, dir: Handle, path: &[Box<[u8]>]) -> FsResult<()> {
        let root = self.tree.root();
        let mut open: Option<OwnedFd> = None;
        for name in path {
            let at = open.as_ref().map_or(root.as_fd(), AsFd::as_fd);
            open = Some(self.tree.open_entry(at, name)?.0);
        }
        let at = open.as_ref().map_or(root.as_fd(), AsFd::as_fd);
        let fd = reopen(at, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut buf = Vec::with_capacity(32 << 10);
        let mut entries = RawDir::new(&fd, buf.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let Ok((child, st)) = self.tree.open_entry(fd.as_fd(), name) else { continue };
            let handle = self.tree.handle_of(child.as_fd(), &st)?;
            if self.found.len() >= self.limit {
                self.complete = false;
                return Ok(());
            }
            self.found.insert(handle, Place { dir, name: name.into(), walks: self.walks });
            if attr::kind(&st) == Ok(FileKind::Directory) {
                if path.len() < MAX_DEPTH {
                    let mut below = path.to_vec();
                    below.push(name.into());
                    self.todo.push((handle, below));
                } else {
                    self.complete = false;
                }
            }
        }
        Ok(())
    }
}
