//! The content of one regular file: pages of memory that are shared by reference.
//!
//! A file is divided into blocks of 64 KiB. The memory of a block is its *head*, one slot of a power of two of pages that
//! begins with the block, and single pages of 4 KiB beyond the head. The head grows to a size of which three quarters of
//! the pages have data, or to the whole block where the block before it is full. So
//!
//! - a block that is written whole, or most of it, is one slot of 64 KiB, and a received slot of that size becomes the
//!   block without a copy;
//! - a file that is written from its beginning in small pieces has one slot for each block, whose growth copies each byte
//!   about once in the first block, and nothing in later ones;
//! - data here and there costs the pages that it touches: pages with data have at most twice their bytes in memory.

mod block;
mod source;

use std::collections::BTreeMap;

use block::{Block, Memory};
use millrace_buffer::{BLOCK_BYTES, Quota, View, Views};
use smallvec::SmallVec;
use source::Source;

use crate::FsResult;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Steps of one write that need no heap (4 MiB of whole blocks at any offset).
const STEPS_INLINE: usize = 65;

/// A file's size and its blocks; blocks that are not there are holes.
#[derive(Default)]
pub(super) struct Content {
    size: u64,
    /// Bytes of the slots of all blocks.
    stored: u64,
    /// Block 0, kept apart so that a small file needs no map.
    first: Block,
    rest: BTreeMap<u64, Block>,
    /// The verifier of the EXCLUSIVE create that made the file.
    verifier: Option<[u8; 8]>,
}

/// Content that was cut off, to be dropped where no lock is held.
#[derive(Default)]
pub(super) struct CutOff {
    _first: Block,
    _rest: BTreeMap<u64, Block>,
    _replaced: Option<View>,
}

/// The part `start..end` of block `index` that a write covers.
#[derive(Clone, Copy)]
struct Part {
    index: u64,
    start: usize,
    end: usize,
}

/// A change of one slot of a block, for which everything that can fail has been done.
struct Step {
    part: Part,
    memory: Memory,
}

type Steps = SmallVec<[Step; STEPS_INLINE]>;

/// The blocks that `len` bytes at `offset` touch.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let index = at / BLOCK;
        let stop = end.min((index + 1) * BLOCK);
        let part = Part { index, start: (at % BLOCK) as usize, end: (stop - index * BLOCK) as usize };
        at = stop;
        Some(part)
    })
}

impl Content {
    /// No content; the file was made with the EXCLUSIVE `verifier`.
    pub(super) fn new(verifier: Option<[u8; 8]>) -> Self {
        Self { verifier, ..Self::default() }
    }

    pub(super) fn verifier(&self) -> Option<[u8; 8]> {
        self.verifier
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of memory that the blocks have.
    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    fn block(&self, index: u64) -> Option<&Block> {
        if index == 0 { Some(&self.first) } else { self.rest.get(&index) }
    }

    /// Block `index`, made if it is not there.
    fn block_mut(&mut self, index: u64) -> &mut Block {
        if index == 0 { &mut self.first } else { self.rest.entry(index).or_default() }
    }

    /// Up to `count` bytes at `offset` by reference, and whether they reach the end. `zeros` gives a view of
    /// [`BLOCK_BYTES`] zeros, for holes.
    pub(super) fn read(
        &self,
        offset: u64,
        count: u32,
        zeros: impl Fn() -> FsResult<View>,
    ) -> FsResult<(Views, bool)> {
        let left = self.size.saturating_sub(offset);
        let len = left.min(u64::from(count));
        let mut out = Views::new();
        for part in parts(offset, len as usize) {
            match self.block(part.index) {
                Some(block) => block.read(part.start, part.end, &zeros, &mut out)?,
                None => out.push(zeros()?.slice(part.start, part.end - part.start)),
            }
        }
        Ok((out, len == left))
    }

    /// Writes `data` at `offset` whole, or changes nothing. The caller has checked that the end is within the largest
    /// file.
    ///
    /// A slot of a whole block is kept instead of copied. Everything else is copied, in place if no reader holds the
    /// slot, else into a new one, so that readers keep what they were given.
    ///
    /// # Errors
    /// [`NoSpc`](crate::FsError::NoSpc) when `quota` has no room; [`Jukebox`](crate::FsError::Jukebox) when it has none for a copy of data that is being
    /// read, which is not needed when the reader has finished.
    pub(super) fn write(&mut self, quota: &Quota, offset: u64, data: &Views) -> FsResult<()> {
        let mut steps = self.plan(quota, offset, data, true)?;
        if !self.adopt(quota, &steps) {
            // The quota allows no exchange; data that is copied may fit in place.
            drop(steps);
            steps = self.plan(quota, offset, data, false)?;
        }
        let mut source = Source::new(data);
        for step in steps {
            let block = self.block_mut(step.part.index);
            let before = block.bytes();
            block.apply(step.part.start, step.part.end, step.memory, &mut source);
            let after = block.bytes();
            self.stored = self.stored - before + after;
        }
        self.size = self.size.max(offset + data.len() as u64);
        Ok(())
    }

    /// Decides what happens to each slot, and allocates memory.
    fn plan(&self, quota: &Quota, offset: u64, data: &Views, adopt: bool) -> FsResult<Steps> {
        let mut steps = Steps::new();
        let mut source = Source::new(data);
        let mut after_full =
            (offset / BLOCK).checked_sub(1).and_then(|i| self.block(i)).is_some_and(Block::is_full);
        let none = Block::default();
        for part in parts(offset, data.len()) {
            let piece = source.piece_of(part.end - part.start).filter(|p| adopt && quota.can_adopt(p));
            let block = self.block(part.index).unwrap_or(&none);
            let whole =
                block.plan(quota, part.start, part.end, piece, after_full, |start, end, memory| {
                    steps.push(Step { part: Part { start, end, ..part }, memory });
                })?;
            after_full = whole && part.end == BLOCK_BYTES;
        }
        Ok(steps)
    }

    /// Takes the slots to be adopted into the quota, in exchange for what they replace; false if the quota refuses.
    fn adopt(&self, quota: &Quota, steps: &[Step]) -> bool {
        let (mut new, mut old) =
            (SmallVec::<[&View; STEPS_INLINE]>::new(), SmallVec::<[&View; STEPS_INLINE]>::new());
        for step in steps {
            if let Memory::Adopted(view) = &step.memory {
                new.push(view);
                // A slot that a reader shares stays charged until the reader drops it.
                let replaced = self.block(step.part.index).into_iter().flat_map(Block::views);
                old.extend(replaced.filter(|v| v.is_unique()));
            }
        }
        new.is_empty() || quota.exchange(&new, &old).is_ok()
    }

    /// All its slots.
    #[cfg(test)]
    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        self.first.views().chain(self.rest.values().flat_map(Block::views))
    }

    /// Cuts the content off at `size`, or extends it with a hole.
    pub(super) fn set_size(&mut self, quota: &Quota, size: u64) -> CutOff {
        let old_size = std::mem::replace(&mut self.size, size);
        if size >= old_size {
            return CutOff::default();
        }
        let kept = size.div_ceil(BLOCK);
        let first = if kept == 0 { std::mem::take(&mut self.first) } else { Block::default() };
        let rest = self.rest.split_off(&kept.max(1));
        let (last, tail) = (size / BLOCK, (size % BLOCK) as usize);
        let mut replaced = None;
        if tail > 0 && (last == 0 || self.rest.contains_key(&last)) {
            let block = self.block_mut(last);
            let before = block.bytes();
            replaced = block.truncate(quota, tail);
            let after = block.bytes();
            self.stored = self.stored - before + after;
        }
        self.stored -= first.bytes() + rest.values().map(Block::bytes).sum::<u64>();
        CutOff { _first: first, _rest: rest, _replaced: replaced }
    }
}
