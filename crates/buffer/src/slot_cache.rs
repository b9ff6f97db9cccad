//! Caches of free slots: one for each thread, in front of the arena's lock.
//!
//! As in the thread caches of TCMalloc, a thread allocates small slots from its own cache and frees them to it.
//! An allocation that finds the cache empty takes some more slots from the spans, twice as many each time; a
//! full cache returns half of its slots. So two threads of which one allocates what the other frees take the
//! arena's lock once for many slots.
//!
//! A cached slot is in use for the spans, and free memory for [`ArenaStats::in_use`](crate::ArenaStats). As a slot in
//! use, it holds a strong reference to the arena, so that the allocations from a cache and the frees to it do not change
//! the number of references. The last handle of the arena frees the slots and closes the caches.
//!
//! # Locks
//!
//! A thread locks its own cache, for some instructions. Others lock it when memory is short or trimmed, and for
//! statistics; they have the arena's lock. While they have that of its cache, a thread uses the spans instead, so it
//! waits for the arena's lock only. An allocation fails only while it has the locks of the arena and of all caches,
//! and after it has returned all cached slots to the spans, so limits are those of an arena without caches.

use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::time::Duration;

use crate::{
    span::{AllocatedSlot, BLOCK_CLASS, class_bytes},
    sync::{TryMutex, TryMutexGuard},
};

/// Classes below this one are cached. Slots of one block are not, because their users allocate slots of block spans
/// ([`Quota::exchange`](crate::Quota::exchange)); with larger ones, transferring the data costs more than a lock.
pub(crate) const CACHED_CLASSES: usize = BLOCK_CLASS;
/// Maximum size in bytes of the cached slots of a class.
const MAX_CLASS_BYTES: usize = 256 << 10;
/// Maximum number of cached slots of a class.
const MAX_SLOTS: usize = 64;
/// Attempts to lock a cache before its thread counts as suspended.
#[cfg(not(loom))]
const SPINS: usize = 100;
/// Time between later attempts.
#[cfg(not(loom))]
const SUSPENDED: Duration = Duration::from_micros(50);
/// Number of caches. Threads beyond this number have none.
const CACHES: usize = if cfg!(loom) { 4 } else { u64::BITS as usize };

/// Maximum number of cached slots of `class`.
pub(crate) const fn capacity(class: usize) -> usize {
    let slots = MAX_CLASS_BYTES / class_bytes(class);
    if slots < MAX_SLOTS { slots } else { MAX_SLOTS }
}

/// Cached slots of one class, the most recently freed last.
#[derive(Default)]
struct ClassSlots {
    free: Vec<AllocatedSlot>,
    /// Number of slots that the next refill adds.
    batch: usize,
}

/// The free slots of one thread.
#[derive(Default)]
pub(crate) struct SlotCache {
    classes: [ClassSlots; CACHED_CLASSES],
    /// Whether no slot is added: a task waits for memory, or the arena has no handles any more.
    closed: bool,
}

impl SlotCache {
    /// Takes the most recently freed slot of `class`.
    pub(crate) fn pop(&mut self, class: usize) -> Option<AllocatedSlot> {
        self.classes[class].free.pop()
    }

    /// Keeps a freed slot of `class` if there is space. Returns whether it was kept.
    pub(crate) fn push(&mut self, class: usize, slot: AllocatedSlot) -> bool {
        let free = &mut self.classes[class].free;
        let kept = free.len() < capacity(class) && !self.closed;
        if kept {
            free.push(slot);
        }
        kept
    }

    /// Adds slots from `take` after an allocation of `class` found none.
    pub(crate) fn refill(&mut self, class: usize, take: impl FnMut() -> Option<AllocatedSlot>) {
        let ClassSlots { free, batch } = &mut self.classes[class];
        let room = batch.saturating_sub(free.len());
        free.extend(std::iter::from_fn(take).take(room));
        *batch = (2 * *batch).clamp(1, capacity(class) / 2);
    }

    /// Passes the half of the slots of `class` that has not been used for longest to `free`.
    pub(crate) fn drain_half(&mut self, class: usize, free: impl FnMut(AllocatedSlot)) {
        let slots = &mut self.classes[class].free;
        slots.drain(..slots.len() / 2).for_each(free);
    }

    fn drain(&mut self, mut free: impl FnMut(usize, AllocatedSlot)) {
        for (class, slots) in self.classes.iter_mut().enumerate() {
            slots.free.drain(..).for_each(|slot| free(class, slot));
            slots.batch = 0;
        }
    }

    fn bytes(&self) -> usize {
        self.classes.iter().enumerate().map(|(class, slots)| slots.free.len() * class_bytes(class)).sum()
    }
}

/// A cache in separate cache lines.
#[repr(align(128))]
struct Aligned(TryMutex<SlotCache>);

/// The caches of an arena.
pub(crate) struct SlotCaches(Box<[Aligned]>);

impl SlotCaches {
    pub(crate) fn new() -> Self {
        Self((0..CACHES).map(|_| Aligned(TryMutex::new(SlotCache::default()))).collect())
    }

    /// The locked cache of this thread, if it has one, `class` is cached, and no other thread has locked it.
    pub(crate) fn own(&self, class: usize) -> Option<TryMutexGuard<'_, SlotCache>> {
        if class >= CACHED_CLASSES {
            return None;
        }
        let index = NUMBER.try_with(|number| number.0).ok()?;
        self.0.get(index)?.0.try_lock()
    }

    /// Locks all caches. The caller has the arena's lock, and no lock of a cache.
    pub(crate) fn lock_all(&self) -> LockedCaches<'_> {
        LockedCaches(self.0.iter().map(|cache| lock(&cache.0)).collect())
    }
}

/// Locks a cache, which its thread releases after some instructions.
#[cfg(not(loom))]
fn lock(cache: &TryMutex<SlotCache>) -> TryMutexGuard<'_, SlotCache> {
    for _ in 0..SPINS {
        if let Some(cache) = cache.try_lock() {
            return cache;
        }
        std::hint::spin_loop();
    }
    loop {
        // The thread is suspended. It may have a lower priority than this one, so a yield would not suffice.
        std::thread::sleep(SUSPENDED);
        if let Some(cache) = cache.try_lock() {
            return cache;
        }
    }
}

#[cfg(loom)]
fn lock(cache: &TryMutex<SlotCache>) -> TryMutexGuard<'_, SlotCache> {
    cache.lock()
}

/// All caches of an arena at one moment: none gets or loses a slot.
pub(crate) struct LockedCaches<'a>(Vec<TryMutexGuard<'a, SlotCache>>);

impl LockedCaches<'_> {
    /// Passes all slots to `free`, with their class.
    pub(crate) fn drain(&mut self, mut free: impl FnMut(usize, AllocatedSlot)) {
        self.0.iter_mut().for_each(|cache| cache.drain(&mut free));
    }

    /// Whether the caches refuse slots from now on.
    pub(crate) fn set_closed(&mut self, closed: bool) {
        self.0.iter_mut().for_each(|cache| cache.closed = closed);
    }

    /// Size of the slots in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|cache| cache.bytes()).sum()
    }
}

/// The number of a thread: the lowest one that no other thread has, and the index of its cache in each arena.
/// The next thread with the number finds the slots that this one leaves behind.
struct ThreadNumber(usize);

// A bit for each thread number in use. Relaxed ordering suffices, because locks protect the caches.
#[cfg(not(loom))]
static NUMBERS: AtomicU64 = AtomicU64::new(0);
#[cfg(loom)]
loom::lazy_static! {
    // One static per execution of loom, so that executions are independent.
    static ref NUMBERS: AtomicU64 = AtomicU64::new(0);
}

impl ThreadNumber {
    fn new() -> Self {
        let take = |numbers: u64| (numbers != u64::MAX).then(|| numbers | (numbers + 1));
        let before = NUMBERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Self(before.map_or(usize::MAX, |numbers| numbers.trailing_ones() as usize))
    }
}

#[cfg(not(loom))] // Loom drops its statics before the values of the first thread.
impl Drop for ThreadNumber {
    fn drop(&mut self) {
        if let Some(bit) = u32::try_from(self.0).ok().and_then(|number| 1u64.checked_shl(number)) {
            NUMBERS.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

#[cfg(not(loom))]
thread_local! {
    static NUMBER: ThreadNumber = ThreadNumber::new();
}
#[cfg(loom)]
loom::thread_local! {
    static NUMBER: ThreadNumber = ThreadNumber::new();
}
