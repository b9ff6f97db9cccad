//! Blocks that two files share.
//!
//! A slot is charged once, so that further blocks with the same slot would take heap memory without a limit. Blocks that
//! CLONE or COPY make are charged for their places in the map until they are removed. Those of a WRITE are not: each has
//! a separate slot, which is larger.

use std::{collections::BTreeMap, ops::Range};

use millrace_buffer::{Quota, Views};

use super::{BLOCK, Block, Content, STEP, Truncated, block_ranges, count_visits};
use crate::{FsError, FsResult};

/// Heap memory of a map with few blocks, in addition to that of its entries.
const MAP_BYTES: u64 = 640;
/// Heap memory of an entry in the map of blocks, and of a list of pages without these. An upper bound, as in `space`.
const ENTRY_BYTES: u16 = 192;
/// Heap memory of a page that is not part of the block's head.
const PAGE_BYTES: u16 = 32;

/// Blocks that are to become those of a file, by their number in it.
#[derive(Default)]
pub(in crate::memory) struct SharedBlocks {
    blocks: BTreeMap<u64, Block>,
    /// Total capacity of all slots, in bytes.
    stored: u64,
    /// Charge of the blocks for their places in the map, in bytes.
    charge: u64,
    /// Heap memory of the blocks, in bytes.
    heap_bytes: u64,
}

impl SharedBlocks {
    fn insert(&mut self, index: u64, block: Block) {
        self.stored += block.bytes();
        self.charge += u64::from(block.charge());
        self.heap_bytes += u64::from(map_bytes(&block));
        self.blocks.insert(index, block);
    }

    /// The heap memory of the map, in bytes.
    pub(in crate::memory) fn heap_bytes(&self) -> u64 {
        with_map(self.heap_bytes)
    }
}

/// The numbers of the blocks of `from..from + length`.
pub(in crate::memory) fn blocks_of(from: u64, length: u64) -> Range<u64> {
    from / BLOCK..(from + length).div_ceil(BLOCK)
}

impl Content {
    /// Checks that a range that starts at a block can be shared.
    ///
    /// # Errors
    /// [`FsError::Inval`] if the range exceeds the file, or ends within a block other than at the end of the file.
    pub(in crate::memory) fn check_share(&self, from: u64, length: u64) -> FsResult<()> {
        let end = from + length;
        let valid = end <= self.size && (end.is_multiple_of(BLOCK) || end == self.size);
        if valid { Ok(()) } else { Err(FsError::Inval) }
    }

    /// Checks that a range that starts at a block can be replaced by shared blocks.
    ///
    /// # Errors
    /// [`FsError::Inval`] if the range ends within a block before the end of the file.
    pub(in crate::memory) fn check_replace(&self, to: u64, length: u64) -> FsResult<()> {
        let end = to + length;
        if end.is_multiple_of(BLOCK) || end >= self.size { Ok(()) } else { Err(FsError::Inval) }
    }

    /// Whether a step of an operation can process these blocks.
    pub(in crate::memory) fn fits_step(&self, blocks: Range<u64>) -> bool {
        let end = blocks.end * BLOCK;
        self.part_end(blocks.start * BLOCK, end, STEP) == end
    }

    /// Adds up to [`STEP`] of these blocks to `shared`, the first one as number `to`. They are charged as blocks of another
    /// file, unless they are `kept`. Returns the numbers of those that are left.
    pub(in crate::memory) fn share(
        &self,
        blocks: Range<u64>,
        to: u64,
        kept: bool,
        shared: &mut SharedBlocks,
    ) -> Range<u64> {
        let wanted = self.blocks_from(blocks.start).take_while(|(index, _)| *index < blocks.end);
        for (visits, (index, block)) in wanted.enumerate() {
            if visits == STEP {
                return index..blocks.end;
            }
            count_visits(1);
            if !block.is_empty() {
                let mut block = block.clone();
                if !kept {
                    block.set_charge(map_bytes(&block));
                }
                shared.insert(to + (index - blocks.start), block);
            }
        }
        blocks.end..blocks.end
    }

    /// Replaces `blocks` by `shared`, and extends the file to `end`. All are visited in one step.
    ///
    /// # Errors
    /// [`FsError::NoSpc`] if `quota` is exhausted. Nothing is changed then.
    pub(in crate::memory) fn replace(
        &mut self,
        quota: &Quota,
        blocks: Range<u64>,
        end: u64,
        shared: SharedBlocks,
    ) -> FsResult<Truncated> {
        let replaced = self.blocks_from(blocks.start).take_while(|(index, _)| *index < blocks.end);
        let less: u64 = replaced.map(|(_, block)| u64::from(block.charge())).sum();
        self.charge_map(quota, self.map_charge - less + shared.charge)?;
        let rest: BTreeMap<_, _> = self.rest.extract_if(blocks.clone(), |_, _| true).collect();
        count_visits(rest.len());
        let first = if blocks.contains(&0) { std::mem::take(&mut self.first) } else { Block::default() };
        let truncated = Truncated { first, rest, ..Truncated::default() };
        self.stored -= truncated.blocks().map(Block::bytes).sum::<u64>();
        self.stored += shared.stored;
        for (index, block) in shared.blocks {
            *self.block_mut(index) = block;
        }
        self.size = self.size.max(end);
        Ok(truncated)
    }

    /// Replaces all blocks by `shared`, and extends the file to `end`.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub(in crate::memory) fn replace_all(
        &mut self,
        quota: &Quota,
        end: u64,
        mut shared: SharedBlocks,
    ) -> FsResult<Truncated> {
        self.charge_map(quota, shared.charge)?;
        let first = std::mem::replace(&mut self.first, shared.blocks.remove(&0).unwrap_or_default());
        let rest = std::mem::replace(&mut self.rest, shared.blocks);
        self.stored = shared.stored;
        self.size = self.size.max(end);
        Ok(Truncated { first, rest, ..Truncated::default() })
    }

    /// As [`write`](Self::write), for data that other blocks may share.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(in crate::memory) fn write_shared(
        &mut self,
        quota: &Quota,
        offset: u64,
        data: &Views,
    ) -> FsResult<()> {
        let before = self.map_charge;
        let is_charged = |index: u64| self.block(index).is_some_and(|block| block.charge() > 0);
        let blocks = block_ranges(offset, data.len()).filter(|range| !is_charged(range.index)).count();
        self.charge_map(quota, before + blocks as u64 * u64::from(ENTRY_BYTES))?;
        if let Err(e) = self.write(quota, offset, data) {
            self.refund_map(quota, self.map_charge - before);
            return Err(e);
        }
        for range in block_ranges(offset, data.len()) {
            let block = self.block_mut(range.index);
            block.set_charge(block.charge().max(ENTRY_BYTES));
        }
        Ok(())
    }

    /// The bytes that are charged for the map of blocks.
    pub(in crate::memory) fn map_charge(&self) -> u64 {
        with_map(self.map_charge)
    }

    /// Changes the charge of the blocks to `bytes`.
    fn charge_map(&mut self, quota: &Quota, bytes: u64) -> FsResult<()> {
        quota.recharge(with_map(bytes), self.map_charge()).map_err(|_| FsError::NoSpc)?;
        self.map_charge = bytes;
        Ok(())
    }

    /// Refunds a part of the charge of the blocks.
    pub(super) fn refund_map(&mut self, quota: &Quota, bytes: u64) {
        let before = self.map_charge();
        self.map_charge -= bytes;
        quota.refund(before - self.map_charge());
    }

    /// Accounts for blocks that have been removed.
    pub(super) fn forget(&mut self, quota: &Quota, removed: &Truncated) {
        self.stored -= removed.blocks().map(Block::bytes).sum::<u64>();
        self.refund_map(quota, removed.blocks().map(|block| u64::from(block.charge())).sum());
    }
}

/// The charge of a map whose blocks are charged with `bytes`.
fn with_map(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { MAP_BYTES + bytes }
}

fn map_bytes(block: &Block) -> u16 {
    ENTRY_BYTES + PAGE_BYTES * block.pages()
}
