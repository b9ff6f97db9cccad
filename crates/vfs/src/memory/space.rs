//! Accounting of heap memory and of the number of objects.
//!
//! Each object and each name is charged to the quota of the content, so that one limit covers all memory of a
//! file system. The constants are upper bounds of measured heap memory, checked by `tests/heap.rs`:
//! allocation sizes after rounding by the allocator, and containers at their worst fill level.

use std::sync::atomic::{AtomicU64, Ordering};

use millrace_buffer::Quota;

use super::inode::Body;
use crate::{FsError, FsResult};

/// Heap memory of a directory entry without the bytes of its name: allocation of the name, and entries in two
/// maps.
const ENTRY_BYTES: u64 = 304;
/// Heap memory of an object: inode and table slot.
const OBJECT_BYTES: u64 = 320;
/// Additional heap memory of a directory: its maps, which are allocated with the first entry.
const DIRECTORY_BYTES: u64 = 768;
/// Heap memory of a symbolic link target, in addition to its bytes.
const TARGET_BYTES: u64 = 32;
/// Charge of the smallest object, with a name of one byte.
pub(super) const MIN_OBJECT_BYTES: u64 = OBJECT_BYTES + ENTRY_BYTES + 1;

/// Charge of an entry.
pub(super) fn entry_bytes(name: &[u8]) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

/// Charge of an object without its content and names. That of a file depends on its content.
pub(super) fn object_bytes(body: &Body) -> u64 {
    let more = match body {
        Body::Directory(_) => DIRECTORY_BYTES,
        Body::Symlink(target) => TARGET_BYTES + target.len() as u64,
        Body::File(content) => content.map_charge(),
        Body::Device(..) | Body::Plain => 0,
    };
    OBJECT_BYTES + more
}

/// Charges `bytes` of heap memory; [`FsError::NoSpc`] if the quota is exhausted.
pub(super) fn charge(quota: &Quota, bytes: u64) -> FsResult<()> {
    quota.charge(bytes).map_err(|_| FsError::NoSpc)
}

/// The limited number of objects.
pub(super) struct ObjectCount {
    count: AtomicU64,
    limit: u64,
}

impl ObjectCount {
    pub(super) fn new(limit: u64) -> Self {
        Self { count: AtomicU64::new(0), limit }
    }

    /// Increments the count; [`FsError::NoSpc`] at the limit.
    pub(super) fn add(&self) -> FsResult<()> {
        let grown = |count: u64| (count < self.limit).then_some(count + 1);
        let added = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        added.map(drop).map_err(|_| FsError::NoSpc)
    }

    /// Decrements the count.
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
