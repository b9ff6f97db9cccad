//! A span divided into slots.

#![allow(unsafe_code)] // Computes addresses of slots.

use std::ptr::NonNull;

use crate::{
    arena::Inner,
    mapping::{SPAN_BYTES, SpanRef},
    sync::AtomicU32,
};

/// Size of a page in bytes: the unit of quotas, and the smallest slot of a block span.
pub const PAGE_BYTES: usize = 1 << PAGE_SHIFT;
/// Size of a block in bytes: the largest slot of a block span.
pub const BLOCK_BYTES: usize = PAGE_BYTES << BLOCK_ORDER;
const PAGE_SHIFT: u32 = 12;
/// Order of a block: a slot of order `n` has `2^n` pages.
pub(crate) const BLOCK_ORDER: u8 = 4;
/// Number of pages in a block.
pub(crate) const BLOCK_PAGES: u32 = 1 << BLOCK_ORDER;
/// Number of blocks in a span.
pub(crate) const SPAN_BLOCKS: u32 = (SPAN_BYTES / BLOCK_BYTES) as u32;
/// Number of pages in a span.
pub(crate) const SPAN_PAGES: u32 = SPAN_BLOCKS * BLOCK_PAGES;

const MIN_CLASS_SHIFT: u32 = 9; // 512 B
/// Number of size classes: powers of two from 512 bytes to a whole span.
pub(crate) const CLASSES: usize = (SPAN_BYTES.trailing_zeros() - MIN_CLASS_SHIFT) as usize + 1;
/// The class of slots as large as a block.
pub(crate) const BLOCK_CLASS: usize = (BLOCK_BYTES.trailing_zeros() - MIN_CLASS_SHIFT) as usize;

/// The smallest class with slots of at least `len` bytes.
pub(crate) fn class_of(len: usize) -> Option<usize> {
    // The binary logarithm, rounded up.
    let shift = usize::BITS - (len.max(1 << MIN_CLASS_SHIFT) - 1).leading_zeros();
    let class = (shift - MIN_CLASS_SHIFT) as usize;
    (class < CLASSES).then_some(class)
}

/// Slot size of `class` in bytes.
pub(crate) const fn class_bytes(class: usize) -> usize {
    1 << (class as u32 + MIN_CLASS_SHIFT)
}

/// Size in bytes of the memory that a [`Buffer`](crate::Buffer) of `len` bytes occupies in its arena.
pub fn slot_bytes(len: usize) -> usize {
    len.next_power_of_two().max(class_bytes(0))
}

/// The smallest order with slots of at least `len` bytes.
pub(crate) fn order_of(len: usize) -> Option<u8> {
    let pages = len.max(1).div_ceil(PAGE_BYTES).checked_next_power_of_two()?;
    let order = pages.trailing_zeros() as u8;
    (order <= BLOCK_ORDER).then_some(order)
}

/// Division of a span into slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Equal slots of this class.
    Class(usize),
    /// Blocks, divided into slots of 1 to 16 pages.
    Blocks,
}

impl Layout {
    /// Slots are aligned to `2^shift` bytes.
    fn shift(self) -> u32 {
        match self {
            Self::Class(class) => class as u32 + MIN_CLASS_SHIFT,
            Self::Blocks => PAGE_SHIFT,
        }
    }
}

/// A slot without references to its bytes: just allocated, just freed, or cached. One that is cached or in use holds a
/// strong reference to its arena.
#[derive(Clone, Copy)]
pub(crate) struct AllocatedSlot {
    pub(crate) span: NonNull<Span>,
    /// [`Span::index`].
    pub(crate) span_index: u32,
    pub(crate) index: u16,
    pub(crate) order: u8,
}

// SAFETY: a shared reference to a `Span`, which is `Sync`. It is used only while the arena exists, which keeps
// the span as long as the slot has not been freed to it.
unsafe impl Send for AllocatedSlot {}

/// A mapping divided into slots. The arena keeps it while one of its slots is in use.
pub(crate) struct Span {
    pub(crate) mapping: SpanRef,
    pub(crate) layout: Layout,
    /// Index among the arena's spans of the same kind.
    pub(crate) index: u32,
    /// One word for each possible slot position. For a slot in use, the number of references. For a free slot
    /// of a class span, a link of the free list, protected by the arena's lock.
    pub(crate) refs: Box<[AtomicU32]>,
    /// The arena to which slots are returned. Valid while a slot is in use, which holds a strong reference to
    /// the arena.
    pub(crate) arena: *const Inner,
    shift: u32,
    /// Represents the bytes of the slots for loom.
    #[cfg(loom)]
    pub(crate) bytes: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: `arena` points to a `Send` and `Sync` value; so are the other fields.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    pub(crate) fn new(mapping: SpanRef, layout: Layout, index: u32, arena: *const Inner) -> Self {
        let shift = layout.shift();
        let refs = (0..SPAN_BYTES >> shift).map(|_| AtomicU32::new(0)).collect();
        Self {
            mapping,
            layout,
            index,
            refs,
            arena,
            shift,
            #[cfg(loom)]
            bytes: (0..SPAN_BYTES >> shift).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        }
    }

    /// Size of a slot of `order` in bytes (0 in a class span).
    pub(crate) fn slot_bytes(&self, order: u8) -> usize {
        1 << (self.shift + u32::from(order))
    }

    pub(crate) fn slot_start(&self, index: u16) -> NonNull<u8> {
        debug_assert!(usize::from(index) < self.refs.len());
        // SAFETY: `index` is a valid slot position, so the result is inside the mapping.
        unsafe { self.mapping.start().add(usize::from(index) << self.shift) }
    }
}
