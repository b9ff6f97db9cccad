//! The arena: mapped memory, divided into slots, with limits.

#![allow(unsafe_code)] // One block: creating a buffer from a slot.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    Buffer, Quota, View,
    block_spans::BlockSpans,
    class_spans::ClassSpans,
    mapping::{SPAN_BYTES, SpanRef},
    slot::Slot,
    slot_cache::{self, EnabledClasses, SlotCache, SlotCaches},
    span::{AllocatedSlot, BLOCK_CLASS, Layout, Span, class_bytes, class_of},
    sync::{Arc, Mutex, MutexGuard},
};

/// Interval at which [`Arena::trim`] is to be called. A load that pauses for less than this keeps its memory;
/// after a load has ended, its memory is returned within twice this time.
pub const TRIM_INTERVAL: Duration = Duration::from_secs(5);

/// The adoptable reserve (see [`Arena`]) is this fraction of the limit for transient memory.
const RESERVE_FRACTION: usize = 8;

/// Slots are cached (see [`Arena`]) while this fraction of the spans for transient buffers is free.
const FREE_FRACTION: usize = 8;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Configuration of an [`Arena`].
#[derive(Debug, Clone)]
pub struct ArenaConfig {
    /// Maximum memory mapped for transient buffers, in bytes (rounded up to a multiple of [`SPAN_BYTES`]).
    pub limit: usize,
    /// Ask the kernel for transparent huge pages.
    pub huge_pages: bool,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        Self { limit: 1 << 30, huge_pages: true }
    }
}

/// The arena cannot provide a buffer of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot allocate a buffer of {wanted} bytes (arena limit: {limit} bytes); raise the memory limit, or reduce credits, transfer sizes or the number of clients"
)]
pub struct OutOfMemory {
    /// Requested bytes.
    pub wanted: usize,
    /// The arena's limit in bytes.
    pub limit: usize,
}

/// Memory use of an arena.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Memory mapped, in bytes.
    pub mapped: usize,
    /// Slots in use, in bytes, including stored ones.
    pub in_use: usize,
    /// The part of `in_use` charged to quotas.
    pub stored: usize,
    /// Maximum of `in_use` so far, including the free slots that were cached for threads.
    pub peak: usize,
    /// Limit of transient memory, in bytes.
    pub limit: usize,
    /// The adoptable reserve in bytes, in addition to `limit`; 0 without quotas.
    pub reserve: usize,
    /// Sum of all quotas in bytes: the limit of stored memory.
    pub quotas: usize,
}

/// Number of mapped spans of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanCount {
    /// Slot size in bytes; `None` for block spans, whose slots have 4 to 64 KiB.
    pub slot_bytes: Option<usize>,
    /// Number of spans of [`SPAN_BYTES`].
    pub spans: usize,
}

pub(crate) struct ArenaState {
    pub(crate) classes: ClassSpans,
    pub(crate) blocks: BlockSpans,
    caches: SlotCaches,
    peak: usize,
}

impl ArenaState {
    /// Memory in use in bytes, including cached slots.
    fn allocated(&self) -> usize {
        self.classes.in_use() + self.blocks.transient() + self.blocks.stored()
    }

    pub(crate) fn update_peak(&mut self) {
        self.peak = self.peak.max(self.allocated());
    }

    /// The classes whose slots may be cached: none while less than a fraction of the spans is free. Blocks
    /// are not cached while there are quotas, because they come from block spans then.
    fn cacheable(&self) -> u32 {
        let (free, spans) = (self.classes.free_spans(), self.classes.max_spans());
        if free == 0 || free * FREE_FRACTION < spans {
            EnabledClasses::NONE
        } else if self.blocks.reserve() > 0 {
            EnabledClasses::ALL & !(1 << BLOCK_CLASS)
        } else {
            EnabledClasses::ALL
        }
    }

    /// Frees all cached slots.
    fn drain_caches(&mut self) {
        let Self { classes, caches, .. } = self;
        caches.drain(|class, slot| classes.free(class, slot.span_index, slot.index));
    }

    /// Removes the spans that are to be unmapped.
    fn trim(&mut self) -> [Vec<Arc<Span>>; 2] {
        self.drain_caches();
        let Self { classes, caches, .. } = self;
        caches.remove_unused(|class, slot| classes.free(class, slot.span_index, slot.index));
        [self.classes.trim(), self.blocks.trim()]
    }
}

/// Shared by all handles of an arena and all slots in use. Dropping the last reference frees all memory.
pub(crate) struct Inner {
    state: Mutex<ArenaState>,
    /// Unique in the process.
    id: u64,
    /// The classes whose slots may be cached.
    enabled: EnabledClasses,
    config: ArenaConfig,
}

/// Large, aligned memory from which buffers are allocated. Cheap to clone; all clones refer to the same
/// arena.
///
/// Memory is *transient* or *stored*. Short-lived buffers are transient ([`Self::alloc`]). Long-lived data is
/// stored under a [`Quota`] of its owner ([`Self::quota`]). They use separate spans with separate limits, so
/// that stored data in sparsely used spans takes no span from transient buffers:
///
/// - *Class spans* contain slots of one size class for transient buffers. Empty ones move between the
///   classes. `ArenaConfig::limit` bounds them.
/// - *Block spans* contain stored data, and transient buffers of one block (64 KiB) that can become stored
///   data without a copy ([`Quota::exchange`]). They have space for all quotas, and for the *adoptable
///   reserve*: transient blocks of an eighth of the transient limit. Further transient buffers come from
///   class spans, and must be copied to be stored.
///
/// An arena maps at most its limit, plus the sum of all quotas and the reserve if there are quotas.
///
/// Each thread caches some free transient slots of up to 1 MiB, so that it takes no lock that other threads
/// take for most allocations (`slot_cache.rs`). Cached slots are free memory: an allocation that needs their
/// memory gets it, and [`Self::trim`] returns it to the system. While less than an eighth of the spans for
/// transient buffers is free, no slots are cached.
///
/// Buffers and views stay valid after all handles are dropped; the last of them frees the arena's memory.
/// Empty spans keep their pages for reuse until [`Self::trim`].
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

impl Arena {
    /// Creates an empty arena; memory is mapped on demand.
    pub fn new(config: ArenaConfig) -> Self {
        let spans = config.limit.div_ceil(SPAN_BYTES).max(1);
        let state = ArenaState {
            classes: ClassSpans::new(spans),
            blocks: BlockSpans::new(spans.div_ceil(RESERVE_FRACTION) as u64),
            caches: SlotCaches::default(),
            peak: 0,
        };
        let (state, id) = (Mutex::new(state), NEXT_ID.fetch_add(1, Ordering::Relaxed));
        Self { inner: Arc::new(Inner { state, id, enabled: EnabledClasses::new(), config }) }
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Allocates a transient buffer of `len` bytes (capacity: the next power of two, at least 512). Its
    /// content is arbitrary: zero, or data of an earlier owner, so bytes that were not written must not be
    /// sent.
    ///
    /// # Errors
    /// The limit is reached, the system has no memory, or `len` exceeds [`SPAN_BYTES`].
    pub fn alloc(&self, len: usize) -> Result<Buffer, OutOfMemory> {
        let error = OutOfMemory { wanted: len, limit: self.inner.config.limit };
        let class = class_of(len).ok_or(error)?;
        let allocated = self.take(class).ok_or(error)?;
        Ok(Inner::make_buffer(&self.inner, allocated, len))
    }

    /// Allocates a slot: from the thread's cache if possible.
    fn take(&self, class: usize) -> Option<AllocatedSlot> {
        let take = |cache: &SlotCache| cache.pop(class).or_else(|| self.take_uncached(class, Some(cache)));
        let cached = self.inner.enabled.contains(class).then(|| self.inner.with_cache(take));
        cached.flatten().unwrap_or_else(|| self.take_uncached(class, None))
    }

    /// Allocates a slot from the spans, and some more for `cache`.
    fn take_uncached(&self, class: usize, cache: Option<&SlotCache>) -> Option<AllocatedSlot> {
        let mut state = self.inner.lock();
        let allocated = self.take_from(&mut state, class).or_else(|| {
            state.drain_caches();
            self.take_from(&mut state, class)
        });
        state.update_enabled();
        if let Some(cache) = cache.filter(|_| allocated.is_some() && self.inner.enabled.contains(class)) {
            cache.refill(class, || state.classes.take_from_used(class));
        }
        state.update_peak();
        allocated
    }

    fn take_from(&self, state: &mut ArenaState, class: usize) -> Option<AllocatedSlot> {
        let (inner, arena) = (&self.inner, Arc::as_ptr(&self.inner));
        let adoptable_slot =
            (class == BLOCK_CLASS).then(|| state.blocks.take_transient(arena, || inner.map())).flatten();
        adoptable_slot.or_else(|| state.classes.take(class, arena, || inner.map()))
    }

    /// Allocates a transient buffer, fills it from `bytes` (a counted copy) and returns a view.
    ///
    /// # Errors
    /// Those of [`Self::alloc`].
    pub fn copy_from(&self, bytes: &[u8]) -> Result<View, OutOfMemory> {
        let mut b = self.alloc(bytes.len())?;
        crate::copy(&mut b, bytes);
        Ok(b.freeze())
    }

    /// Creates a quota of `limit` bytes of stored memory, in addition to transient memory and other quotas.
    pub fn quota(&self, limit: u64) -> Quota {
        Quota::new(Arc::clone(&self.inner), limit)
    }

    /// Frees the slots that threads cache, and unmaps spans that have been empty since the last call. If it is
    /// called every [`TRIM_INTERVAL`], memory of an ended load is returned, and an ongoing load keeps its
    /// memory. A span stays mapped while a [`SpanRef`] to it exists.
    pub fn trim(&self) {
        let mut state = self.inner.lock();
        let removed = state.trim();
        drop(state);
        drop(removed); // Unmapping is slow, so it is done without the lock.
    }

    /// Current memory use.
    pub fn stats(&self) -> ArenaStats {
        let st = self.inner.lock();
        ArenaStats {
            mapped: (st.classes.mapped() + st.blocks.mapped()) * SPAN_BYTES,
            in_use: st.allocated() - st.caches.bytes(),
            stored: st.blocks.stored(),
            peak: st.peak,
            limit: self.inner.config.limit,
            reserve: st.blocks.reserve(),
            quotas: st.blocks.quotas(),
        }
    }

    /// Size of the cached slots in bytes.
    #[cfg(test)]
    pub(crate) fn cached_bytes(&self) -> usize {
        self.inner.lock().caches.bytes()
    }

    /// Number of threads' caches.
    #[cfg(test)]
    pub(crate) fn caches(&self) -> usize {
        self.inner.lock().caches.len()
    }

    /// Number of mapped spans: for each size class in ascending order, then of block spans.
    pub fn spans(&self) -> Vec<SpanCount> {
        let st = self.inner.lock();
        let classes = st.classes.spans_by_class().into_iter().enumerate();
        let classes = classes.map(|(c, spans)| SpanCount { slot_bytes: Some(class_bytes(c)), spans });
        classes.chain([SpanCount { slot_bytes: None, spans: st.blocks.mapped() }]).collect()
    }
}

impl Inner {
    /// Creates a buffer from a slot just allocated from `arena`.
    pub(crate) fn make_buffer(arena: &Arc<Self>, allocated: AllocatedSlot, len: usize) -> Buffer {
        // SAFETY: the slot belongs to this arena and was free.
        let slot = unsafe { Slot::first(Arc::clone(arena), allocated) };
        Buffer::new(slot, len)
    }

    pub(crate) fn map(&self) -> Option<SpanRef> {
        SpanRef::map(self.config.huge_pages)
    }

    /// Locks the arena. An allocation from the thread's cache, or a free to it, does not.
    pub(crate) fn lock(&self) -> ArenaGuard<'_> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::ARENA_LOCKS.fetch_add(1, Ordering::Relaxed);
        ArenaGuard { state: self.state.lock(), enabled: &self.enabled }
    }

    /// Calls `use_cache` with the thread's cache. `None` on a thread that is exiting.
    fn with_cache<T>(&self, use_cache: impl FnOnce(&SlotCache) -> T) -> Option<T> {
        slot_cache::with_own(self.id, || self.lock().caches.attach(), use_cache)
    }

    /// Frees a slot after its last reference is dropped.
    pub(crate) fn release(&self, layout: Layout, slot: AllocatedSlot) {
        match layout {
            Layout::Blocks => self.lock().blocks.free(slot.span_index, slot.index, slot.order),
            Layout::Class(class) => {
                let cached = self.enabled.contains(class).then(|| self.release_to_cache(class, slot));
                if cached.flatten().is_none() {
                    self.lock().classes.free(class, slot.span_index, slot.index);
                }
            }
        }
    }

    /// Frees a slot to the thread's cache. If that is full, the slot returns to its span, with half of the
    /// cached ones.
    fn release_to_cache(&self, class: usize, slot: AllocatedSlot) -> Option<()> {
        self.with_cache(|cache| {
            if !cache.push(class, slot, &self.enabled) {
                let mut state = self.lock();
                cache.drain_half(class, |slot| state.classes.free(class, slot.span_index, slot.index));
                state.classes.free(class, slot.span_index, slot.index);
            }
        })
    }
}

/// The locked state of an arena. Before it is unlocked, [`ArenaState::cacheable`] takes effect.
pub(crate) struct ArenaGuard<'a> {
    state: MutexGuard<'a, ArenaState>,
    enabled: &'a EnabledClasses,
}

impl ArenaGuard<'_> {
    fn update_enabled(&mut self) {
        if self.enabled.replace(self.state.cacheable()) {
            self.state.drain_caches();
        }
    }
}

impl Deref for ArenaGuard<'_> {
    type Target = ArenaState;
    fn deref(&self) -> &ArenaState {
        &self.state
    }
}

impl DerefMut for ArenaGuard<'_> {
    fn deref_mut(&mut self) -> &mut ArenaState {
        &mut self.state
    }
}

impl Drop for ArenaGuard<'_> {
    fn drop(&mut self) {
        self.update_enabled();
    }
}
