//! Mapped memory, and how it is cut into slots.

#![allow(unsafe_code)] // Maps memory and computes addresses in it.

use std::{
    ptr::NonNull,
    sync::{Arc, atomic::AtomicU32},
};

use crate::arena::Inner;

/// Bytes of a span, the unit in which an arena maps memory; also the largest buffer.
pub const SPAN_BYTES: usize = 4 << 20;

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

/// One mapping of [`SPAN_BYTES`], aligned to its size. Unmapped on drop.
pub(crate) struct Mapping(NonNull<u8>);

// SAFETY: an address range that this value owns. Its bytes are reached only through `Buffer` (one exclusive owner of a
// slot) and `View` (shared, read only), which the slot's reference count keeps apart.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps fresh, zero-filled memory, so aligned that huge pages fit. `None` when the machine refuses.
    pub(crate) fn new(huge: bool) -> Option<Self> {
        let len = 2 * SPAN_BYTES;
        // SAFETY: a fresh anonymous private mapping, checked for failure; what lies outside the aligned part is
        // unmapped again, and nothing else knows these addresses.
        unsafe {
            let p = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if p == libc::MAP_FAILED {
                return None;
            }
            let before = p.addr().next_multiple_of(SPAN_BYTES) - p.addr();
            let aligned = p.byte_add(before);
            if before > 0 {
                libc::munmap(p, before);
            }
            libc::munmap(aligned.byte_add(SPAN_BYTES), len - SPAN_BYTES - before);
            if huge {
                libc::madvise(aligned, SPAN_BYTES, libc::MADV_HUGEPAGE);
            }
            #[cfg(test)]
            live::COUNT.with(|c| c.set(c.get() + 1));
            NonNull::new(aligned.cast()).map(Self)
        }
    }

    /// Gives the pages back to the machine; they read as zero afterwards. No slot of it may be handed out.
    pub(crate) fn discard(&self) {
        #[cfg(test)]
        live::DISCARDED.with(|c| c.set(c.get() + 1));
        // SAFETY: a whole private mapping of ours in which the caller says that no slot is live.
        unsafe { libc::madvise(self.0.as_ptr().cast(), SPAN_BYTES, libc::MADV_DONTNEED) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(test)]
        live::COUNT.with(|c| c.set(c.get() - 1));
        // SAFETY: the mapping is ours and SPAN_BYTES long; every slot's handle keeps its span, and so this, alive.
        unsafe { libc::munmap(self.0.as_ptr().cast(), SPAN_BYTES) };
    }
}

/// A mapping cut into equal slots of one class. The arena keeps it while a slot of it is handed out.
pub(crate) struct Span {
    mapping: Arc<Mapping>,
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
    pub(crate) fn new(mapping: Arc<Mapping>, class: usize, index: u32, arena: *const Inner) -> Self {
        let slots = SPAN_BYTES / class_bytes(class);
        Self { mapping, class, index, refs: (0..slots).map(|_| AtomicU32::new(0)).collect(), arena }
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        class_bytes(self.class)
    }

    pub(crate) fn slot_ptr(&self, slot: u32) -> *mut u8 {
        debug_assert!((slot as usize) < self.refs.len());
        // SAFETY: `slot` is below the number of slots, so the result is inside the mapping.
        unsafe { self.mapping.0.as_ptr().add((slot as usize) << (self.class as u32 + MIN_CLASS_SHIFT)) }
    }
}

/// Mappings that exist, as the thread of a test has made and dropped them.
#[cfg(test)]
pub(crate) mod live {
    thread_local! {
        pub(crate) static COUNT: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
        /// How often this thread has given the pages of one back.
        pub(crate) static DISCARDED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
}
