//! Received bytes that are not yet placed: headers, small messages, and data after a wrong prediction.

use crate::wire::fpdu;

/// Bytes in stream order, with free space after them.
#[derive(Debug, Default)]
pub(super) struct Stash {
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

impl Stash {
    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Removes the first `n` bytes.
    pub(super) fn consume(&mut self, n: usize) {
        self.start += n.min(self.end - self.start);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Free space for `n` bytes after the stored ones.
    pub(super) fn room(&mut self, n: usize) -> &mut [u8] {
        if self.end + n > self.buf.len() && self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end + n > self.buf.len() {
            self.buf.resize(self.end + n, 0);
        }
        &mut self.buf[self.end..self.end + n]
    }

    /// Adds the `n` bytes that were written to the free space.
    pub(super) fn commit(&mut self, n: usize) {
        self.end = (self.end + n).min(self.buf.len());
    }

    /// Adds `bytes` at the end.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.commit(bytes.len());
    }

    /// Releases memory after a large spill.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() && self.buf.len() > 4 * fpdu::MAX_FPDU {
            self.buf = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_consumed_in_the_order_of_their_arrival() {
        let mut s = Stash::default();
        let mut expected = std::collections::VecDeque::new();
        for i in 0..200usize {
            let piece = vec![i as u8; i % 17];
            s.append(&piece);
            expected.extend(piece);
            let n = (i * 7) % 13;
            let n = n.min(expected.len());
            assert_eq!(s.bytes()[..n], expected.drain(..n).collect::<Vec<_>>());
            s.consume(n);
        }
        assert_eq!(s.bytes(), expected.make_contiguous());
        assert!(s.buf.len() < 4096, "the size depends on the stored bytes, not on the total");
    }
}
