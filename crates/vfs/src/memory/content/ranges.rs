//! Deallocation of a range of a file, and the search for data and holes.

use std::ops::{ControlFlow, Range};

use millrace_buffer::{BLOCK_BYTES, Quota};
use smallvec::SmallVec;

use super::{BLOCK, Content, Truncated, count_visits};
use crate::{FsResult, SeekTarget};

/// Bytes in which one call searches a hole: up to 4,096 blocks, which takes some hundred microseconds.
pub(in super::super) const SEARCH: u64 = 256 << 20;

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
            let after = block.bytes();
            self.stored = self.stored - before + after;
            self.remove_if_empty(quota, index);
        }
        self.remove_blocks(quota, offset.div_ceil(BLOCK), end / BLOCK, &mut removed);
        Ok(removed)
    }

    /// The end of the part of `offset..end` that has at most `limit` blocks.
    pub(in super::super) fn part_end(&self, offset: u64, end: u64, limit: usize) -> u64 {
        let mut inside =
            self.blocks_from(offset / BLOCK).map(|(index, _)| index * BLOCK).take_while(|at| *at < end);
        inside.nth(limit).unwrap_or(end)
    }

    /// Removes block `index` from the map if it has no memory.
    pub(super) fn remove_if_empty(&mut self, quota: &Quota, index: u64) {
        let block = self.block_mut(index);
        if block.is_empty() {
            let charge = std::mem::take(block).charge();
            self.rest.remove(&index);
            self.refund_map(quota, u64::from(charge));
        }
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
        count_visits(removed.rest.len());
        self.forget(quota, removed);
    }

    /// The offset of the first data or hole in a range, as [`FileSystem::seek`](crate::FileSystem::seek). Continues at an
    /// offset if there is no hole in the first [`SEARCH`] bytes.
    pub(in super::super) fn seek(
        &self,
        range: Range<u64>,
        target: SeekTarget,
    ) -> ControlFlow<Option<u64>, u64> {
        let Range { start, end } = range;
        if start >= self.size.min(end) {
            return ControlFlow::Break(None);
        }
        let stop = end.min(start.saturating_add(SEARCH));
        let found = match target {
            // The next block with an entry has data.
            SeekTarget::Data => self.next_data(start).filter(|at| *at < self.size),
            SeekTarget::Hole => match self.next_hole(start, stop).min(self.size) {
                at if at >= stop && at < self.size && at < end => return ControlFlow::Continue(at),
                at => Some(at),
            },
        };
        ControlFlow::Break(found.filter(|at| *at < end))
    }

    /// The blocks from `index` on, with their indices.
    pub(super) fn blocks_from(&self, index: u64) -> impl Iterator<Item = (u64, &super::Block)> {
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

    /// The offset of the first hole, or another one from `stop` on if there is none before.
    fn next_hole(&self, offset: u64, stop: u64) -> u64 {
        let mut at = offset;
        for (index, block) in self.blocks_from(offset / BLOCK) {
            let start = index * BLOCK;
            if start > at || at >= stop {
                break;
            }
            count_visits(1);
            let end = block.next_hole((at - start) as usize);
            at = start + end as u64;
            if end < BLOCK_BYTES {
                break;
            }
        }
        at
    }
}
