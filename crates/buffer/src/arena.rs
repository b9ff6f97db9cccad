//! The arena: the memory of its spans, and how much of it there may be.

#![allow(unsafe_code)] // One block: handing out a slot.

use std::time::Duration;

use crate::{
    Buffer, Quota, View,
    block_spans::{BlockSpans, SlotAt},
    class_spans::ClassSpans,
    mapping::{SPAN_BYTES, SpanRef},
    slot::Slot,
    span::{BLOCK_CLASS, Layout, Span, Taken, class_bytes, class_of},
    sync::{Arc, Mutex},
};

/// How often [`Arena::trim`] is to be called. A load that rests for less than this keeps its memory; the memory of one that
/// has ended is returned after twice this time at most.
pub const TRIM_INTERVAL: Duration = Duration::from_secs(5);

/// The landing (see [`Arena`]) is this part of the transient memory's limit.
const LANDING_PART: usize = 8;

/// How an [`Arena`] is made.
#[derive(Debug, Clone)]
pub struct ArenaConfig {
    /// The most bytes that it maps for transient buffers (rounded up to whole spans of [`SPAN_BYTES`]).
    pub limit: usize,
    /// Ask the kernel for transparent huge pages.
    pub huge_pages: bool,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        Self { limit: 1 << 30, huge_pages: true }
    }
}

/// The arena has no room for a buffer of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for a buffer of {wanted} bytes (limit of the arena: {limit} bytes); raise the memory limit or lower credits, transfer sizes or the number of clients"
)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub wanted: usize,
    /// The arena's limit in bytes.
    pub limit: usize,
}

/// What an arena holds at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes mapped from the system.
    pub mapped: usize,
    /// Bytes of slots that are handed out, stored ones included.
    pub in_use: usize,
    /// The part of `in_use` that quotas pay for.
    pub stored: usize,
    /// The most bytes that were ever handed out at once.
    pub peak: usize,
    /// The limit of the transient memory, in bytes.
    pub limit: usize,
    /// Bytes of the landing, which transient memory has on top of its limit; 0 without quotas.
    pub landing: usize,
    /// Bytes of all quotas together, which is the limit of the stored memory.
    pub quotas: usize,
}

/// The spans of one kind that an arena has mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanCount {
    /// Bytes of a slot; `None` for spans of blocks, whose slots have 4 to 64 KiB.
    pub slot_bytes: Option<usize>,
    /// Spans of [`SPAN_BYTES`].
    pub spans: usize,
}

pub(crate) struct State {
    pub(crate) classes: ClassSpans,
    pub(crate) blocks: BlockSpans,
    peak: usize,
}

impl State {
    fn in_use(&self) -> usize {
        self.classes.in_use() + self.blocks.transient() + self.blocks.stored()
    }

    pub(crate) fn note_peak(&mut self) {
        self.peak = self.peak.max(self.in_use());
    }

    /// Removes the spans to be unmapped.
    fn trim(&mut self) -> [Vec<Arc<Span>>; 2] {
        [self.classes.trim(), self.blocks.trim()]
    }
}

/// What all handles of an arena and all slots handed out share; it goes, and all its memory, with the last of them.
pub(crate) struct Inner {
    pub(crate) state: Mutex<State>,
    config: ArenaConfig,
}

/// Large, aligned memory from which buffers are taken. Cheap to clone; all clones are the same arena.
///
/// Memory is *transient* or *stored*. Buffers for work that passes are transient ([`Self::alloc`]). Data that stays is
/// stored by its owner under a [`Quota`] ([`Self::quota`]). The two have spans of their own, with limits of their own, so
/// that data that stays here and there in sparse spans takes no span from transient buffers:
///
/// - Spans of a size class serve transient buffers. Empty ones move between the classes. `ArenaConfig::limit` bounds them.
/// - Spans of blocks serve stored data, and beside it transient buffers of one block (64 KiB), which can become stored data
///   where they are ([`Quota::exchange`]). They have room for all quotas, and for the *landing*: transient blocks of an
///   eighth of the transient limit. Transient buffers beyond that come from the size classes, and are copied if they are
///   to be stored.
///
/// So an arena maps at most its limit, and where there are quotas their sum and the landing on top.
///
/// Buffers and views stay valid when all handles are gone; the arena's memory goes with the last of them. Empty spans keep
/// their pages for the next buffer until [`Self::trim`].
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

impl Arena {
    /// An empty arena; memory is mapped when it is first needed.
    pub fn new(config: ArenaConfig) -> Self {
        let spans = config.limit.div_ceil(SPAN_BYTES).max(1);
        let state = State {
            classes: ClassSpans::new(spans),
            blocks: BlockSpans::new(spans.div_ceil(LANDING_PART) as u64),
            peak: 0,
        };
        Self { inner: Arc::new(Inner { state: Mutex::new(state), config }) }
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// A transient buffer of `len` bytes (capacity: the next power of two, at least 512). Its content is arbitrary: zero
    /// or what an earlier owner of this arena left, so never send bytes that were not written.
    ///
    /// # Errors
    /// When the arena's limit is reached, the system has no memory, or `len` exceeds [`SPAN_BYTES`].
    pub fn alloc(&self, len: usize) -> Result<Buffer, OutOfMemory> {
        let full = OutOfMemory { wanted: len, limit: self.inner.config.limit };
        let class = class_of(len).ok_or(full)?;
        let taken = self.take(class).ok_or(full)?;
        Ok(Inner::hand_out(&self.inner, taken, len))
    }

    fn take(&self, class: usize) -> Option<Taken> {
        let (inner, arena) = (&self.inner, Arc::as_ptr(&self.inner));
        let mut state = inner.state.lock();
        let landed =
            (class == BLOCK_CLASS).then(|| state.blocks.take_transient(arena, || inner.map())).flatten();
        let taken = landed.or_else(|| state.classes.take(class, arena, || inner.map()));
        state.note_peak();
        taken
    }

    /// Like [`Self::alloc`], filled from `bytes` (a counted copy), as a view.
    ///
    /// # Errors
    /// As [`Self::alloc`].
    pub fn copy_from(&self, bytes: &[u8]) -> Result<View, OutOfMemory> {
        let mut b = self.alloc(bytes.len())?;
        crate::copy(&mut b, bytes);
        Ok(b.freeze())
    }

    /// Room for `limit` bytes of stored memory, on top of the transient memory and of other quotas.
    pub fn quota(&self, limit: u64) -> Quota {
        Quota::new(Arc::clone(&self.inner), limit)
    }

    /// Unmaps the spans that were empty at all times since the last call. Called every [`TRIM_INTERVAL`] it returns the
    /// memory of a load that has ended, and takes none from a load that goes on. A span stays while a [`SpanRef`] to it
    /// exists.
    pub fn trim(&self) {
        let removed = self.inner.state.lock().trim();
        drop(removed); // Unmapping takes long, so the lock is not held.
    }

    /// What the arena holds now.
    pub fn stats(&self) -> ArenaStats {
        let st = self.inner.state.lock();
        ArenaStats {
            mapped: (st.classes.mapped() + st.blocks.mapped()) * SPAN_BYTES,
            in_use: st.in_use(),
            stored: st.blocks.stored(),
            peak: st.peak,
            limit: self.inner.config.limit,
            landing: st.blocks.landing(),
            quotas: st.blocks.quotas(),
        }
    }

    /// The spans that are mapped now: of each size class, in order of their slots, and of blocks, last.
    pub fn spans(&self) -> Vec<SpanCount> {
        let st = self.inner.state.lock();
        let classes = st.classes.by_class().into_iter().enumerate();
        let classes = classes.map(|(c, spans)| SpanCount { slot_bytes: Some(class_bytes(c)), spans });
        classes.chain([SpanCount { slot_bytes: None, spans: st.blocks.mapped() }]).collect()
    }
}

impl Inner {
    /// A buffer in the slot that was just taken from the free ones of `arena`.
    pub(crate) fn hand_out(arena: &Arc<Self>, taken: Taken, len: usize) -> Buffer {
        // SAFETY: the slot is one of this arena's, and was free.
        let slot = unsafe { Slot::first(Arc::clone(arena), taken) };
        Buffer::new(slot, len)
    }

    pub(crate) fn map(&self) -> Option<SpanRef> {
        SpanRef::map(self.config.huge_pages)
    }

    /// Takes a slot back whose last reference is gone.
    pub(crate) fn release(&self, layout: Layout, at: SlotAt) {
        let mut state = self.state.lock();
        match layout {
            Layout::Class(class) => state.classes.give(class, at.span, at.slot),
            Layout::Blocks => state.blocks.give(at.span, at.slot, at.order),
        }
    }
}
