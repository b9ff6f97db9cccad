//! Caches of free slots: one for each thread that uses an arena, in front of the arena's lock.
//!
//! As in the per-CPU caches of the Linux slab allocator and the thread caches of TCMalloc, a thread allocates
//! slots of the common classes from its own cache and frees them to it. An empty cache is refilled from the
//! arena with a batch of slots, which grows with each refill; a full one returns half of its slots. The arena
//! knows its caches, and can take all their slots back at any time ([`SlotCaches::drain`]).
//!
//! A cached slot is in use for the spans, and free memory for [`ArenaStats::in_use`](crate::ArenaStats).
//!
//! # Locks
//!
//! A thread locks its own cache, for some instructions, and others lock it only when they take its slots
//! back. The arena's lock comes before the lock of a cache.

use std::cell::RefCell;

use crate::{
    span::{AllocatedSlot, CLASSES, class_bytes},
    sync::{Arc, AtomicU32, Mutex, Ordering},
};

/// Number of classes whose slots are cached: up to a quarter of a span (1 MiB).
pub(crate) const CACHED_CLASSES: usize = CLASSES - 2;
/// Maximum size in bytes of the cached slots of a class, if there are several.
const MAX_CLASS_BYTES: usize = 512 << 10;
/// Maximum number of cached slots of a class.
const MAX_SLOTS: usize = 32;

/// Maximum number of cached slots of `class`.
pub(crate) const fn capacity(class: usize) -> usize {
    match MAX_CLASS_BYTES / class_bytes(class) {
        0 => 1,
        slots if slots > MAX_SLOTS => MAX_SLOTS,
        slots => slots,
    }
}

/// Cached slots of one class.
struct ClassSlots {
    free: Vec<AllocatedSlot>,
    /// Number of slots of the next refill.
    batch: usize,
}

/// The free slots that one thread has of an arena.
pub(crate) struct SlotCache {
    /// Number of slots; changed under the lock.
    held: AtomicU32,
    classes: Mutex<[ClassSlots; CACHED_CLASSES]>,
}

impl SlotCache {
    pub(crate) fn new() -> Self {
        let classes =
            std::array::from_fn(|class| ClassSlots { free: Vec::with_capacity(capacity(class)), batch: 1 });
        Self { held: AtomicU32::new(0), classes: Mutex::new(classes) }
    }

    /// Counts slots added or removed. Only the holder of the lock changes the number.
    fn count(&self, change: impl FnOnce(u32) -> u32) {
        self.held.store(change(self.held.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Takes the most recently freed slot of `class`.
    pub(crate) fn pop(&self, class: usize) -> Option<AllocatedSlot> {
        let mut classes = self.classes.lock();
        let slot = classes[class].free.pop()?;
        self.count(|held| held - 1);
        Some(slot)
    }

    /// Keeps a freed slot of `class` if there is space, and `enabled` still has the class. Returns whether it
    /// was kept.
    pub(crate) fn push(&self, class: usize, slot: AllocatedSlot, enabled: &EnabledClasses) -> bool {
        let mut classes = self.classes.lock();
        let free = &mut classes[class].free;
        let kept = enabled.contains(class) && free.len() < capacity(class);
        if kept {
            free.push(slot);
            self.count(|held| held + 1);
        }
        kept
    }

    /// Adds slots from `take` after an allocation of `class` found none: a batch less the allocated one.
    pub(crate) fn refill(&self, class: usize, take: impl FnMut() -> Option<AllocatedSlot>) {
        let mut classes = self.classes.lock();
        let ClassSlots { free, batch } = &mut classes[class];
        let before = free.len();
        free.extend(std::iter::from_fn(take).take(*batch - 1));
        let added = free.len() - before;
        *batch = (2 * *batch).min((capacity(class) / 2).max(1));
        self.count(|held| held + added as u32);
    }

    /// Passes the half of the slots of `class` that has not been used for longest to `free`.
    pub(crate) fn drain_half(&self, class: usize, free: impl FnMut(AllocatedSlot)) {
        let mut classes = self.classes.lock();
        let slots = &mut classes[class].free;
        let half = slots.len() / 2;
        slots.drain(..half).for_each(free);
        self.count(|held| held - half as u32);
    }

    /// Passes all slots to `free`, with their class. Takes no lock if there is none.
    fn drain(&self, free: impl FnMut(usize, AllocatedSlot)) {
        if self.held.load(Ordering::Relaxed) != 0 {
            self.lock_and_drain(free);
        }
    }

    fn lock_and_drain(&self, mut free: impl FnMut(usize, AllocatedSlot)) {
        let mut classes = self.classes.lock();
        for (class, slots) in classes.iter_mut().enumerate() {
            slots.free.drain(..).for_each(|slot| free(class, slot));
            slots.batch = 1;
        }
        self.count(|_| 0);
    }

    /// Whether this is the only reference: the thread has ended if it is the arena's, which the arena's lock
    /// protects; the arena was dropped if it is the thread's.
    fn is_unused(this: &Arc<Self>) -> bool {
        Arc::strong_count(this) == 1
    }
}

/// The caches of an arena; protected by its lock.
#[derive(Default)]
pub(crate) struct SlotCaches(Vec<Arc<SlotCache>>);

impl SlotCaches {
    /// A cache for the calling thread: that of an ended thread, if there is one.
    pub(crate) fn attach(&mut self) -> Arc<SlotCache> {
        if let Some(unused) = self.0.iter().find(|cache| SlotCache::is_unused(cache)) {
            return Arc::clone(unused);
        }
        let new = Arc::new(SlotCache::new());
        self.0.push(Arc::clone(&new));
        new
    }

    /// Passes the slots of all caches to `free`, with their class.
    pub(crate) fn drain(&self, mut free: impl FnMut(usize, AllocatedSlot)) {
        self.0.iter().for_each(|cache| cache.drain(&mut free));
    }

    /// Drops the caches of ended threads, after their slots.
    pub(crate) fn remove_unused(&mut self, mut free: impl FnMut(usize, AllocatedSlot)) {
        self.0.retain(|cache| {
            let unused = SlotCache::is_unused(cache);
            if unused {
                cache.lock_and_drain(&mut free); // The thread may have freed slots since the last check.
            }
            !unused
        });
    }

    /// Size of the cached slots in bytes, while all caches are locked.
    pub(crate) fn bytes(&self) -> usize {
        let locked: Vec<_> = self.0.iter().map(|cache| cache.classes.lock()).collect();
        let classes = locked.iter().flat_map(|classes| classes.iter().enumerate());
        classes.map(|(class, slots)| slots.free.len() * class_bytes(class)).sum()
    }

    /// Number of caches.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The classes whose slots may be cached at present: a bit for each. Changed under the arena's lock.
pub(crate) struct EnabledClasses(AtomicU32);

impl EnabledClasses {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const ALL: u32 = (1 << CACHED_CLASSES) - 1;

    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(Self::NONE))
    }

    pub(crate) fn contains(&self, class: usize) -> bool {
        self.0.load(Ordering::Relaxed) >> class & 1 != 0
    }

    /// Sets the classes; returns whether one of the previous ones is missing.
    pub(crate) fn replace(&self, classes: u32) -> bool {
        let before = self.0.load(Ordering::Relaxed);
        if before != classes {
            self.0.store(classes, Ordering::Relaxed);
        }
        before & !classes != 0
    }
}

/// The cache of this thread for each arena that it has used, with the ID of the arena.
type ThreadCaches = RefCell<Vec<(u64, Arc<SlotCache>)>>;

#[cfg(not(loom))]
thread_local! {
    static CACHES: ThreadCaches = const { RefCell::new(Vec::new()) };
}
#[cfg(loom)]
loom::thread_local! {
    static CACHES: ThreadCaches = RefCell::new(Vec::new());
}

/// Calls `use_cache` with this thread's cache for the arena with this ID. At the thread's first use of the
/// arena, `attach` provides the cache. `None` on a thread that is exiting.
pub(crate) fn with_own<T>(
    arena: u64,
    attach: impl FnOnce() -> Arc<SlotCache>,
    use_cache: impl FnOnce(&SlotCache) -> T,
) -> Option<T> {
    let with = |caches: &ThreadCaches| {
        let mut caches = caches.borrow_mut();
        let at = caches.iter().position(|(id, _)| *id == arena).unwrap_or_else(|| {
            caches.retain(|(_, cache)| !SlotCache::is_unused(cache)); // Their arenas were dropped.
            caches.push((arena, attach()));
            caches.len() - 1
        });
        use_cache(&caches[at].1)
    };
    CACHES.try_with(with).ok()
}
