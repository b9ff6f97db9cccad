//! The arena: which slots are free, and which span serves which size class.

#![allow(unsafe_code)] // One block: handing out a slot.

use std::{
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
};

use parking_lot::Mutex;

use crate::{
    Buffer, View,
    mapping::{SPAN_BYTES, SpanRef},
    slot::Slot,
    span::{CLASSES, Span, class_bytes, class_of},
};

/// Empty spans that keep their pages; further ones give them back to the machine.
const WARM_SPANS: u32 = 64;
/// Empty spans that a class keeps for itself while others may still map memory, and whose pages it keeps whatever the
/// others have. With fewer, a class that swings around a span boundary would lose its span or its pages and get them
/// back all the time.
const SPARE_SPANS: u32 = 2;
const NONE: u32 = u32::MAX;

/// How an [`Arena`] is made.
#[derive(Debug, Clone)]
pub struct ArenaConfig {
    /// The most bytes that it maps (rounded up to whole spans of [`SPAN_BYTES`]).
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
    /// Bytes mapped from the machine.
    pub mapped: usize,
    /// Bytes of slots that are handed out.
    pub in_use: usize,
    /// The most bytes that were ever handed out at once.
    pub peak: usize,
    /// The limit of `mapped`.
    pub limit: usize,
}

/// A span as the arena sees it. Its free slots are `free_head` and what follows from there through `Span::refs`, and
/// all slots from `fresh` on, which were not handed out since the span was last empty.
struct SpanState {
    span: Arc<Span>,
    free_head: u32,
    fresh: u32,
    free: u32,
    /// Whether it has pages; meaningful only while it is empty.
    warm: bool,
    /// Neighbours in the list of the class; meaningful only while there is a free slot.
    prev: u32,
    next: u32,
}

impl SpanState {
    fn slots(&self) -> u32 {
        self.span.refs.len() as u32
    }

    fn is_empty(&self) -> bool {
        self.free == self.slots()
    }

    fn pop(&mut self) -> u32 {
        self.free -= 1;
        if self.free_head == NONE {
            self.fresh += 1;
            return self.fresh - 1;
        }
        let slot = self.free_head;
        self.free_head = self.span.refs[slot as usize].load(Ordering::Relaxed);
        slot
    }

    fn push(&mut self, slot: u32) {
        self.span.refs[slot as usize].store(self.free_head, Ordering::Relaxed);
        self.free_head = slot;
        self.free += 1;
        if self.is_empty() {
            self.reset();
        }
    }

    /// All slots are free: hand them out from the lowest on again.
    fn reset(&mut self) {
        (self.free_head, self.fresh, self.free) = (NONE, 0, self.slots());
    }
}

/// The spans of a class that have a free slot, as a list through [`SpanState`]. Those in use come first, the one that
/// was full last of all at the very front: so the fullest are filled up and the others run empty. Then come the empty
/// ones that have pages, the latest first, for its memory is in the processor's cache; and those without pages last.
#[derive(Clone, Copy)]
struct ClassState {
    head: u32,
    tail: u32,
    first_empty: u32,
    empty: u32,
    /// Empty spans that have pages.
    warm: u32,
}

struct State {
    spans: Vec<SpanState>,
    classes: [ClassState; CLASSES],
    /// Empty spans of all classes that have pages.
    warm: u32,
    in_use: usize,
    peak: usize,
}

/// What all handles of an arena and all slots handed out share; it goes, and all its memory, with the last of them.
pub(crate) struct Inner {
    state: Mutex<State>,
    config: ArenaConfig,
    max_spans: usize,
}

/// Large, aligned memory from which buffers are taken. Cheap to clone; all clones are the same arena.
///
/// Buffers and views stay valid when all handles are gone; the arena's memory goes with the last of them.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

impl Arena {
    /// An empty arena; memory is mapped when it is first needed.
    pub fn new(config: ArenaConfig) -> Self {
        let max_spans = config.limit.div_ceil(SPAN_BYTES).clamp(1, NONE as usize);
        let class = ClassState { head: NONE, tail: NONE, first_empty: NONE, empty: 0, warm: 0 };
        let state = State { spans: Vec::new(), classes: [class; CLASSES], warm: 0, in_use: 0, peak: 0 };
        Self { inner: Arc::new(Inner { state: Mutex::new(state), config, max_spans }) }
    }

    /// A buffer of `len` bytes (capacity: the next power of two, at least 512). Its content is arbitrary: zero or
    /// whatever an earlier owner of this arena left, so never send bytes that were not written.
    ///
    /// # Errors
    /// When the arena's limit is reached, the machine has no memory, or `len` exceeds [`SPAN_BYTES`].
    pub fn alloc(&self, len: usize) -> Result<Buffer, OutOfMemory> {
        let full = OutOfMemory { wanted: len, limit: self.inner.config.limit };
        let class = class_of(len).ok_or(full)?;
        let mut st = self.inner.state.lock();
        if st.classes[class].head == NONE {
            self.add_span(&mut st, class).ok_or(full)?;
        }
        let (span, slot) = st.take(class);
        drop(st);
        // SAFETY: the span is one of this arena's, and the slot was just taken from its free list.
        let slot = unsafe { Slot::first(Arc::clone(&self.inner), span, slot) };
        Ok(Buffer::new(slot, len))
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

    /// What the arena holds now.
    pub fn stats(&self) -> ArenaStats {
        let st = self.inner.state.lock();
        ArenaStats {
            mapped: st.spans.len() * SPAN_BYTES,
            in_use: st.in_use,
            peak: st.peak,
            limit: self.inner.config.limit,
        }
    }

    /// Gives `class` an empty span: one that another class can spare, a new one, or at the limit any empty one.
    fn add_span(&self, st: &mut State, class: usize) -> Option<()> {
        let arena = Arc::as_ptr(&self.inner);
        if let Some(index) = st.steal(SPARE_SPANS) {
            st.cut(index, class, arena);
            return Some(());
        }
        let mapping = if st.spans.len() < self.inner.max_spans {
            SpanRef::map(self.inner.config.huge_pages)
        } else {
            None
        };
        match mapping {
            Some(mapping) => st.add(mapping, class, arena),
            None => {
                let index = st.steal(0)?;
                st.cut(index, class, arena);
            }
        }
        Some(())
    }
}

impl State {
    /// Takes a free slot of a class that has one.
    fn take(&mut self, class: usize) -> (NonNull<Span>, u32) {
        let index = self.classes[class].head;
        if self.spans[index as usize].is_empty() {
            self.count_out(class, index);
        }
        let s = &mut self.spans[index as usize];
        let slot = s.pop();
        let span = NonNull::from(&*s.span);
        if s.free == 0 {
            self.unlink(class, index);
        }
        self.in_use += class_bytes(class);
        self.peak = self.peak.max(self.in_use);
        (span, slot)
    }

    fn add(&mut self, mapping: SpanRef, class: usize, arena: *const Inner) {
        let index = self.spans.len() as u32;
        let span = Arc::new(Span::new(mapping, class, index, arena));
        let mut s =
            SpanState { span, free_head: NONE, fresh: 0, free: 0, warm: false, prev: NONE, next: NONE };
        s.reset();
        self.spans.push(s);
        self.link_empty(class, index);
    }

    /// Takes an empty span out of a class that has more than `spare`.
    fn steal(&mut self, spare: u32) -> Option<u32> {
        let class = (0..CLASSES).find(|c| self.classes[*c].empty > spare)?;
        // One that has pages, if there is any: getting pages costs more than anything that is done with them.
        let index = self.classes[class].first_empty;
        self.count_out(class, index);
        self.unlink(class, index);
        Some(index)
    }

    /// Cuts a span that is in no list for `class`.
    fn cut(&mut self, index: u32, class: usize, arena: *const Inner) {
        let s = &mut self.spans[index as usize];
        s.span = Arc::new(Span::new(s.span.mapping.clone(), class, index, arena));
        s.reset();
        self.link_empty(class, index);
    }

    /// Whether a span that `class` has just emptied may keep its pages.
    fn may_stay_warm(&self, class: usize) -> bool {
        self.warm < WARM_SPANS || self.classes[class].warm < SPARE_SPANS
    }

    fn link_empty(&mut self, class: usize, index: u32) {
        let warm = self.spans[index as usize].warm;
        let c = &mut self.classes[class];
        c.empty += 1;
        c.warm += u32::from(warm);
        self.warm += u32::from(warm);
        let at = if warm { c.first_empty } else { NONE };
        if at == c.first_empty {
            c.first_empty = index;
        }
        self.link_before(class, index, at);
    }

    /// The empty span `index`, which is still in the list of its class, is about to be empty or there no more.
    fn count_out(&mut self, class: usize, index: u32) {
        let s = &mut self.spans[index as usize];
        let c = &mut self.classes[class];
        if c.first_empty == index {
            c.first_empty = s.next;
        }
        c.empty -= 1;
        c.warm -= u32::from(s.warm);
        self.warm -= u32::from(s.warm);
    }

    /// Links a span before `at`, or at the end where that is [`NONE`].
    fn link_before(&mut self, class: usize, index: u32, at: u32) {
        let prev = match at {
            NONE => std::mem::replace(&mut self.classes[class].tail, index),
            at => std::mem::replace(&mut self.spans[at as usize].prev, index),
        };
        match prev {
            NONE => self.classes[class].head = index,
            prev => self.spans[prev as usize].next = index,
        }
        (self.spans[index as usize].prev, self.spans[index as usize].next) = (prev, at);
    }

    fn unlink(&mut self, class: usize, index: u32) {
        let s = &self.spans[index as usize];
        let (prev, next) = (s.prev, s.next);
        match prev {
            NONE => self.classes[class].head = next,
            prev => self.spans[prev as usize].next = next,
        }
        match next {
            NONE => self.classes[class].tail = prev,
            next => self.spans[next as usize].prev = prev,
        }
    }

    /// Takes a slot back. True when its span is empty now, and in no list.
    fn give(&mut self, class: usize, index: u32, slot: u32) -> bool {
        self.in_use -= class_bytes(class);
        let s = &mut self.spans[index as usize];
        s.push(slot);
        let (was_full, empty) = (s.free == 1, s.is_empty());
        match (was_full, empty) {
            (true, false) => self.link_before(class, index, self.classes[class].head),
            (false, true) => self.unlink(class, index),
            _ => {}
        }
        empty
    }
}

impl Inner {
    /// Takes back slot `slot` of span `index`, which is cut for `class`. Its last reference is gone.
    pub(crate) fn release(&self, class: usize, index: u32, slot: u32) {
        let mut st = self.state.lock();
        if !st.give(class, index, slot) {
            return;
        }
        let mut warm = st.may_stay_warm(class);
        if !warm {
            // While its pages go, the span is in no list, so nobody takes it; the lock is not held for so long.
            let mapping = st.spans[index as usize].span.mapping.clone();
            drop(st);
            warm = !mapping.discard();
            st = self.state.lock();
        }
        st.spans[index as usize].warm = warm;
        st.link_empty(class, index);
    }
}
