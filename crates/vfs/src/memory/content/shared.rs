//! Blocks that two files share.
//!
//! A slot is charged once, so that further blocks with the same slot would take heap memory without a limit. Blocks that
//! CLONE or COPY make are charged for their places in the map until they are removed. Those of a WRITE are not: each has
//! a separate slot, which is larger.

use millrace_buffer::{Quota, Views};

use super::{BLOCK, Block, Content, Truncated, block_ranges};
use crate::{FsError, FsResult};

/// Heap memory of a map with few blocks, in addition to that of its entries.
const MAP_BYTES: u64 = 640;
/// Heap memory of an entry in the map of blocks, and of a list of pages without these. An upper bound, as in `space`.
const ENTRY_BYTES: u16 = 192;
/// Heap memory of a page that is not part of the block's head.
const PAGE_BYTES: u16 = 32;

/// The blocks of a range, by their number in it; missing ones are holes.
pub(in crate::memory) struct SharedBlocks(Vec<(u64, Block)>);

impl Content {
    /// The blocks of `from..from + length`. `from` is the start of a block.
    ///
    /// # Errors
    /// [`FsError::Inval`] if the range exceeds the file, or ends within a block other than at the end of the file.
    pub(in crate::memory) fn share(&self, from: u64, length: u64) -> FsResult<SharedBlocks> {
        let end = from + length;
        if end > self.size || (!end.is_multiple_of(BLOCK) && end != self.size) {
            return Err(FsError::Inval);
        }
        let (first, last) = (from / BLOCK, end.div_ceil(BLOCK));
        let head = (first == 0 && last > 0).then(|| (0, self.first.clone()));
        let rest = self.rest.range(first.max(1)..last.max(1));
        let rest = rest.map(|(index, block)| (index - first, block.clone()));
        Ok(SharedBlocks(head.into_iter().chain(rest).filter(|(_, block)| !block.is_empty()).collect()))
    }

    /// Replaces the blocks of `to..to + length` by `shared`, and extends the file to the end of the range. `to` is the
    /// start of a block.
    ///
    /// # Errors
    /// [`FsError::Inval`] if the range ends within a block before the end of the file; [`FsError::NoSpc`] if `quota` is
    /// exhausted. Nothing is changed then.
    pub(in crate::memory) fn replace(
        &mut self,
        quota: &Quota,
        to: u64,
        length: u64,
        shared: SharedBlocks,
    ) -> FsResult<Truncated> {
        let end = to + length;
        if !end.is_multiple_of(BLOCK) && end < self.size {
            return Err(FsError::Inval);
        }
        let (first, last) = (to / BLOCK, end.div_ceil(BLOCK));
        let replaced = (first == 0 && last > 0).then_some(&self.first).into_iter();
        let replaced = replaced.chain(self.rest.range(first.max(1)..last.max(1)).map(|(_, block)| block));
        let less: u64 = replaced.map(|block| u64::from(block.charge())).sum();
        let more: u64 = shared.0.iter().map(|(_, block)| u64::from(map_bytes(block))).sum();
        self.charge_map(quota, self.map_charge - less + more)?;
        let mut rest = self.rest.split_off(&first.max(1));
        self.rest.append(&mut rest.split_off(&last.max(1)));
        let replaced =
            if first == 0 && last > 0 { std::mem::take(&mut self.first) } else { Block::default() };
        let truncated = Truncated { first: replaced, rest, ..Truncated::default() };
        self.stored -= truncated.blocks().map(Block::bytes).sum::<u64>();
        for (index, mut block) in shared.0 {
            block.set_charge(map_bytes(&block));
            self.stored += block.bytes();
            *self.block_mut(first + index) = block;
        }
        self.size = self.size.max(end);
        Ok(truncated)
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
