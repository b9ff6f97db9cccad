//! Blocks that two files share.

use millrace_buffer::Quota;

use super::{BLOCK, Block, Content, Truncated};
use crate::{FsError, FsResult};

/// Heap memory of an entry in the map of blocks, without its pages.
const ENTRY_BYTES: u64 = 128;
/// Heap memory of a page that is not part of the block's head.
const PAGE_BYTES: u64 = 32;

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
    /// start of a block. The memory of the blocks is charged once; the map is charged to each file.
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
        let inside = |index: &u64| (first..last).contains(index);
        let kept = self.rest.iter().filter(|(index, _)| !inside(index)).map(|(_, block)| block);
        let charge = kept.chain(shared.0.iter().map(|(_, block)| block)).map(map_bytes).sum();
        quota.recharge(charge, self.map_charge).map_err(|_| FsError::NoSpc)?;
        self.map_charge = charge;
        let mut rest = self.rest.split_off(&first.max(1));
        self.rest.append(&mut rest.split_off(&last.max(1)));
        let replaced =
            if first == 0 && last > 0 { std::mem::take(&mut self.first) } else { Block::default() };
        let truncated = Truncated { first: replaced, rest, ..Truncated::default() };
        self.stored -= truncated.blocks().map(Block::bytes).sum::<u64>();
        for (index, block) in shared.0 {
            self.stored += block.bytes();
            *self.block_mut(first + index) = block;
        }
        self.size = self.size.max(end);
        Ok(truncated)
    }

    /// What [`replace`](Self::replace) has charged for the map of blocks.
    pub(in crate::memory) fn map_charge(&self) -> u64 {
        self.map_charge
    }
}

fn map_bytes(block: &Block) -> u64 {
    ENTRY_BYTES + PAGE_BYTES * block.pages() as u64
}
