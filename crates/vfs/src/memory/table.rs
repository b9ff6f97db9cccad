//! The inode table: from handle to inode in constant time.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::RwLock;

use super::inode::{Inode, InodeId};
use crate::{FsError, FsResult};

/// Parts of the table, each with its own lock, so that shards of the server seldom meet at one.
const PARTS: usize = 64;

/// One place of the table. Its generation counts how often it was filled, so that a handle of an earlier inode in
/// the same place is seen to be stale (64 bits: it never comes round).
#[derive(Default)]
struct Place {
    generation: u64,
    inode: Option<Arc<Inode>>,
}

#[derive(Default)]
struct Part {
    places: Vec<Place>,
    free: Vec<u32>,
}

/// Owns every inode; directories name them by [`InodeId`], so dropping a deep tree is a flat loop.
///
/// Its locks are leaves: none is held while another lock is taken.
pub(super) struct Table {
    parts: Box<[RwLock<Part>]>,
    next_part: AtomicUsize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { parts: (0..PARTS).map(|_| RwLock::default()).collect(), next_part: AtomicUsize::new(0) }
    }

    /// Puts in the inode that `make` makes of its new identity.
    pub(super) fn insert(&self, make: impl FnOnce(InodeId) -> Inode) -> FsResult<Arc<Inode>> {
        let which = self.next_part.fetch_add(1, Ordering::Relaxed) % PARTS;
        let mut part = self.parts[which].write();
        let at = match part.free.pop() {
            Some(at) => at as usize,
            None => {
                part.places.push(Place::default());
                part.places.len() - 1
            }
        };
        let index = u32::try_from(at * PARTS + which).map_err(|_| FsError::NoSpc)?;
        let place = &mut part.places[at];
        place.generation += 1;
        let inode = Arc::new(make(InodeId { index, generation: place.generation }));
        place.inode = Some(Arc::clone(&inode));
        Ok(inode)
    }

    /// The inode with this identity; [`FsError::Stale`] if it is gone.
    pub(super) fn get(&self, id: InodeId) -> FsResult<Arc<Inode>> {
        let part = self.parts[id.index as usize % PARTS].read();
        let place = part.places.get(id.index as usize / PARTS).ok_or(FsError::Stale)?;
        if place.generation != id.generation {
            return Err(FsError::Stale);
        }
        place.inode.clone().ok_or(FsError::Stale)
    }

    /// Takes an inode out, whose last link is gone.
    pub(super) fn remove(&self, id: InodeId) {
        let mut part = self.parts[id.index as usize % PARTS].write();
        let at = id.index as usize / PARTS;
        let Some(place) = part.places.get_mut(at).filter(|p| p.generation == id.generation) else { return };
        let gone = place.inode.take();
        if gone.is_some() {
            part.free.push((at) as u32);
        }
        drop(part);
        drop(gone);
    }
}
