//! The memory of a read, of which each command has a part while the target may write to it.

use millrace_buffer::{Arena, Buffer, OutOfMemory, copy};
use smallvec::{SmallVec, smallvec};

/// The parts of a buffer that no command has.
pub(crate) struct Pieces {
    length: usize,
    /// The pieces with their offsets, in order; adjacent pieces are joined.
    free: SmallVec<[(usize, Buffer); 2]>,
}

impl Pieces {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self { length: buffer.len(), free: smallvec![(0, buffer)] }
    }

    /// Length of the buffer in bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Takes a part out. If the part was lost with a connection, a new buffer of `arena` replaces the whole buffer, and
    /// holds the data of the other parts, also of those that commands still have.
    pub(super) fn take(
        &mut self,
        offset: usize,
        length: usize,
        arena: &Arena,
    ) -> Result<Buffer, OutOfMemory> {
        if let Some(piece) = self.cut(offset, length) {
            return Ok(piece);
        }
        let mut new = Self::new(arena.alloc(self.length)?);
        for (at, piece) in self.free.drain(..) {
            new.put(at, piece);
        }
        *self = new;
        // A part is never larger than the buffer, so this succeeds.
        self.cut(offset, length).ok_or(OutOfMemory::new(length.into(), self.length))
    }

    fn cut(&mut self, offset: usize, length: usize) -> Option<Buffer> {
        let (i, within) = self.find(offset, length)?;
        let (_, first) = &mut self.free[i];
        let mut piece = first.split_off(within);
        let rest = piece.split_off(length);
        match (within, rest.is_empty()) {
            (0, true) => drop(self.free.remove(i)),
            (0, false) => self.free[i] = (offset + length, rest),
            (_, true) => {}
            (_, false) => self.free.insert(i + 1, (offset + length, rest)),
        }
        Some(piece)
    }

    /// Returns a part.
    pub(super) fn put(&mut self, offset: usize, piece: Buffer) {
        if let Some(place) = self.get_mut(offset, piece.len()) {
            return copy(place, &piece);
        }
        let i = self.free.partition_point(|(at, _)| *at < offset);
        self.free.insert(i, (offset, piece));
        self.join(i);
        if let Some(before) = i.checked_sub(1) {
            self.join(before);
        }
    }

    /// Joins the piece `i` and the next one if they are adjacent.
    fn join(&mut self, i: usize) {
        if i + 1 >= self.free.len() {
            return;
        }
        let (at, next) = self.free.remove(i + 1);
        if let Err(next) = self.free[i].1.unsplit(next) {
            self.free.insert(i + 1, (at, next));
        }
    }

    /// A part that no command has.
    pub(super) fn get_mut(&mut self, offset: usize, length: usize) -> Option<&mut [u8]> {
        let (i, within) = self.find(offset, length)?;
        self.free[i].1.get_mut(within..within + length)
    }

    /// The piece that contains a part, and the position in it.
    fn find(&self, offset: usize, length: usize) -> Option<(usize, usize)> {
        let i = self.free.partition_point(|(at, _)| *at <= offset).checked_sub(1)?;
        let (at, piece) = self.free.get(i)?;
        (offset + length <= at + piece.len()).then_some((i, offset - at))
    }

    /// The whole buffer, unless a command has a part of it.
    pub(super) fn whole_mut(&mut self) -> Option<&mut Buffer> {
        match &mut self.free[..] {
            [(0, buffer)] if buffer.len() == self.length => Some(buffer),
            _ => None,
        }
    }

    /// The buffer, when no command has a part of it.
    pub(super) fn into_buffer(mut self) -> Option<Buffer> {
        let (_, buffer) = self.free.pop()?;
        self.free.is_empty().then_some(buffer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use millrace_buffer::ArenaConfig;
    use proptest::prelude::*;

    use super::*;

    const PARTS: usize = 7;
    const PART: usize = 1000;
    /// The last part is shorter.
    const LENGTH: usize = PARTS * PART - 300;

    fn range(part: usize) -> (usize, usize) {
        (part * PART, PART.min(LENGTH - part * PART))
    }

    /// A step with a part: it is lent, its memory is returned with or without data, or it is lost.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Take(usize),
        Put(usize, bool),
        Lose(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..PARTS).prop_map(Step::Take),
            4 => (0..PARTS, any::<bool>()).prop_map(|(part, done)| Step::Put(part, done)),
            1 => (0..PARTS).prop_map(Step::Lose),
        ]
    }

    proptest! {
        #[test]
        fn parts_in_any_order_make_the_buffer(steps in prop::collection::vec(step(), 0..60)) {
            let arena = Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false });
            let buffer = arena.alloc(LENGTH).unwrap();
            let address = buffer.address();
            let mut pieces = Pieces::new(buffer);
            let mut lent: [Option<Buffer>; PARTS] = Default::default();
            let mut done = [false; PARTS];
            let mut lost = false;
            // Each part that has no data at the end is lent and returned with data.
            let rest = (0..PARTS).flat_map(|part| [Step::Take(part), Step::Put(part, true)]);
            for step in steps.into_iter().chain(rest) {
                match step {
                    Step::Take(part) if lent[part].is_none() && !done[part] => {
                        let (offset, length) = range(part);
                        let piece = pieces.take(offset, length, &arena).unwrap();
                        prop_assert_eq!(piece.len(), length);
                        prop_assert!(lost || piece.address() == address + offset);
                        prop_assert!(pieces.get_mut(offset, length).is_none() && pieces.whole_mut().is_none());
                        lent[part] = Some(piece);
                    }
                    Step::Put(part, complete) => if let Some(mut piece) = lent[part].take() {
                        piece.fill(if complete { part as u8 } else { 0xee });
                        pieces.put(range(part).0, piece);
                        done[part] = complete;
                    },
                    Step::Lose(part) => lost |= lent[part].take().is_some(),
                    Step::Take(_) => {}
                }
            }
            let buffer = pieces.into_buffer().expect("all parts were returned");
            prop_assert_eq!(buffer.len(), LENGTH);
            prop_assert!(lost || buffer.address() == address);
            prop_assert!(buffer.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i / PART));
            drop(buffer);
            prop_assert_eq!(arena.stats().in_use, 0);
        }
    }
}
