//! A global allocator that counts, for tests: a program that uses this crate allocates with it.
//!
//! A reallocation counts as an allocation of the new size and a release of the old one.

#![allow(unsafe_code)] // A global allocator has no safe form.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static ALLOCATED_BYTES: Cell<u64> = const { Cell::new(0) };
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
}

static ALLOCATIONS_OF_ALL_THREADS: AtomicU64 = AtomicU64::new(0);
static HELD_BYTES_OF_ALL_THREADS: AtomicI64 = AtomicI64::new(0);

/// Number of allocations of the current thread. Other threads, such as that of the test harness, allocate at any
/// time.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Number of allocations of all threads.
pub fn allocations_of_all_threads() -> u64 {
    ALLOCATIONS_OF_ALL_THREADS.load(Ordering::Relaxed)
}

/// Number of bytes that the current thread has requested in all its allocations.
pub fn allocated_bytes() -> u64 {
    ALLOCATED_BYTES.get()
}

/// Number of bytes that the allocations of the current thread occupy, less those that it has released: negative
/// if it released memory of other threads. An allocation occupies its size after rounding by malloc(3), and the
/// 8 bytes in which glibc stores the size.
pub fn held_bytes() -> i64 {
    HELD_BYTES.get()
}

/// As [`held_bytes`], of all threads.
pub fn held_bytes_of_all_threads() -> i64 {
    HELD_BYTES_OF_ALL_THREADS.load(Ordering::Relaxed)
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Adds to a counter of this thread, unless the thread ends and has destroyed it.
fn add<T: Copy + std::ops::Add<Output = T>>(counter: &'static std::thread::LocalKey<Cell<T>>, n: T) {
    let _ = counter.try_with(|counter| counter.set(counter.get() + n));
}

/// Counts `bytes` more that are occupied.
fn hold(bytes: i64) {
    add(&HELD_BYTES, bytes);
    HELD_BYTES_OF_ALL_THREADS.fetch_add(bytes, Ordering::Relaxed);
}

/// Bytes that the allocation at `at` occupies.
///
/// # Safety
/// The system's allocator has returned `at`, and it is not released.
unsafe fn occupied(at: *mut u8) -> i64 {
    // SAFETY: the system's allocator is malloc(3), as the caller guarantees.
    unsafe { libc::malloc_usable_size(at.cast()) as i64 + 8 }
}

// SAFETY: every call is forwarded unchanged to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        let at = unsafe { System.alloc(layout) };
        if !at.is_null() {
            add(&ALLOCATIONS, 1);
            add(&ALLOCATED_BYTES, layout.size() as u64);
            // SAFETY: `at` was allocated above.
            hold(unsafe { occupied(at) });
            ALLOCATIONS_OF_ALL_THREADS.fetch_add(1, Ordering::Relaxed);
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above, and is released below.
        hold(-unsafe { occupied(at) });
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_and_their_bytes_are_counted_until_they_are_released() {
        let before = (allocations(), allocated_bytes(), held_bytes(), allocations_of_all_threads());
        let mut bytes = std::hint::black_box(Vec::<u8>::with_capacity(1000));
        assert_eq!((allocations() - before.0, allocated_bytes() - before.1), (1, 1000));
        assert!((1008..1100).contains(&(held_bytes() - before.2)));
        assert!(allocations_of_all_threads() > before.3);
        bytes.reserve_exact(5000);
        let bytes = std::hint::black_box(bytes);
        assert_eq!((allocations() - before.0, allocated_bytes() - before.1), (2, 6000));
        assert!((5008..5100).contains(&(held_bytes() - before.2)), "the first block is released");
        drop(bytes);
        assert_eq!(held_bytes(), before.2);
    }

    #[test]
    fn other_threads_count_only_in_the_sum_of_all() {
        let before = (allocations_of_all_threads(), allocations());
        let held = (held_bytes_of_all_threads(), held_bytes());
        let theirs = std::thread::spawn(|| {
            let before = allocations();
            let bytes = std::hint::black_box(vec![0_u8; 1 << 20]);
            (allocations() - before, bytes)
        });
        let started = allocations() - before.1;
        let (theirs, bytes) = theirs.join().unwrap_or_default();
        assert_eq!(theirs, 1);
        assert!(allocations_of_all_threads() - before.0 > started);
        let own = held_bytes() - held.1;
        assert!(held_bytes_of_all_threads() - held.0 >= own + (1 << 20), "{own} bytes of this thread");
        drop(bytes);
    }
}
