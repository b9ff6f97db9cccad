//! Class spans: each contains slots of one size class, for transient buffers.

use slab::Slab;

use crate::{
    arena::Inner,
    mapping::SpanRef,
    span::{AllocatedSlot, BLOCK_CLASS, CLASSES, Layout, Span, class_bytes},
    sync::{Arc, Ordering},
};

/// Number of empty spans that a class keeps while more memory may be mapped. Otherwise a class whose use
/// oscillates around a span boundary would repeatedly lose and regain a span.
const SPARE_SPANS: u32 = 2;
const NONE: u32 = u32::MAX;

/// State of a span. Free slots are those linked from `free_head` through `Span::refs`, and all slots from
/// `fresh` on, which have not been used since the span was last empty.
struct SpanState {
    span: Arc<Span>,
    free_head: u32,
    fresh: u32,
    free: u32,
    /// Links in the list of the class; valid only while there is a free slot.
    prev: u32,
    next: u32,
}

impl SpanState {
    fn new(span: Span) -> Self {
        let mut new =
            Self { span: Arc::new(span), free_head: NONE, fresh: 0, free: 0, prev: NONE, next: NONE };
        new.reset();
        new
    }

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

    fn push(&mut self, slot: u16) {
        self.span.refs[usize::from(slot)].store(self.free_head, Ordering::Relaxed);
        self.free_head = u32::from(slot);
        self.free += 1;
        if self.is_empty() {
            self.reset();
        }
    }

    /// All slots are free: allocate from the lowest again.
    fn reset(&mut self) {
        (self.free_head, self.fresh, self.free) = (NONE, 0, self.slots());
    }
}

/// The spans of a class with a free slot, as a linked list. Spans in use come first, most recently full
/// first, so that full spans stay full and others become empty. Empty spans follow, most recently used first,
/// because their memory may still be in the CPU cache.
#[derive(Clone, Copy)]
struct ClassState {
    head: u32,
    tail: u32,
    first_empty: u32,
    empty: u32,
    /// All spans of the class, including full ones.
    spans: u32,
}

/// All class spans.
pub(crate) struct ClassSpans {
    spans: Slab<SpanState>,
    classes: [ClassState; CLASSES],
    max_spans: usize,
    /// Number of spans that only the classes up to `small` may use.
    reserved: usize,
    small: usize,
    /// Number of empty spans of all classes, and its minimum since the last [`Self::trim`].
    empty: u32,
    idle: u32,
    in_use: usize,
}

impl ClassSpans {
    /// No spans yet, at most `max_spans`, of which the classes above `small` leave `reserved` to the others.
    pub(crate) fn new(max_spans: usize, reserved: usize, small: usize) -> Self {
        let class = ClassState { head: NONE, tail: NONE, first_empty: NONE, empty: 0, spans: 0 };
        Self {
            spans: Slab::new(),
            classes: [class; CLASSES],
            max_spans,
            reserved,
            small,
            empty: 0,
            idle: 0,
            in_use: 0,
        }
    }

    /// Memory in use, in bytes.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Number of mapped spans.
    pub(crate) fn mapped(&self) -> usize {
        self.spans.len()
    }

    /// Number of spans of each class.
    pub(crate) fn spans_by_class(&self) -> [usize; CLASSES] {
        self.classes.map(|c| c.spans as usize)
    }

    /// Allocates a slot of `class`; `map` maps another span, with huge pages or without, if the limit allows.
    pub(crate) fn take(
        &mut self,
        class: usize,
        arena: *const Inner,
        map: impl FnOnce(bool) -> Option<SpanRef>,
    ) -> Option<AllocatedSlot> {
        if self.classes[class].head == NONE {
            self.refill(class, arena, map)?;
        }
        Some(self.take_from_span(class, self.classes[class].head))
    }

    /// Allocates a slot of `class` if a span in use has a free one.
    pub(crate) fn take_from_used(&mut self, class: usize) -> Option<AllocatedSlot> {
        let ClassState { head, first_empty, .. } = self.classes[class];
        (head != first_empty).then(|| self.take_from_span(class, head))
    }

    /// Allocates a slot of the span `index` of `class`, which has a free one.
    fn take_from_span(&mut self, class: usize, index: u32) -> AllocatedSlot {
        if self.spans[index as usize].is_empty() {
            self.count_out(class, index);
        }
        let s = &mut self.spans[index as usize];
        let slot = s.pop() as u16;
        let span = (&*s.span).into();
        if s.free == 0 {
            self.unlink(class, index);
        }
        self.in_use += class_bytes(class);
        AllocatedSlot { span, span_index: index, index: slot, order: 0 }
    }

    /// First class from which a span of `class` may come. Above `small`, it is the class after it if these classes
    /// have all spans that are not reserved.
    fn first_source(&self, class: usize) -> usize {
        let large = self.classes.iter().skip(self.small + 1).map(|c| c.spans as usize).sum::<usize>();
        let exhausted = class > self.small && large + self.reserved >= self.max_spans;
        if exhausted { self.small + 1 } else { 0 }
    }

    /// Adds an empty span to `class`: a spare one of another class, a new one, or at the limit any empty one.
    fn refill(
        &mut self,
        class: usize,
        arena: *const Inner,
        map: impl FnOnce(bool) -> Option<SpanRef>,
    ) -> Option<()> {
        let from = self.first_source(class);
        if let Some(index) = self.take_empty_span(from, SPARE_SPANS) {
            self.assign_class(index, class, arena);
            return Some(());
        }
        // The first touch of a huge page takes 2 MiB, much more than the buffers of an idle connection.
        let huge = class >= BLOCK_CLASS || self.classes[class].spans > 0;
        let mapping = if from == 0 && self.spans.len() < self.max_spans { map(huge) } else { None };
        match mapping {
            Some(mapping) => self.add(mapping, class, arena),
            None => {
                let index = self.take_empty_span(from, 0)?;
                self.assign_class(index, class, arena);
            }
        }
        Some(())
    }

    fn add(&mut self, mapping: SpanRef, class: usize, arena: *const Inner) {
        let entry = self.spans.vacant_entry();
        let index = entry.key() as u32;
        entry.insert(SpanState::new(Span::new(mapping, Layout::Class(class), index, arena)));
        self.classes[class].spans += 1;
        self.link_empty(class, index);
    }

    /// Takes an empty span from a class, `from` or later, that has more than `spare`.
    fn take_empty_span(&mut self, from: usize, spare: u32) -> Option<u32> {
        let class = (from..CLASSES).find(|c| self.classes[*c].empty > spare)?;
        let index = self.classes[class].first_empty;
        self.count_out(class, index);
        self.unlink(class, index);
        self.classes[class].spans -= 1;
        Some(index)
    }

    /// Assigns an unlinked span to `class`.
    fn assign_class(&mut self, index: u32, class: usize, arena: *const Inner) {
        let s = &mut self.spans[index as usize];
        *s = SpanState::new(Span::new(s.span.mapping.clone(), Layout::Class(class), index, arena));
        self.classes[class].spans += 1;
        self.link_empty(class, index);
    }

    /// Frees a slot.
    pub(crate) fn free(&mut self, class: usize, index: u32, slot: u16) {
        self.in_use -= class_bytes(class);
        let s = &mut self.spans[index as usize];
        s.push(slot);
        match (s.free == 1, s.is_empty()) {
            (true, false) => self.link_before(class, index, self.classes[class].head),
            (false, true) => {
                self.unlink(class, index);
                self.link_empty(class, index);
            }
            // A span with one slot was full, so it was not linked.
            (true, true) => self.link_empty(class, index),
            (false, false) => {}
        }
    }

    /// Removes as many empty spans as have been empty since the last call, least recently used first. Spans
    /// with other references are kept, since their memory would not be unmapped. Drop the result without
    /// holding a lock.
    pub(crate) fn trim(&mut self) -> Vec<Arc<Span>> {
        let (mut removed, idle) = (Vec::new(), self.idle as usize);
        for class in 0..CLASSES {
            let mut at = self.classes[class].tail;
            while at != NONE && removed.len() < idle && self.spans[at as usize].is_empty() {
                let prev = self.spans[at as usize].prev;
                if self.spans[at as usize].span.mapping.is_last() {
                    self.count_out(class, at);
                    self.unlink(class, at);
                    self.classes[class].spans -= 1;
                    removed.push(self.spans.remove(at as usize).span);
                }
                at = prev;
            }
        }
        self.idle = self.empty;
        removed
    }

    fn link_empty(&mut self, class: usize, index: u32) {
        let c = &mut self.classes[class];
        c.empty += 1;
        self.empty += 1;
        let at = std::mem::replace(&mut c.first_empty, index);
        self.link_before(class, index, at);
    }

    /// Uncounts the empty span `index`, still linked, before it is used or removed.
    fn count_out(&mut self, class: usize, index: u32) {
        let c = &mut self.classes[class];
        if c.first_empty == index {
            c.first_empty = self.spans[index as usize].next;
        }
        c.empty -= 1;
        self.empty -= 1;
        self.idle = self.idle.min(self.empty);
    }

    /// Links a span before `at`, or at the end if `at` is [`NONE`].
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
}
