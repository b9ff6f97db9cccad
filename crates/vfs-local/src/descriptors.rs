//! Shares the process's file descriptors (RLIMIT_NOFILE) among the caches of all exports.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use millrace_vfs::{FsError, FsResult};
use parking_lot::Mutex;
use rustix::{io::Errno, process::Resource};

use super::node::NodeCache;

/// Maximum descriptors of an open object: O_PATH, reading, writing, and stable writes.
const PER_OBJECT: u64 = 4;
/// Minimum capacity of a cache.
const MIN_OBJECTS: usize = 8;
/// Maximum number of files without links that an export keeps open, however many descriptors there are.
const MAX_KEPT_FILES: usize = 1024;
/// Maximum attempts after closing cached descriptors, which other threads may use up first.
const MAX_ATTEMPTS: usize = 4;
/// Number of delays when opening an object just created: 1 ms to 512 ms, one second in total.
const MAX_RETRIES: u32 = 10;

static CACHES: Mutex<Vec<Weak<NodeCache>>> = Mutex::new(Vec::new());

/// Registers a cache.
pub(super) fn register(cache: &Arc<NodeCache>) {
    CACHES.lock().push(Arc::downgrade(cache));
    share();
}

/// Sets the capacity of each cache: together they use half of the limit; the other half is for connections.
pub(super) fn share() {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let caches = caches();
    let part = limit / 2 / PER_OBJECT / (caches.len().max(1) as u64);
    for cache in caches {
        cache.limit(usize::try_from(part).unwrap_or(usize::MAX).max(MIN_OBJECTS));
    }
}

/// Maximum number of files without links that an export keeps open.
pub(super) fn kept_files() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 8 / PER_OBJECT).unwrap_or(usize::MAX).min(MAX_KEPT_FILES)
}

fn caches() -> Vec<Arc<NodeCache>> {
    let mut all = CACHES.lock();
    all.retain(|c| c.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// Opens a descriptor. If none is left, closes cached ones and retries.
pub(super) fn with_free_descriptor<T>(open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..MAX_ATTEMPTS {
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

/// Opens an object that was just created; waits for descriptors used by calls in progress.
///
/// JUKEBOX would make the client retransmit the call, which would then fail because the object exists.
pub(super) fn with_free_descriptor_retrying<T>(open: impl Fn() -> FsResult<T>) -> FsResult<T> {
    for n in 0..MAX_RETRIES {
        match open() {
            Err(FsError::Jukebox) => std::thread::sleep(Duration::from_millis(1 << n)),
            other => return other,
        }
    }
    open()
}
