//! Sharing the process's descriptors (RLIMIT_NOFILE) among the caches of all exports.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::{io::Errno, process::Resource};

use super::node::NodeCache;
use crate::{FsError, FsResult};

/// Descriptors that an open object may hold: its path, one for reading, one for writing and one for stable writes.
const PER_OBJECT: u64 = 4;
/// Objects that a cache may always keep.
const MIN_OBJECTS: usize = 8;
/// How often an open is tried again after cached descriptors were closed; other threads may take them first.
const TRIES: usize = 4;
/// Pauses before the attempts to open an object that was just made: 1 ms to 512 ms, a second in all.
const PAUSES: u32 = 10;

static CACHES: Mutex<Vec<Weak<NodeCache>>> = Mutex::new(Vec::new());

/// Adds a cache to those that share the descriptors.
pub(super) fn register(cache: &Arc<NodeCache>) {
    CACHES.lock().push(Arc::downgrade(cache));
    share();
}

/// Gives each cache its part: all together take half of the limit, and leave the other half to connections.
pub(super) fn share() {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let caches = caches();
    let part = limit / 2 / PER_OBJECT / (caches.len().max(1) as u64);
    for cache in caches {
        cache.limit(usize::try_from(part).unwrap_or(usize::MAX).max(MIN_OBJECTS));
    }
}

fn caches() -> Vec<Arc<NodeCache>> {
    let mut all = CACHES.lock();
    all.retain(|c| c.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// Opens a descriptor. When there is none left, closes cached ones and tries again.
pub(super) fn opening<T>(open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..TRIES {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {}
            other => return other,
        }
        let closed: usize = caches().iter().map(|c| c.make_room()).sum();
        if closed == 0 {
            break;
        }
    }
    open()
}

/// Opens an object that was just made; waits for descriptors that calls in progress hold.
///
/// The client repeats a call that is answered with JUKEBOX, and would find that the object exists already.
pub(super) fn opening_made<T>(open: impl Fn() -> FsResult<T>) -> FsResult<T> {
    for n in 0..PAUSES {
        match open() {
            Err(FsError::Jukebox) => std::thread::sleep(Duration::from_millis(1 << n)),
            other => return other,
        }
    }
    open()
}
