//! A span divided into slots.

#![allow(unsafe_code)] // Computes addresses of slots.

use std::ptr::NonNull;

use crate::{
    arena::Inner,
    mapping::{SPAN_BYTES, SpanRef},
    sync::AtomicU32,
};

/// Bytes of a page: the unit of memory in which quotas are used, and the smallest slot of a block span.
pub const PAGE_BYTES: usize = 1 << PAGE_SHIFT;
/// Bytes of a block: the largest slot of a block span.
pub const BLOCK_BYTES: usize = PAGE_BYTES << BLOCK_ORDER;
const PAGE_SHIFT: u32 = 12;
/// The order of a block: a slot of order `n` has `2^n` pages.
pub(crate) const BLOCK_ORDER: u8 = 4;
/// Pages of a block.
pub(crate) const BLOCK_PAGES: u32 = 1 << BLOCK_ORDER;
/// Blocks of a span.
pub(crate) const SPAN_BLOCKS: u32 = (SPAN_BYTES / BLOCK_BYTES) as u32;
/// Pages of a span.
pub(crate) const SPAN_PAGES: u32 = SPAN_BLOCKS * BLOCK_PAGES;

const MIN_CLASS_SHIFT: u32 = 9; // 512 B
/// Size classes: powers of two from 512 bytes to a whole span.
pub(crate) const CLASSES: usize = (SPAN_BYTES.trailing_zeros() - MIN_CLASS_SHIFT) as usize + 1;
/// The class whose slots are as large as a block.
pub(crate) const BLOCK_CLASS: usize = (BLOCK_BYTES.trailing_zeros() - MIN_CLASS_SHIFT) as usize;

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

/// The smallest order whose slots hold `len` bytes.
pub(crate) fn order_of(len: usize) -> Option<u8> {
    let pages = len.max(1).div_ceil(PAGE_BYTES).checked_next_power_of_two()?;
    let order = pages.trailing_zeros() as u8;
    (order <= BLOCK_ORDER).then_some(order)
}

/// How a span is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Into equal slots of this class.
    Class(usize),
    /// Into blocks, and those into slots of 1 to 16 pages.
    Blocks,
}

impl Layout {
    /// Slots begin at multiples of `2^shift` bytes.
    fn shift(self) -> u32 {
        match self {
            Self::Class(class) => class as u32 + MIN_CLASS_SHIFT,
            Self::Blocks => PAGE_SHIFT,
        }
    }
}

/// A slot that the arena has just taken for a new owner.
pub(crate) struct Taken {
    pub(crate) span: NonNull<Span>,
    pub(crate) index: u16,
    pub(crate) order: u8,
}

/// A mapping divided into slots. The arena keeps it while a slot of it is handed out.
pub(crate) struct Span {
    pub(crate) mapping: SpanRef,
    pub(crate) layout: Layout,
    /// The key of this span among the arena's spans of its kind.
    pub(crate) index: u32,
    /// One word for each place where a slot may begin. Of a slot that is handed out: the number of references. Of a
    /// free slot of a class it belongs to the arena, which keeps its free list there, under its lock.
    pub(crate) refs: Box<[AtomicU32]>,
    /// Where slots are returned. Valid for slots that are handed out only: they hold a strong count of the arena.
    pub(crate) arena: *const Inner,
    shift: u32,
    /// Stands for the bytes of the slots, so that loom sees who reads and writes them.
    #[cfg(loom)]
    pub(crate) bytes: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: `arena` points to a value that is `Send` and `Sync`; the other fields are both by themselves.
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

    /// Bytes of a slot of `order` (0 in a span of a class).
    pub(crate) fn slot_bytes(&self, order: u8) -> usize {
        1 << (self.shift + u32::from(order))
    }

    pub(crate) fn slot_ptr(&self, index: u16) -> *mut u8 {
        debug_assert!(usize::from(index) < self.refs.len());
        // SAFETY: `index` is below the number of places, so the result is inside the mapping.
        unsafe { self.mapping.start().as_ptr().add(usize::from(index) << self.shift) }
    }
}
