//! The arena: mapped memory, divided into slots, with limits.

#![allow(unsafe_code)] // The slots' references to the arena, and creating a buffer from a slot.

use std::{task::Waker, time::Duration};

use crate::{
    Buffer, BufferLengths, Quota, View,
    block_spans::BlockSpans,
    class_spans::ClassSpans,
    mapping::{SPAN_BYTES, SpanRef},
    slot::Slot,
    slot_cache::{LockedCaches, SlotCaches},
    span::{AllocatedSlot, BLOCK_CLASS, CLASSES, Layout, Span, class_bytes, class_of},
    sync::{Arc, Mutex, MutexGuard},
    waiters::Waiters,
};

/// Interval at which [`Arena::trim`] is to be called. A load that pauses for less than this keeps its memory;
/// after a load has ended, its memory is returned within twice this time.
pub const TRIM_INTERVAL: Duration = Duration::from_secs(5);

/// The adoptable reserve (see [`Arena`]) is this fraction of the limit for transient memory.
const RESERVE_FRACTION: usize = 8;

/// Configuration of an [`Arena`].
#[derive(Debug, Clone)]
pub struct ArenaConfig {
    /// Maximum memory mapped for transient buffers, in bytes (rounded up to a multiple of [`SPAN_BYTES`]).
    pub limit: usize,
    /// Use transparent huge pages, except for the first buffers of less than [`BLOCK_BYTES`](crate::BLOCK_BYTES), so that
    /// an arena with a few small buffers takes little memory.
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
    /// Sizes of the first of the buffers that were requested together, and of the others: at most [`SPAN_BYTES`], or more than
    /// the arena has in any case. They are short because every attempt to allocate may return them.
    first: u32,
    piece: u32,
}

impl OutOfMemory {
    /// An arena with this limit has no memory for buffers of these lengths.
    #[cold]
    pub fn new(lengths: BufferLengths, limit: usize) -> Self {
        let (first, piece) = lengths.sizes();
        let short = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        Self { wanted: lengths.total(), limit, first: short(first), piece: short(piece) }
    }

    /// The buffers that were requested together.
    pub(crate) fn lengths(&self) -> BufferLengths {
        BufferLengths::starting(self.first as usize, self.wanted, self.piece as usize)
    }
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
    pub(crate) waiters: Waiters,
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

    /// Frees all cached slots of `arena`, which this is the state of.
    fn drain(&mut self, arena: &Arc<Inner>, caches: &mut LockedCaches<'_>) {
        caches.drain(|class, slot| self.free_cached(arena, class, slot));
    }

    /// Frees a slot of a cache of `arena` to its span, with its strong reference to the arena.
    fn free_cached(&mut self, arena: &Arc<Inner>, class: usize, slot: AllocatedSlot) {
        self.classes.free(class, slot.span_index, slot.index);
        // SAFETY: a cached slot holds a strong reference. It is not the last one, because the caller has another.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(arena)) };
    }

    /// Takes a slot of `class` from the spans.
    fn take(
        &mut self,
        class: usize,
        arena: *const Inner,
        map: impl Fn(bool) -> Option<SpanRef>,
    ) -> Option<(Layout, AllocatedSlot)> {
        if class == BLOCK_CLASS
            && let Some(slot) = self.blocks.take_transient(arena, || map(true))
        {
            return Some((Layout::Blocks, slot));
        }
        self.classes.take(class, arena, map).map(|slot| (Layout::Class(class), slot))
    }

    fn free(&mut self, layout: Layout, slot: &AllocatedSlot) {
        match layout {
            Layout::Blocks => self.blocks.free(slot.span_index, slot.index, slot.order),
            Layout::Class(class) => self.classes.free(class, slot.span_index, slot.index),
        }
    }

    /// Removes the spans that are to be unmapped.
    fn trim(&mut self) -> [Vec<Arc<Span>>; 2] {
        [self.classes.trim(), self.blocks.trim()]
    }
}

/// Shared by all handles of an arena, and all slots in use or in caches. Dropping the last reference frees all memory.
pub(crate) struct Inner {
    state: Mutex<ArenaState>,
    caches: SlotCaches,
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
///   classes. `ArenaConfig::limit` bounds them, and a part of it may be for small buffers only
///   ([`Self::with_small_reserve`]).
/// - *Block spans* contain stored data, and transient buffers of one block (64 KiB) that can become stored
///   data without a copy ([`Quota::exchange`]). They have space for all quotas, and for the *adoptable
///   reserve*: transient blocks of an eighth of the transient limit. Further transient buffers come from
///   class spans, and must be copied to be stored.
///
/// An arena maps at most its limit, plus the sum of all quotas and the reserve if there are quotas.
///
/// Each thread caches some free slots of less than a block, so that it takes no lock that other threads take for
/// most allocations (`slot_cache.rs`). Cached slots are free memory: an allocation that needs their memory gets
/// it, and [`Self::trim`] returns it to the system.
///
/// Buffers and views stay valid after all handles are dropped; the last of them frees the arena's memory.
/// Empty spans keep their pages for reuse until [`Self::trim`].
#[derive(Clone)]
pub struct Arena {
    handle: Arc<Handle>,
}

/// Shared by all handles of an arena.
struct Handle(Arc<Inner>);

impl Drop for Handle {
    /// Frees the slots in the caches, which keep the arena alive.
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let mut caches = self.0.caches.lock_all();
        caches.set_closed(true);
        state.drain(&self.0, &mut caches);
    }
}

impl Arena {
    /// Creates an empty arena; memory is mapped on demand.
    pub fn new(config: ArenaConfig) -> Self {
        Self::with_small_reserve(config, 0, usize::MAX)
    }

    /// As [`Self::new`], but transient buffers of more than `small` bytes leave `reserve` bytes of the limit (rounded
    /// down to a multiple of [`SPAN_BYTES`]) to smaller ones: large buffers that are held, even a single one in each
    /// span, leave memory for small ones.
    pub fn with_small_reserve(config: ArenaConfig, reserve: usize, small: usize) -> Self {
        let spans = config.limit.div_ceil(SPAN_BYTES).max(1);
        let small = class_of(small).unwrap_or(CLASSES - 1);
        let state = ArenaState {
            classes: ClassSpans::new(spans, reserve / SPAN_BYTES, small),
            blocks: BlockSpans::new(spans.div_ceil(RESERVE_FRACTION) as u64),
            waiters: Waiters::default(),
            peak: 0,
        };
        let inner = Inner { state: Mutex::new(state), caches: SlotCaches::new(), config };
        Self { handle: Arc::new(Handle(Arc::new(inner))) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.handle.0
    }

    /// Allocates a transient buffer of `len` bytes (capacity: the next power of two, at least 512). Its
    /// content is arbitrary: zero, or data of an earlier owner, so bytes that were not written must not be
    /// sent.
    ///
    /// # Errors
    /// The limit is reached, the system has no memory, or `len` exceeds [`SPAN_BYTES`].
    pub fn alloc(&self, len: usize) -> Result<Buffer, OutOfMemory> {
        let error = || OutOfMemory::new(len.into(), self.inner().config.limit);
        let class = class_of(len).ok_or_else(error)?;
        let allocated = self.take(class).ok_or_else(error)?;
        // SAFETY: the slot was free, and was allocated for `len` bytes; `take` counted its reference to the arena.
        Ok(Buffer::new(unsafe { Slot::first(allocated, len) }))
    }

    /// Allocates buffers of `lengths`, which are needed together: after an error, the caller returns those before it.
    ///
    /// # Errors
    /// As [`Self::alloc`], for all of them: waiting for one would end without memory for the others.
    pub fn alloc_all(&self, lengths: BufferLengths) -> impl Iterator<Item = Result<Buffer, OutOfMemory>> {
        lengths.iter().map(move |length| self.alloc(length).map_err(|e| OutOfMemory::new(lengths, e.limit)))
    }

    /// Allocates a slot with a strong reference to the arena: from the thread's cache if possible.
    fn take(&self, class: usize) -> Option<AllocatedSlot> {
        let cached = self.inner().caches.own(class).and_then(|mut cache| cache.pop(class));
        cached.or_else(|| {
            let allocated = self.take_from_spans(class)?;
            Inner::reference(self.inner());
            Some(allocated)
        })
    }

    /// Allocates a slot from the spans, and some more for the thread's cache. If there is none, allocates it from
    /// the memory of all cached slots.
    fn take_from_spans(&self, class: usize) -> Option<AllocatedSlot> {
        let inner = self.inner();
        let caches = &inner.caches;
        let mut state = inner.lock();
        let mut allocated = self.take_locked(&mut state, class);
        if allocated.is_none() {
            let mut caches = caches.lock_all();
            state.drain(inner, &mut caches);
            allocated = self.take_locked(&mut state, class);
        } else if let Some(mut cache) = caches.own(class).filter(|_| state.waiters.is_empty()) {
            let take = || state.classes.take_from_used(class).inspect(|_| Inner::reference(inner));
            cache.refill(class, take);
        }
        state.update_peak();
        allocated
    }

    fn take_locked(&self, state: &mut ArenaState, class: usize) -> Option<AllocatedSlot> {
        self.inner().take(state, class).map(|(_, slot)| slot)
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
        Quota::new(self.clone(), limit)
    }

    /// Frees the slots that threads cache, and unmaps spans that have been empty since the last call. If it is
    /// called every [`TRIM_INTERVAL`], memory of an ended load is returned, and an ongoing load keeps its
    /// memory. A span stays mapped while a [`SpanRef`] to it exists.
    pub fn trim(&self) {
        let inner = self.inner();
        let mut state = inner.lock();
        state.drain(inner, &mut inner.caches.lock_all());
        let removed = state.trim();
        let waker = inner.next_waker(&mut state); // The system may have memory again.
        drop(state);
        drop(removed); // Unmapping is slow, so it is done without the lock.
        waker.into_iter().for_each(Waker::wake);
    }

    /// Current memory use.
    pub fn stats(&self) -> ArenaStats {
        let st = self.inner().lock();
        ArenaStats {
            mapped: (st.classes.mapped() + st.blocks.mapped()) * SPAN_BYTES,
            in_use: st.allocated() - self.inner().caches.lock_all().bytes(),
            stored: st.blocks.stored(),
            peak: st.peak,
            limit: self.inner().config.limit,
            reserve: st.blocks.reserve(),
            quotas: st.blocks.quotas(),
        }
    }

    /// Size of the cached slots in bytes.
    #[cfg(test)]
    pub(crate) fn cached_bytes(&self) -> usize {
        self.inner().caches.lock_all().bytes()
    }

    /// Number of mapped spans: for each size class in ascending order, then of block spans.
    pub fn spans(&self) -> Vec<SpanCount> {
        let st = self.inner().lock();
        let classes = st.classes.spans_by_class().into_iter().enumerate();
        let classes = classes.map(|(c, spans)| SpanCount { slot_bytes: Some(class_bytes(c)), spans });
        classes.chain([SpanCount { slot_bytes: None, spans: st.blocks.mapped() }]).collect()
    }
}

impl Inner {
    /// Counts the strong reference that a slot holds.
    fn reference(arena: &Arc<Self>) {
        // SAFETY: the pointer is that of a strong reference, which exists during the call.
        unsafe { Arc::increment_strong_count(Arc::as_ptr(arena)) };
    }

    /// Creates a buffer from a slot just allocated from `arena`.
    pub(crate) fn make_buffer(arena: &Arc<Self>, allocated: AllocatedSlot, len: usize) -> Buffer {
        Self::reference(arena);
        // SAFETY: the slot was free, and was allocated for `len` bytes; its reference to the arena has been counted.
        Buffer::new(unsafe { Slot::first(allocated, len) })
    }

    /// Maps a span; `huge` requests huge pages if the configuration permits them.
    pub(crate) fn map(&self, huge: bool) -> Option<SpanRef> {
        SpanRef::map(huge && self.config.huge_pages)
    }

    /// Locks the spans. Neither an allocation from the thread's cache does that, nor a free to it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ArenaState> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::ARENA_LOCKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.state.lock()
    }

    /// Frees a slot after its last reference is dropped: to the thread's cache if possible, which takes over the slot's
    /// strong reference to `arena`.
    ///
    /// # Safety
    /// `arena` is that of the slot, which holds a strong reference to it.
    pub(crate) unsafe fn release(arena: *const Self, layout: Layout, slot: AllocatedSlot) {
        // SAFETY: the slot's strong reference keeps the arena alive until the slot is cached or the reference dropped.
        let inner = unsafe { &*arena };
        if let Layout::Class(class) = layout
            && inner.caches.own(class).is_some_and(|mut cache| cache.push(class, slot))
        {
            return;
        }
        // SAFETY: the slot's strong reference, which no cache has.
        let arena = unsafe { Arc::from_raw(arena) };
        match layout {
            Layout::Blocks => arena.change(|state| state.free(layout, &slot)),
            Layout::Class(class) => Self::release_to_span(&arena, class, slot),
        }
    }

    /// Makes a change after which there may be memory for a waiter.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut ArenaState) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        let waker = self.next_waker(&mut state);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        changed
    }

    fn take(&self, state: &mut ArenaState, class: usize) -> Option<(Layout, AllocatedSlot)> {
        state.take(class, self, |huge| self.map(huge))
    }

    /// Whether there is memory for buffers of `lengths` together.
    pub(crate) fn has_memory(&self, state: &mut ArenaState, lengths: BufferLengths) -> bool {
        let mut taken = Vec::new();
        let mut take = |length| {
            let slot = class_of(length).and_then(|class| self.take(state, class));
            slot.map(|slot| taken.push(slot)).is_some()
        };
        let has_all = lengths.iter().all(&mut take);
        taken.iter().for_each(|(layout, slot)| state.free(*layout, slot));
        has_all
    }

    /// The waker of the next waiter that can be satisfied, to be woken without the lock.
    pub(crate) fn next_waker(&self, state: &mut ArenaState) -> Option<Waker> {
        if state.waiters.is_empty() {
            return None;
        }
        let mut waiters = std::mem::take(&mut state.waiters);
        let waker = waiters.wake_next(|wanted| self.has_memory(state, wanted));
        state.waiters = waiters;
        waker
    }

    /// Empties the caches of all threads, which then refuse slots.
    pub(crate) fn close_caches(this: &Arc<Self>, state: &mut ArenaState) {
        let mut caches = this.caches.lock_all();
        caches.set_closed(true);
        state.drain(this, &mut caches);
    }

    /// Lets the caches accept slots again.
    pub(crate) fn open_caches(&self) {
        self.caches.lock_all().set_closed(false);
    }

    /// Frees a slot to its span, with half of the thread's cached ones of its class.
    fn release_to_span(arena: &Arc<Self>, class: usize, slot: AllocatedSlot) {
        arena.change(|state| {
            if let Some(mut cache) = arena.caches.own(class) {
                cache.drain_half(class, |slot| state.free_cached(arena, class, slot));
            }
            state.classes.free(class, slot.span_index, slot.index);
        });
    }
}
