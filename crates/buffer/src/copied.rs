//! Counter of copied payload bytes.

use std::sync::atomic::{AtomicU64, Ordering};

static COPIED: AtomicU64 = AtomicU64::new(0);

/// Copies `src` to the start of `dst`, and counts the bytes. All copies of payload above the providers use
/// this function.
///
/// # Panics
/// If `dst` is shorter than `src`: a bug of the caller that input from a peer cannot cause.
pub fn copy(dst: &mut [u8], src: &[u8]) {
    dst[..src.len()].copy_from_slice(src);
    count(src.len());
}

/// Counts `bytes` copied by other means, for example into a `Vec`.
pub fn count(bytes: usize) {
    COPIED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Number of payload bytes copied by this process.
pub fn total() -> u64 {
    COPIED.load(Ordering::Relaxed)
}
