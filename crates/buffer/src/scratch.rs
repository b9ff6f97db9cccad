//! Heap memory that the tasks of a thread use one after another.

use std::cell::RefCell;

/// Maximum number of pieces that a thread keeps.
const MAX_PIECES: usize = 4;
/// Size in bytes of the smallest and the largest piece that a thread keeps.
const KEPT: std::ops::RangeInclusive<usize> = 4 << 10..=256 << 10;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Returns at least `bytes` bytes of initialized memory with unspecified content: those that were passed to [`put`] on this
/// thread last, and are still in the processor's cache, if there are any.
pub fn take(bytes: usize) -> Vec<u8> {
    let kept = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
    let mut memory = kept.unwrap_or_default();
    if memory.len() < bytes {
        memory.resize(bytes, 0);
    }
    memory
}

/// Keeps memory for the next [`take`] of this thread, or frees it if the thread has enough.
pub fn put(memory: Vec<u8>) {
    if KEPT.contains(&memory.len()) {
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < MAX_PIECES {
                free.push(memory);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_grows() {
        let mut memory = take(5000);
        memory.fill(1);
        let at = memory.as_ptr();
        put(memory);
        let memory = take(100);
        assert_eq!((memory.len(), memory.as_ptr()), (5000, at));
        put(memory);
        assert_eq!(take(6000).len(), 6000);
        assert_eq!(take(7).len(), 7, "nothing is kept while it is used");
    }

    #[test]
    fn a_thread_keeps_little_memory() {
        put(vec![0; KEPT.start() - 1]);
        put(vec![0; KEPT.end() + 1]);
        assert_eq!(take(0).len(), 0);
        (0..2 * MAX_PIECES).for_each(|_| put(vec![0; *KEPT.end()]));
        let kept = (0..2 * MAX_PIECES).filter(|_| !take(0).is_empty()).count();
        assert_eq!(kept, MAX_PIECES);
    }
}
