//! The lengths of buffers that are allocated together.

/// The lengths of buffers that are allocated together: the first one, then pieces of a size, of which the last one may be
/// shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLengths {
    first: usize,
    piece: usize,
    total: usize,
}

impl BufferLengths {
    /// Pieces of `piece` bytes, and one of less, for `total` bytes.
    pub fn new(total: usize, piece: usize) -> Self {
        Self::starting(piece, total, piece)
    }

    /// As [`Self::new`], but the first one has `first` bytes.
    pub fn starting(first: usize, total: usize, piece: usize) -> Self {
        Self { first: first.max(1), piece: piece.max(1), total }
    }

    /// Bytes of all.
    pub fn total(self) -> usize {
        self.total
    }

    /// The sizes of the first one and of the others.
    pub(crate) fn sizes(self) -> (usize, usize) {
        (self.first, self.piece)
    }

    /// The length of each.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        let (mut next, mut left) = (self.first, self.total);
        std::iter::from_fn(move || {
            let length = std::mem::replace(&mut next, self.piece).min(left);
            left -= length;
            (length > 0).then_some(length)
        })
    }
}

impl From<usize> for BufferLengths {
    /// One buffer.
    fn from(length: usize) -> Self {
        let length = length.max(1); // An empty buffer has memory too.
        Self::new(length, length)
    }
}
