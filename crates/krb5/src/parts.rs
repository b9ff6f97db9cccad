//! Positions in a token that is in several parts of memory.

/// A position in a token, which moves forward, and from the token's end to [`Ring::START`]: there begins what a sender
/// may have rotated (RFC 4121 section 4.2.5).
pub(crate) struct Ring<'t, 'b> {
    parts: &'t mut [&'b mut [u8]],
    at: Position,
    start: Position,
}

/// Index of a part, and an offset in it. The offset is less than the length of the part.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Position {
    part: usize,
    offset: usize,
}

impl<'t, 'b> Ring<'t, 'b> {
    /// The offset after the token's header.
    pub(crate) const START: usize = 16;

    /// The position at offset 0 of a token that is longer than its header.
    pub(crate) fn new(parts: &'t mut [&'b mut [u8]]) -> Self {
        let mut ring = Self { parts, at: Position::default(), start: Position::default() };
        ring.advance(0);
        let first = ring.at;
        ring.advance(Self::START);
        ring.start = ring.at;
        ring.at = first;
        ring
    }

    /// The position, for [`Self::seek`].
    pub(crate) fn position(&self) -> Position {
        self.at
    }

    /// Returns to a position.
    pub(crate) fn seek(&mut self, to: Position) {
        self.at = to;
    }

    /// Moves by `len` bytes.
    pub(crate) fn advance(&mut self, len: usize) {
        self.at.offset += len;
        loop {
            while let Some(part) = self.parts.get(self.at.part)
                && self.at.offset >= part.len()
            {
                self.at.offset -= part.len();
                self.at.part += 1;
            }
            if self.at.part < self.parts.len() {
                return;
            }
            self.at = Position { part: self.start.part, offset: self.start.offset + self.at.offset };
        }
    }

    /// The next bytes that are together in memory, at most `max`.
    pub(crate) fn next(&mut self, max: usize) -> &mut [u8] {
        let part = &mut self.parts[self.at.part][self.at.offset..];
        let len = part.len().min(max);
        &mut part[..len]
    }

    /// Reads the next bytes.
    pub(crate) fn read(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            let from = self.next(out.len());
            let (now, later) = out.split_at_mut(from.len());
            now.copy_from_slice(from);
            out = later;
            self.advance(now.len());
        }
    }

    /// Writes the next bytes.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let to = self.next(bytes.len());
            let (now, later) = bytes.split_at(to.len());
            to.copy_from_slice(now);
            bytes = later;
            self.advance(now.len());
        }
    }
}

/// Length of all parts.
pub(crate) fn len(parts: &[&mut [u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

/// Moves the first `count` of the bytes from `start` to the end of these bytes.
pub(crate) fn rotate_left(parts: &mut [&mut [u8]], start: usize, count: usize) {
    let end = len(parts);
    reverse(parts, start, start + count);
    reverse(parts, start + count, end);
    reverse(parts, start, end);
}

/// Reverses the bytes from `from` to `to`.
fn reverse(parts: &mut [&mut [u8]], mut from: usize, mut to: usize) {
    // Offsets of the first byte of `low`, and of the first byte after `high`.
    let (mut low, mut high) = (0, parts.len());
    let (mut low_at, mut high_end) = (0, len(parts));
    while from + 1 < to {
        while from >= low_at + parts[low].len() {
            low_at += parts[low].len();
            low += 1;
        }
        while to <= high_end - parts[high - 1].len() {
            high -= 1;
            high_end -= parts[high].len();
        }
        let (i, j) = (from - low_at, to - 1 - (high_end - parts[high - 1].len()));
        if low == high - 1 {
            parts[low].swap(i, j);
        } else {
            let (lower, upper) = parts.split_at_mut(high - 1);
            std::mem::swap(&mut lower[low][i], &mut upper[0][j]);
        }
        (from, to) = (from + 1, to - 1);
    }
}
