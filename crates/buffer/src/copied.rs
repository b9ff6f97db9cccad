//! The counter of copied payload bytes.

use std::sync::atomic::{AtomicU64, Ordering};

static COPIED: AtomicU64 = AtomicU64::new(0);

/// Copies `src` to the start of `dst` and counts it. Every copy of payload above the providers goes through here.
///
/// # Panics
/// When `dst` is shorter than `src`: a bug of the caller, never caused by a peer's bytes.
pub fn copy(dst: &mut [u8], src: &[u8]) {
    dst[..src.len()].copy_from_slice(src);
    count(src.len());
}

/// Counts `bytes` copied by other means (a `Vec` filled from a view).
pub fn count(bytes: usize) {
    COPIED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Payload bytes copied by this process since it started.
pub fn total() -> u64 {
    COPIED.load(Ordering::Relaxed)
}
