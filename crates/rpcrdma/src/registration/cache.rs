//! Keeps a slab of buffers registered.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering,
};

use buffer::{Arena, Buffer, OutOfMemory};
use parking_lot::Mutex;
use rdma::{DomainRef, Memory, MemoryRegion};

use super::{Counts, Registration, RegistrationStats};

/// The `cache` strategy: buffers of a few size classes that are registered when they are first used and stay so.
///
/// [`Registration::take`] hands out a registered buffer where one of the size class is free;
/// [`Registration::give_back`] keeps it for the next operation, up to a limit of bytes. Memory that did not come
/// from the slab is registered for its operation alone, as [`super::Dynamic`] does. Buffers kept here count as in use
/// in their arena.
pub struct Cache {
    counts: Counts,
    slab: Mutex<Slab>,
    limit: usize,
}

#[derive(Default)]
struct Slab {
    /// Free buffers by capacity.
    free: HashMap<usize, Vec<Buffer>>,
    free_bytes: usize,
    /// Addresses and capacities of the slab's memory, free or handed out.
    members: HashSet<(usize, usize)>,
}

impl Cache {
    /// A cache that keeps at most `limit` bytes of free buffers.
    pub fn new(limit: usize) -> Self {
        Self { counts: Counts::default(), slab: Mutex::default(), limit }
    }

    /// Lets go of all free buffers.
    pub fn clear(&self) {
        let mut slab = self.slab.lock();
        let free = std::mem::take(&mut slab.free);
        slab.free_bytes = 0;
        for b in free.values().flatten() {
            slab.members.remove(&key(b));
            self.counts.deregistrations.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_member(&self, memory: &Memory) -> bool {
        match memory {
            Memory::Owned(b) => self.slab.lock().members.contains(&key(b)),
            Memory::Shared(views) => {
                let slab = self.slab.lock();
                let known = |v: &buffer::View| {
                    slab.members.contains(&(v.address().wrapping_sub(v.offset()), v.capacity()))
                };
                !views.is_empty() && views.iter().all(known)
            }
        }
    }
}

fn key(b: &Buffer) -> (usize, usize) {
    (b.address(), b.capacity())
}

impl Registration for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn take(&self, arena: &Arena, len: usize) -> Result<Buffer, OutOfMemory> {
        let class = len.max(512).next_power_of_two();
        let mut slab = self.slab.lock();
        if let Some(mut b) = slab.free.get_mut(&class).and_then(Vec::pop) {
            slab.free_bytes -= b.capacity();
            b.set_len(len);
            return Ok(b);
        }
        let b = arena.alloc(len)?;
        if slab.members.insert(key(&b)) {
            self.counts.registered(b.capacity());
        }
        Ok(b)
    }

    fn give_back(&self, buffer: Buffer) {
        let mut slab = self.slab.lock();
        let bytes = buffer.capacity();
        if !slab.members.contains(&key(&buffer)) {
            return;
        }
        if slab.free_bytes + bytes > self.limit {
            slab.members.remove(&key(&buffer));
            self.counts.deregistrations.fetch_add(1, Ordering::Relaxed);
            return;
        }
        slab.free_bytes += bytes;
        slab.free.entry(bytes).or_default().push(buffer);
    }

    fn register(&self, domain: &DomainRef, memory: Memory) -> MemoryRegion {
        if self.is_member(&memory) {
            self.counts.hits.fetch_add(1, Ordering::Relaxed);
        } else {
            self.counts.registered(memory.len());
        }
        MemoryRegion::new(domain.clone(), memory)
    }

    fn deregister(&self, region: MemoryRegion) -> Memory {
        let memory = region.into_memory();
        if !self.is_member(&memory) {
            self.counts.deregistrations.fetch_add(1, Ordering::Relaxed);
        }
        memory
    }

    fn stats(&self) -> RegistrationStats {
        self.counts.snapshot(self.slab.lock().free_bytes as u64)
    }
}

#[cfg(test)]
mod tests {
    use buffer::ArenaConfig;

    use super::*;

    #[test]
    fn a_buffer_given_back_is_handed_out_again_still_registered() {
        let arena = Arena::new(ArenaConfig { limit: 1 << 22, huge_pages: false });
        let cache = Cache::new(10_000);
        let b = cache.take(&arena, 5000).unwrap();
        let at = b.address();
        cache.give_back(b);
        assert_eq!(cache.stats().kept_bytes, 8192);
        let b = cache.take(&arena, 8000).unwrap();
        assert_eq!((b.address(), b.len(), cache.stats().registrations), (at, 8000, 1));
        let other = cache.take(&arena, 8000).unwrap();
        cache.give_back(b);
        cache.give_back(other); // Over the limit: let go.
        assert_eq!((cache.stats().kept_bytes, arena.stats().in_use), (8192, 8192));
        cache.clear();
        assert_eq!((cache.stats().kept_bytes, arena.stats().in_use), (0, 0));
        assert_eq!(cache.stats().deregistrations, 2);
    }
}
