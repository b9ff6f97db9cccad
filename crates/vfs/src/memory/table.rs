//! The inode table: finds an inode by handle in constant time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use millrace_runtime::sync::RwLock;

use super::inode::{Inode, InodeId};
use crate::{FsError, FsResult};

/// Number of table shards, each with its own lock, to reduce contention.
const SHARDS: usize = 64;

/// A slot. Its generation is incremented at each use, so that handles of earlier inodes are recognized as
/// stale (64 bits do not wrap).
#[derive(Default)]
struct Slot {
    generation: u64,
    inode: Option<Arc<Inode>>,
}

#[derive(Default)]
struct Shard {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// Owns all inodes; directories refer to them by [`InodeId`], so dropping a deep tree needs no recursion.
///
/// Its locks are leaf locks: no other lock is taken while one is held.
pub(super) struct Table {
    shards: Box<[RwLock<Shard>]>,
    next_shard: AtomicUsize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| RwLock::default()).collect(), next_shard: AtomicUsize::new(0) }
    }

    /// Inserts the inode that `make` creates for the new ID.
    pub(super) fn insert(&self, make: impl FnOnce(InodeId) -> Inode) -> FsResult<Arc<Inode>> {
        let shard_index = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.shards[shard_index].write();
        let at = match shard.free.pop() {
            Some(at) => at as usize,
            None => {
                shard.slots.push(Slot::default());
                shard.slots.len() - 1
            }
        };
        let index = u32::try_from(at * SHARDS + shard_index).map_err(|_| FsError::NoSpc)?;
        let slot = &mut shard.slots[at];
        slot.generation += 1;
        let inode = Arc::new(make(InodeId { index, generation: slot.generation }));
        slot.inode = Some(Arc::clone(&inode));
        Ok(inode)
    }

    /// Returns an inode; [`FsError::Stale`] if it has been removed.
    pub(super) fn get(&self, id: InodeId) -> FsResult<Arc<Inode>> {
        let shard = self.shards[id.index as usize % SHARDS].read();
        let slot = shard.slots.get(id.index as usize / SHARDS).ok_or(FsError::Stale)?;
        if slot.generation != id.generation {
            return Err(FsError::Stale);
        }
        slot.inode.clone().ok_or(FsError::Stale)
    }

    /// Removes an inode after its last link is gone.
    pub(super) fn remove(&self, id: InodeId) {
        let mut shard = self.shards[id.index as usize % SHARDS].write();
        let at = id.index as usize / SHARDS;
        let Some(slot) = shard.slots.get_mut(at).filter(|p| p.generation == id.generation) else { return };
        let removed = slot.inode.take();
        if removed.is_some() {
            shard.free.push((at) as u32);
        }
        drop(shard);
        drop(removed);
    }
}
