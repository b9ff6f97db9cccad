//! Bytes that the current thread allocates on the heap.

use millrace_counting_allocator::allocated_bytes;

/// Heap bytes that a decoder may allocate for each byte of its input. A decoded directory entry has up to 240
/// bytes for a minimum of 32 on the wire, and a vector that grows by doubling allocates twice its final size
/// in total.
const PER_BYTE: u64 = 64;
/// Heap bytes that a decoder may allocate for any input: error messages, first allocations of vectors.
const CONSTANT: u64 = 16 << 10;

/// Runs `decode`, which reads `len` bytes, and asserts that it allocates at most in proportion to them.
#[track_caller]
pub(crate) fn bounded<T>(len: usize, decode: impl FnOnce() -> T) -> T {
    let before = allocated_bytes();
    let out = decode();
    let taken = allocated_bytes() - before;
    assert!(
        taken <= len as u64 * PER_BYTE + CONSTANT,
        "{taken} bytes were allocated for an input of {len} bytes"
    );
    out
}
