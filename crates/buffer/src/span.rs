//! How mapped memory is cut into slots.

#![allow(unsafe_code)] // Computes addresses of slots.

use std::sync::atomic::AtomicU32;

use crate::{
    arena::Inner,
    mapping::{SPAN_BYTES, SpanRef},
};

const MIN_CLASS_SHIFT: u32 = 9; // 512 B
/// Size classes: powers of two from 512 bytes to a whole span.
pub(crate) const CLASSES: usize = (SPAN_BYTES.trailing_zeros() - MIN_CLASS_SHIFT) as usize + 1;

/// The smallest class whose slots hold `len` bytes.
pub(crate) fn class_of(len: usize) -> Option<usize> {
    let shift = len.max(1).checked_next_power_of_two()?.trailing_zeros().max(MIN_CLASS_SHIFT);
    let class = (shift - MIN_CLASS_SHIFT) as usize;
    (class < CLASSES).then_some(class)
}

/// Bytes of a slot of `class`.
pub(crate) const fn class_bytes(class: usize) -> usize {
    1 << (class as u32 + MIN_CLASS_SHIFT)
}

/// A mapping cut into equal slots of one class. The arena keeps it while a slot of it is handed out.
pub(crate) struct Span {
    pub(crate) mapping: SpanRef,
    pub(crate) class: usize,
    /// Which of the arena's spans this is.
    pub(crate) index: u32,
    /// One word per slot. Of a slot that is handed out: the number of references. Of a free one it belongs to the
    /// arena, which keeps its free list there, under its lock.
    pub(crate) refs: Box<[AtomicU32]>,
    /// Where slots go back to. Only a slot that is handed out may follow it: it holds a count of the arena.
    pub(crate) arena: *const Inner,
}

// SAFETY: `arena` points to what is `Send` and `Sync` itself; the rest is so without our word.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    pub(crate) fn new(mapping: SpanRef, class: usize, index: u32, arena: *const Inner) -> Self {
        let slots = SPAN_BYTES / class_bytes(class);
        Self { mapping, class, index, refs: (0..slots).map(|_| AtomicU32::new(0)).collect(), arena }
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        class_bytes(self.class)
    }

    pub(crate) fn slot_ptr(&self, slot: u32) -> *mut u8 {
        debug_assert!((slot as usize) < self.refs.len());
        // SAFETY: `slot` is below the number of slots, so the result is inside the mapping.
        unsafe { self.mapping.start().add((slot as usize) << (self.class as u32 + MIN_CLASS_SHIFT)) }
    }
}
