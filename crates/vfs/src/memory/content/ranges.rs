//! Deallocation of a range of a file, and the search for data and holes.

use millrace_buffer::{BLOCK_BYTES, Quota};
use smallvec::SmallVec;

use super::{BLOCK, Content, Truncated};
use crate::{FsResult, SeekTarget};

impl Content {
    /// Frees the pages that `offset..end` contains, and zeroes the rest of the range; or changes nothing.
    /// The part of the range beyond the size is ignored.
    ///
    /// # Errors
    /// [`Jukebox`](crate::FsError::Jukebox) if a reader shares a slot that would otherwise be zeroed in
    /// place, and `quota` is exhausted.
    pub(in super::super) fn deallocate(
        &mut self,
        quota: &Quota,
        offset: u64,
        end: u64,
    ) -> FsResult<Truncated> {
        // Nothing is stored after the last block.
        let end = if end < self.size { end } else { self.size.next_multiple_of(BLOCK) };
        let mut removed = Truncated::default();
        if offset >= end {
            return Ok(removed);
        }
        let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
        let mut holes = SmallVec::<[_; 2]>::new();
        let edges = [first, last];
        for index in &edges[..if first == last { 1 } else { 2 }] {
            let start = if *index == first { (offset % BLOCK) as usize } else { 0 };
            let stop = (end - index * BLOCK).min(BLOCK) as usize;
            if let Some(block) = self.block(*index).filter(|_| stop - start < BLOCK_BYTES) {
                holes.push((*index, block.plan_hole(quota, start, stop)?));
            }
        }
        for (index, hole) in holes {
            let block = self.block_mut(index);
            let before = block.bytes();
            removed.replaced.extend(block.punch(quota, hole));
            let (after, empty) = (block.bytes(), block.is_empty());
            let charge = if empty { std::mem::take(block).charge() } else { 0 };
            self.stored = self.stored - before + after;
            if empty {
                self.rest.remove(&index);
                self.refund_map(quota, u64::from(charge));
            }
        }
        self.remove_blocks(quota, offset.div_ceil(BLOCK), end / BLOCK, &mut removed);
        Ok(removed)
    }

    /// Removes the blocks `start..end`.
    fn remove_blocks(&mut self, quota: &Quota, start: u64, end: u64, removed: &mut Truncated) {
        if start >= end {
            return;
        }
        if start == 0 {
            removed.first = std::mem::take(&mut self.first);
        }
        removed.rest = self.rest.extract_if(start..end, |_, _| true).collect();
        self.forget(quota, removed);
    }

    /// The offset of the next data or hole, as [`FileSystem::seek`](crate::FileSystem::seek).
    pub(in super::super) fn seek(&self, offset: u64, target: SeekTarget) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        match target {
            SeekTarget::Data => self.next_data(offset).filter(|at| *at < self.size),
            SeekTarget::Hole => Some(self.next_hole(offset).min(self.size)),
        }
    }

    /// The blocks from `index` on, with their indices.
    fn blocks_from(&self, index: u64) -> impl Iterator<Item = (u64, &super::Block)> {
        let first = (index == 0).then_some((0, &self.first));
        first.into_iter().chain(self.rest.range(index..).map(|(index, block)| (*index, block)))
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        self.blocks_from(offset / BLOCK).find_map(|(index, block)| {
            let start = index * BLOCK;
            let at = offset.saturating_sub(start) as usize;
            block.next_data(at).map(|at| start + at as u64)
        })
    }

    fn next_hole(&self, offset: u64) -> u64 {
        let mut at = offset;
        for (index, block) in self.blocks_from(offset / BLOCK) {
            let start = index * BLOCK;
            if start > at {
                break;
            }
            let end = block.next_hole((at - start) as usize);
            at = start + end as u64;
            if end < BLOCK_BYTES {
                break;
            }
        }
        at
    }
}
