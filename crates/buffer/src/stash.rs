//! Bytes that were read from a stream and are not processed yet.

use crate::scratch;

/// Maximum number of stored bytes that [`Stash::shrink`] moves to memory of the stash.
const FEW: usize = 512;

/// Received bytes in stream order, with free space after them.
///
/// The memory is that of the thread ([`scratch`]) while the stash has free space to read into, and returns to
/// it with [`Self::shrink`]. So streams that wait for their peers need no memory.
#[derive(Debug, Default)]
pub struct Stash {
    memory: Vec<u8>,
    start: usize,
    end: usize,
    /// Memory for [`FEW`] bytes, after the first time that it was needed and while it is not `memory`.
    few: Vec<u8>,
}

impl Stash {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// The bytes, for changes in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.end]
    }

    /// Number of the bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Removes the first `n` bytes.
    pub fn consume(&mut self, n: usize) {
        self.start += n.min(self.len());
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Free space for `n` bytes after the stored ones. Its content is unspecified.
    pub fn room(&mut self, n: usize) -> &mut [u8] {
        if self.end + n > self.memory.len() {
            self.make_room(n);
        }
        &mut self.memory[self.end..self.end + n]
    }

    fn make_room(&mut self, n: usize) {
        let stored = self.len();
        if stored + n > self.memory.len() {
            let mut larger = scratch::take(stored + n);
            larger[..stored].copy_from_slice(self.bytes());
            let old = std::mem::replace(&mut self.memory, larger);
            if old.len() <= FEW { self.few = old } else { scratch::put(old) }
        } else {
            self.memory.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, stored);
    }

    /// Adds the first `n` bytes of the free space, which were written.
    pub fn commit(&mut self, n: usize) {
        self.end = (self.end + n).min(self.memory.len());
    }

    /// Adds `bytes` at the end.
    pub fn append(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.commit(bytes.len());
    }

    /// Returns the memory to the thread if few bytes or none are stored. To be called when the stream waits for its peer.
    pub fn shrink(&mut self) {
        if self.len() <= FEW && self.memory.len() > FEW {
            let mut few = std::mem::take(&mut self.few);
            few.clear();
            if !self.is_empty() {
                few.reserve_exact(FEW);
                few.extend_from_slice(self.bytes());
            }
            (self.start, self.end) = (0, few.len());
            scratch::put(std::mem::replace(&mut self.memory, few));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn bytes_are_consumed_in_the_order_of_their_arrival() {
        let mut s = Stash::default();
        let mut expected = VecDeque::new();
        for i in 0..2000usize {
            let piece = vec![i as u8; i % 171];
            s.append(&piece);
            expected.extend(piece);
            let n = (i * 7) % 173;
            let n = n.min(expected.len());
            assert_eq!(s.bytes()[..n], expected.drain(..n).collect::<Vec<_>>());
            s.consume(n);
            if i % 3 == 0 {
                s.shrink();
            }
            assert_eq!((s.len(), s.is_empty()), (expected.len(), expected.is_empty()));
        }
        assert_eq!(s.bytes(), expected.make_contiguous());
        assert!(s.memory.len() < 16384, "the size depends on the stored bytes, not on the total");
    }

    #[test]
    fn a_stash_with_few_bytes_has_little_memory() {
        let mut s = Stash::default();
        s.room(65536).fill(7);
        s.commit(FEW + 3);
        s.shrink();
        assert!(s.memory.len() >= 65536);
        s.consume(5);
        s.shrink();
        assert_eq!((s.bytes(), s.memory.capacity()), (&[7; FEW - 2][..], FEW));
        let few = s.memory.as_ptr();
        s.append(&[8; 4]);
        assert_eq!((s.len(), s.bytes()[FEW - 3], s.bytes()[FEW - 2]), (FEW + 2, 7, 8));
        s.consume(FEW + 2);
        s.shrink();
        assert_eq!((s.is_empty(), s.memory.len()), (true, 0));
        s.append(&[9; 3]);
        s.shrink();
        assert_eq!((s.bytes(), s.memory.as_ptr()), (&[9; 3][..], few), "it is allocated once");
    }
}
