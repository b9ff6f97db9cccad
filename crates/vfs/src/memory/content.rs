//! Content of a regular file: memory that is shared by reference.
//!
//! A file is divided into blocks of 64 KiB. The memory of a block consists of its *head*, one slot at its
//! start whose size is a power of two pages, and of single 4 KiB pages after the head. The head grows to a
//! size at which three quarters of its pages have data, or to the whole block if the previous block is full.
//! Consequences:
//!
//! - A block that is written completely, or mostly, is one 64 KiB slot, and a received slot of that size
//!   becomes the block without a copy.
//! - A file written sequentially in small pieces has one slot per block. Growth copies each byte about once
//!   in the first block, and none in later blocks.
//! - Sparse data uses the pages that it touches: pages with data use at most twice their size in memory.

mod block;
pub(super) mod ranges;
pub(super) mod shared;
mod source;

use std::collections::BTreeMap;

use block::{Block, Memory};
use millrace_buffer::{BLOCK_BYTES, Quota, View, Views};
use smallvec::SmallVec;
use source::DataCursor;

use crate::FsResult;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Number of steps of a write that are stored without heap allocation (4 MiB of whole blocks at any offset).
const INLINE_STEPS: usize = 65;

/// Maximum number of blocks that a step of an operation removes or shares, which takes some hundred microseconds. Other
/// calls run before the next step.
pub(super) const STEP: usize = if cfg!(test) { 2 } else { 1024 };

#[cfg(test)]
thread_local! {
    /// Number of blocks and other objects that operations of this thread have visited.
    pub(super) static VISITED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts visits, for tests.
pub(super) fn count_visits(_visits: usize) {
    #[cfg(test)]
    VISITED.with(|visited| visited.set(visited.get() + _visits as u64));
}

/// Size and blocks of a file; missing blocks are holes.
#[derive(Default)]
pub(super) struct Content {
    size: u64,
    /// Total capacity of all slots, in bytes.
    stored: u64,
    /// Block 0, stored separately so that a small file needs no map.
    first: Block,
    rest: BTreeMap<u64, Block>,
    /// Charge of the blocks for their places in the map, in bytes.
    map_charge: u64,
    /// Verifier of the EXCLUSIVE create.
    verifier: Option<[u8; 8]>,
    /// Number of operations in steps during which the content must not change.
    freezes: u32,
}

/// Truncated or deallocated content, to be dropped without holding a lock.
#[derive(Default)]
pub(super) struct Truncated {
    first: Block,
    rest: BTreeMap<u64, Block>,
    replaced: SmallVec<[View; 2]>,
    /// Whether the operation must be repeated, to remove further blocks.
    pub(super) unfinished: bool,
}

impl Truncated {
    /// Number of blocks in the map.
    pub(super) fn len(&self) -> usize {
        self.rest.len()
    }

    /// Frees up to [`STEP`] of the blocks in the map. Returns whether none are left.
    pub(super) fn free_step(&mut self) -> bool {
        let freed = (0..STEP).map_while(|_| self.rest.pop_first()).count();
        count_visits(freed);
        self.rest.is_empty()
    }

    fn blocks(&self) -> impl Iterator<Item = &Block> {
        std::iter::once(&self.first).chain(self.rest.values())
    }
}

/// The range `start..end` of block `index` that a write covers.
#[derive(Clone, Copy)]
struct BlockRange {
    index: u64,
    start: usize,
    end: usize,
}

/// A change to one slot; all operations that can fail are done.
struct WriteStep {
    range: BlockRange,
    memory: Memory,
}

type Steps = SmallVec<[WriteStep; INLINE_STEPS]>;

/// The blocks that `len` bytes at `offset` cover.
fn block_ranges(offset: u64, len: usize) -> impl Iterator<Item = BlockRange> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let index = at / BLOCK;
        let stop = end.min((index + 1) * BLOCK);
        let range = BlockRange { index, start: (at % BLOCK) as usize, end: (stop - index * BLOCK) as usize };
        at = stop;
        Some(range)
    })
}

impl Content {
    /// Empty content of a file created with the EXCLUSIVE `verifier`.
    pub(super) fn new(verifier: Option<[u8; 8]>) -> Self {
        Self { verifier, ..Self::default() }
    }

    pub(super) fn verifier(&self) -> Option<[u8; 8]> {
        self.verifier
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Whether the content must not change, because of an operation in steps.
    pub(super) fn is_frozen(&self) -> bool {
        self.freezes > 0
    }

    /// Starts an operation in steps during which the content must not change.
    pub(super) fn freeze(&mut self) {
        self.freezes += 1;
    }

    /// Ends an operation that has called [`freeze`](Self::freeze).
    pub(super) fn thaw(&mut self) {
        self.freezes -= 1;
    }

    /// All blocks, of a file that is removed.
    pub(super) fn into_removed(self) -> Truncated {
        Truncated { first: self.first, rest: self.rest, ..Truncated::default() }
    }

    /// Memory used by the blocks, in bytes.
    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    fn block(&self, index: u64) -> Option<&Block> {
        if index == 0 { Some(&self.first) } else { self.rest.get(&index) }
    }

    /// Block `index`, created if missing.
    fn block_mut(&mut self, index: u64) -> &mut Block {
        if index == 0 { &mut self.first } else { self.rest.entry(index).or_default() }
    }

    /// Returns up to `count` bytes at `offset` by reference, and whether they reach the end of the file.
    /// `zeros` returns a view of [`BLOCK_BYTES`] zeros, used for holes.
    pub(super) fn read(
        &self,
        offset: u64,
        count: u32,
        zeros: impl Fn() -> FsResult<View>,
    ) -> FsResult<(Views, bool)> {
        let remaining = self.size.saturating_sub(offset);
        let len = remaining.min(u64::from(count));
        let mut out = Views::new();
        for range in block_ranges(offset, len as usize) {
            match self.block(range.index) {
                Some(block) => block.read(range.start, range.end, &zeros, &mut out)?,
                None => out.push(zeros()?.slice(range.start, range.end - range.start)),
            }
        }
        Ok((out, len == remaining))
    }

    /// Writes all of `data` at `offset`, or nothing. The caller has checked the maximum file size.
    ///
    /// A slot that covers a whole block is kept. Other data is copied, in place if no reader shares the slot,
    /// otherwise into a new slot, so that readers keep their data.
    ///
    /// # Errors
    /// [`NoSpc`](crate::FsError::NoSpc) if `quota` is exhausted; [`Jukebox`](crate::FsError::Jukebox) if it
    /// is exhausted only because a reader shares a slot that would otherwise be written in place.
    pub(super) fn write(&mut self, quota: &Quota, offset: u64, data: &Views) -> FsResult<()> {
        // `Steps` has several kilobytes, so it is passed by reference.
        let mut steps = Steps::new();
        self.plan(quota, offset, data, true, &mut steps)?;
        if !self.adopt(quota, &steps) {
            // The quota does not allow the exchange; a copy may fit in place.
            steps.clear();
            self.plan(quota, offset, data, false, &mut steps)?;
        }
        let mut source = DataCursor::new(data);
        for step in steps.drain(..) {
            let block = self.block_mut(step.range.index);
            let before = block.bytes();
            block.apply(step.range.start, step.range.end, step.memory, &mut source);
            let after = block.bytes();
            self.stored = self.stored - before + after;
        }
        self.size = self.size.max(offset + data.len() as u64);
        Ok(())
    }

    /// Plans the change of each slot in `steps`, and allocates memory.
    fn plan(&self, quota: &Quota, offset: u64, data: &Views, adopt: bool, steps: &mut Steps) -> FsResult<()> {
        let mut source = DataCursor::new(data);
        let mut previous_full =
            (offset / BLOCK).checked_sub(1).and_then(|i| self.block(i)).is_some_and(Block::is_full);
        let none = Block::default();
        for range in block_ranges(offset, data.len()) {
            let adoptable =
                source.whole_view(range.end - range.start).filter(|p| adopt && quota.can_adopt(p));
            let block = self.block(range.index).unwrap_or(&none);
            let whole = block.plan(
                quota,
                range.start,
                range.end,
                adoptable,
                previous_full,
                |start, end, memory| {
                    steps.push(WriteStep { range: BlockRange { start, end, ..range }, memory });
                },
            )?;
            previous_full = whole && range.end == BLOCK_BYTES;
        }
        Ok(())
    }

    /// Charges adopted slots to the quota in exchange for the slots they replace. `false`: the quota is
    /// exhausted.
    fn adopt(&self, quota: &Quota, steps: &[WriteStep]) -> bool {
        let (mut new, mut old) =
            (SmallVec::<[&View; INLINE_STEPS]>::new(), SmallVec::<[&View; INLINE_STEPS]>::new());
        for step in steps {
            if let Memory::Adopted(view) = &step.memory {
                new.push(view);
                // A slot shared by a reader stays charged until the reader drops it.
                let replaced = self.block(step.range.index).into_iter().flat_map(Block::views);
                old.extend(replaced.filter(|v| v.is_unique()));
            }
        }
        new.is_empty() || quota.exchange(&new, &old).is_ok()
    }

    /// All slots.
    #[cfg(test)]
    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        self.first.views().chain(self.rest.values().flat_map(Block::views))
    }

    /// Checks the charge of the map. Returns the slots of blocks that have no part in it.
    #[cfg(test)]
    pub(super) fn check_map_charge(&self) -> impl Iterator<Item = &View> {
        let blocks = || std::iter::once(&self.first).chain(self.rest.values());
        assert!(self.rest.values().all(|block| !block.is_empty()));
        assert_eq!(self.map_charge, blocks().map(|block| u64::from(block.charge())).sum::<u64>());
        blocks().filter(|block| block.charge() == 0).flat_map(Block::views)
    }

    /// Truncates the content, or extends it with a hole. If more than [`STEP`] blocks are to be removed, removes only the
    /// last ones, so that the size is still larger.
    pub(super) fn set_size(&mut self, quota: &Quota, size: u64) -> Truncated {
        if size >= self.size {
            self.size = size;
            return Truncated::default();
        }
        let removed = self.rest.range(size.div_ceil(BLOCK).max(1)..);
        let step = removed.rev().nth(STEP).map(|(last_kept, _)| (last_kept + 1) * BLOCK);
        let size = step.unwrap_or(size);
        self.size = size;
        let kept_blocks = size.div_ceil(BLOCK);
        let first = if kept_blocks == 0 { std::mem::take(&mut self.first) } else { Block::default() };
        let rest: BTreeMap<_, _> = self.rest.extract_if(kept_blocks.max(1).., |_, _| true).collect();
        count_visits(rest.len());
        let (last, tail) = (size / BLOCK, (size % BLOCK) as usize);
        let mut replaced = SmallVec::new();
        if tail > 0 && (last == 0 || self.rest.contains_key(&last)) {
            let block = self.block_mut(last);
            let before = block.bytes();
            replaced.extend(block.truncate(quota, tail));
            let after = block.bytes();
            self.stored = self.stored - before + after;
            self.remove_if_empty(quota, last);
        }
        let truncated = Truncated { first, rest, replaced, unfinished: step.is_some() };
        self.forget(quota, &truncated);
        truncated
    }
}
