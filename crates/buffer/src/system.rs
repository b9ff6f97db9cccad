//! Memory from the system: anonymous mappings, or the global allocator under Miri and loom, which do not
//! support mmap.

#![allow(unsafe_code)] // Maps and unmaps memory.

use std::ptr::NonNull;

use crate::SPAN_BYTES;

/// [`SPAN_BYTES`] of zero-filled memory, aligned to its size. Returned to the system on drop.
pub(crate) struct Memory {
    start: NonNull<u8>,
}

// SAFETY: an address range owned by this value. Its bytes are accessed only through `Buffer` (exclusive owner
// of a slot) and `View` (shared, read-only), as the slot's reference count ensures.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps memory; `None` on failure. `huge` requests transparent huge pages, which are excluded otherwise.
    pub(crate) fn map(huge: bool) -> Option<Self> {
        let start = os::map(huge)?;
        #[cfg(test)]
        live::COUNT.with(|c| c.set(c.get() + 1));
        Some(Self { start })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        #[cfg(test)]
        live::COUNT.with(|c| c.set(c.get() - 1));
        // SAFETY: `map` returned this memory; all users hold a `SpanRef`, or a slot whose arena does.
        unsafe { os::unmap(self.start) };
    }
}

#[cfg(not(any(miri, loom)))]
mod os {
    use super::{NonNull, SPAN_BYTES};

    pub(super) fn map(huge: bool) -> Option<NonNull<u8>> {
        let len = 2 * SPAN_BYTES;
        // SAFETY: a new anonymous private mapping, checked for failure; the parts outside the aligned range
        // are unmapped before their addresses are known elsewhere.
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
            // It fails on a kernel without huge pages.
            libc::madvise(
                aligned,
                SPAN_BYTES,
                if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE },
            );
            NonNull::new(aligned.cast())
        }
    }

    /// # Safety
    /// `map` returned `start`, and the memory is no longer in use.
    pub(super) unsafe fn unmap(start: NonNull<u8>) {
        // SAFETY: guaranteed by the caller; the mapping is `SPAN_BYTES` long.
        unsafe { libc::munmap(start.as_ptr().cast(), SPAN_BYTES) };
    }
}

#[cfg(any(miri, loom))]
mod os {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::{NonNull, SPAN_BYTES};

    const LAYOUT: Layout = match Layout::from_size_align(SPAN_BYTES, SPAN_BYTES) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two is a valid alignment"),
    };

    pub(super) fn map(_huge: bool) -> Option<NonNull<u8>> {
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc_zeroed(LAYOUT) })
    }

    /// # Safety
    /// `map` returned `start`, and the memory is no longer in use.
    pub(super) unsafe fn unmap(start: NonNull<u8>) {
        // SAFETY: guaranteed by the caller; `map` allocates with this layout.
        unsafe { dealloc(start.as_ptr(), LAYOUT) };
    }
}

/// Number of live mappings of a test's thread.
#[cfg(test)]
pub(crate) mod live {
    thread_local! {
        pub(crate) static COUNT: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
    }
}
