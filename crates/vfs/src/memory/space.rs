//! What a file system in memory counts: bytes, on the heap too, and objects.
//!
//! Every object and every name is charged to the quota that content is charged to, so that one limit holds for all the
//! memory that a file system uses. The constants are upper bounds of measured heap memory, which `tests/heap.rs` checks:
//! allocations as the allocator rounds them up, and containers at their least favourable fill.

use std::sync::atomic::{AtomicU64, Ordering};

use millrace_buffer::Quota;

use super::inode::Body;
use crate::{FsError, FsResult};

/// Heap bytes of an entry of a directory, beside the bytes of its name: the name's allocation, and its places in the two
/// maps (by name and by cookie).
const ENTRY_BYTES: u64 = 304;
/// Heap bytes of an object: its inode, and its place in the table.
const OBJECT_BYTES: u64 = 320;
/// Further heap bytes of a directory: its maps, which take this with the first entry already.
const DIRECTORY_BYTES: u64 = 768;
/// Heap bytes of the target of a symbolic link, beside its own.
const TARGET_BYTES: u64 = 32;
/// What the smallest object takes: one with a name of one byte.
pub(super) const SMALLEST_OBJECT: u64 = OBJECT_BYTES + ENTRY_BYTES + 1;

/// Bytes charged for an entry of this name.
pub(super) fn entry_bytes(name: &[u8]) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

/// Bytes charged for an object without its content and its names.
pub(super) fn object_bytes(body: &Body) -> u64 {
    let more = match body {
        Body::Directory(_) => DIRECTORY_BYTES,
        Body::Symlink(target) => TARGET_BYTES + target.len() as u64,
        Body::File(_) | Body::Device(..) | Body::Plain => 0,
    };
    OBJECT_BYTES + more
}

/// Charges `bytes` of heap memory, or nothing and [`FsError::NoSpc`].
pub(super) fn charge(quota: &Quota, bytes: u64) -> FsResult<()> {
    quota.charge(bytes).map_err(|_| FsError::NoSpc)
}

/// The number of objects, which is limited.
pub(super) struct Objects {
    count: AtomicU64,
    limit: u64,
}

impl Objects {
    pub(super) fn new(limit: u64) -> Self {
        Self { count: AtomicU64::new(0), limit }
    }

    /// Counts one more, or gives [`FsError::NoSpc`].
    pub(super) fn add(&self) -> FsResult<()> {
        let grown = |count: u64| (count < self.limit).then_some(count + 1);
        let added = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        added.map(drop).map_err(|_| FsError::NoSpc)
    }

    /// Counts one less.
    pub(super) fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.count())
    }
}
