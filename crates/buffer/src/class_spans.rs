//! Spans of one size class each, for transient buffers.

use slab::Slab;

use crate::{
    arena::Inner,
    mapping::SpanRef,
    span::{CLASSES, Layout, Span, Taken, class_bytes},
    sync::{Arc, Ordering},
};

/// Empty spans that a class keeps for itself while others may still map memory. With fewer, a class whose use swings
/// around a span boundary would lose its span and get another all the time.
const SPARE_SPANS: u32 = 2;
const NONE: u32 = u32::MAX;

/// A span as the arena sees it. Its free slots are `free_head` and those that follow from there through `Span::refs`, and
/// all slots from `fresh` on, which were not handed out since the span was last empty.
struct SpanState {
    span: Arc<Span>,
    free_head: u32,
    fresh: u32,
    free: u32,
    /// Neighbours in the list of the class; meaningful only while there is a free slot.
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

    /// All slots are free: hand them out from the lowest on again.
    fn reset(&mut self) {
        (self.free_head, self.fresh, self.free) = (NONE, 0, self.slots());
    }
}

/// The spans of a class that have a free slot, as a list through [`SpanState`]. Those in use come first, the one that
/// was full last at the very front: so the fullest are filled up and the others run empty. Then come the empty ones, the
/// one that was used last first, because its memory is in the processor's cache.
#[derive(Clone, Copy)]
struct ClassState {
    head: u32,
    tail: u32,
    first_empty: u32,
    empty: u32,
    /// All spans of the class, full ones included.
    spans: u32,
}

/// All spans of size classes.
pub(crate) struct ClassSpans {
    spans: Slab<SpanState>,
    classes: [ClassState; CLASSES],
    max_spans: usize,
    /// Empty spans of all classes, and the fewest that there were since the last [`Self::trim`].
    empty: u32,
    idle: u32,
    in_use: usize,
}

impl ClassSpans {
    pub(crate) fn new(max_spans: usize) -> Self {
        let class = ClassState { head: NONE, tail: NONE, first_empty: NONE, empty: 0, spans: 0 };
        Self { spans: Slab::new(), classes: [class; CLASSES], max_spans, empty: 0, idle: 0, in_use: 0 }
    }

    /// Bytes of slots that are handed out.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// The number of spans that are mapped.
    pub(crate) fn mapped(&self) -> usize {
        self.spans.len()
    }

    /// The number of spans of each class.
    pub(crate) fn by_class(&self) -> [usize; CLASSES] {
        self.classes.map(|c| c.spans as usize)
    }

    /// Takes a free slot of `class`; `map` maps another span, while the limit allows one.
    pub(crate) fn take(
        &mut self,
        class: usize,
        arena: *const Inner,
        map: impl FnOnce() -> Option<SpanRef>,
    ) -> Option<Taken> {
        if self.classes[class].head == NONE {
            self.refill(class, arena, map)?;
        }
        let index = self.classes[class].head;
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
        Some(Taken { span, index: slot, order: 0 })
    }

    /// Gives `class` an empty span: one that another class can spare, a new one, or at the limit any empty one.
    fn refill(
        &mut self,
        class: usize,
        arena: *const Inner,
        map: impl FnOnce() -> Option<SpanRef>,
    ) -> Option<()> {
        if let Some(index) = self.steal(SPARE_SPANS) {
            self.divide(index, class, arena);
            return Some(());
        }
        let mapping = if self.spans.len() < self.max_spans { map() } else { None };
        match mapping {
            Some(mapping) => self.add(mapping, class, arena),
            None => {
                let index = self.steal(0)?;
                self.divide(index, class, arena);
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

    /// Takes an empty span out of a class that has more than `spare`.
    fn steal(&mut self, spare: u32) -> Option<u32> {
        let class = (0..CLASSES).find(|c| self.classes[*c].empty > spare)?;
        let index = self.classes[class].first_empty;
        self.count_out(class, index);
        self.unlink(class, index);
        self.classes[class].spans -= 1;
        Some(index)
    }

    /// Divides a span that is in no list into slots of `class`.
    fn divide(&mut self, index: u32, class: usize, arena: *const Inner) {
        let s = &mut self.spans[index as usize];
        *s = SpanState::new(Span::new(s.span.mapping.clone(), Layout::Class(class), index, arena));
        self.classes[class].spans += 1;
        self.link_empty(class, index);
    }

    /// Takes a slot back.
    pub(crate) fn give(&mut self, class: usize, index: u32, slot: u16) {
        self.in_use -= class_bytes(class);
        let s = &mut self.spans[index as usize];
        s.push(slot);
        match (s.free == 1, s.is_empty()) {
            (true, false) => self.link_before(class, index, self.classes[class].head),
            (false, true) => {
                self.unlink(class, index);
                self.link_empty(class, index);
            }
            // A span of one slot was full, and so in no list.
            (true, true) => self.link_empty(class, index),
            (false, false) => {}
        }
    }

    /// Removes as many empty spans as were empty at all times since the last call, those first that are empty longest.
    /// Spans that others refer to stay, since their memory would not be unmapped. The result is to be dropped where no
    /// lock is held.
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

    /// Counts the empty span `index`, which is still in the list of its class, as one that is used or removed next.
    fn count_out(&mut self, class: usize, index: u32) {
        let c = &mut self.classes[class];
        if c.first_empty == index {
            c.first_empty = self.spans[index as usize].next;
        }
        c.empty -= 1;
        self.empty -= 1;
        self.idle = self.idle.min(self.empty);
    }

    /// Links a span before `at`, or at the end if that is [`NONE`].
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
