//! Bytes that the current thread allocates on the heap.

#![allow(unsafe_code)] // Counts bytes at the allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Counting;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = TAKEN.try_with(|taken| taken.set(taken.get().wrapping_add(layout.size())));
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Heap bytes that a decoder may allocate for each byte of its input. A decoded directory entry has up to 240
/// bytes for a minimum of 32 on the wire, and a vector that grows by doubling allocates twice its final size
/// in total.
const PER_BYTE: usize = 64;
/// Heap bytes that a decoder may allocate for any input: error messages, first allocations of vectors.
const CONSTANT: usize = 16 << 10;

/// Runs `decode`, which reads `len` bytes, and asserts that it allocates at most in proportion to them.
#[track_caller]
pub(crate) fn bounded<T>(len: usize, decode: impl FnOnce() -> T) -> T {
    let before = TAKEN.get();
    let out = decode();
    let taken = TAKEN.get().wrapping_sub(before);
    assert!(taken <= len * PER_BYTE + CONSTANT, "{taken} bytes were allocated for an input of {len} bytes");
    out
}
