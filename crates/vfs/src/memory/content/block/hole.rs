//! Deallocation of a range of a block, and the search for data and holes.

use millrace_buffer::{BLOCK_BYTES, Buffer, PAGE_BYTES, Quota, View};
use smallvec::SmallVec;

use super::{Block, shorten};
use crate::{FsError, FsResult};

/// Change of the head. All operations that can fail are done.
enum HeadChange {
    /// No change: the head has no data in the range.
    Keep,
    /// The range contains all its data.
    Remove,
    /// The range contains its last bytes.
    Shorten,
    /// The head is unshared: zero the range in place.
    Zero,
    /// Replace it with a copy whose range is zero.
    Copy(Buffer),
    /// Replace it with its pages outside the range.
    Divide(Vec<(u8, Buffer)>),
}

/// A planned deallocation of `start..end`.
pub(in super::super) struct Hole {
    start: usize,
    end: usize,
    head: HeadChange,
    /// Replacements for pages that readers share, in order.
    copies: SmallVec<[(u8, Buffer); 2]>,
}

/// Memory that a deallocation has removed from a block.
type Removed = SmallVec<[View; 2]>;

/// The part of a slot that is in `start..end`; the slot has `len` bytes at offset `at`.
enum Overlap {
    Nothing,
    All,
    /// The bytes of the slot from this one on.
    Tail(usize),
    /// Bytes of the slot with data after them.
    Middle(usize, usize),
}

impl Overlap {
    fn of(at: usize, len: usize, start: usize, end: usize) -> Self {
        let (from, to) = (start.max(at), end.min(at + len));
        if from >= to {
            Self::Nothing
        } else if to < at + len {
            Self::Middle(from - at, to - at)
        } else if from == at {
            Self::All
        } else {
            Self::Tail(from - at)
        }
    }
}

impl Block {
    /// Plans the deallocation of `start..end` and allocates its memory.
    ///
    /// Pages that the range contains are freed. If they are in the head, its other pages become single pages,
    /// unless the quota has no memory for these: then the range is zeroed in place.
    ///
    /// # Errors
    /// [`FsError::Jukebox`] if the quota is exhausted, and readers share memory that would otherwise be
    /// zeroed in place.
    pub(in super::super) fn plan_hole(&self, quota: &Quota, start: usize, end: usize) -> FsResult<Hole> {
        let head = self.plan_head_change(quota, start, end)?;
        let mut copies = SmallVec::new();
        for (page, view) in &self.pages {
            let overlap = Overlap::of(usize::from(*page) * PAGE_BYTES, view.len(), start, end);
            if matches!(overlap, Overlap::Middle(..)) && !view.is_unique() {
                copies.push((*page, quota.alloc(view.len()).map_err(|_| FsError::Jukebox)?));
            }
        }
        Ok(Hole { start, end, head, copies })
    }

    fn plan_head_change(&self, quota: &Quota, start: usize, end: usize) -> FsResult<HeadChange> {
        let Some(head) = &self.head else { return Ok(HeadChange::Keep) };
        match Overlap::of(0, head.len(), start, end) {
            Overlap::Nothing => return Ok(HeadChange::Keep),
            Overlap::All => return Ok(HeadChange::Remove),
            Overlap::Tail(_) => return Ok(HeadChange::Shorten),
            Overlap::Middle(..) => {}
        }
        let (first, last) = (start.div_ceil(PAGE_BYTES), end / PAGE_BYTES);
        if first < last {
            let kept = (0..head.len().div_ceil(PAGE_BYTES)).filter(|page| !(first..last).contains(page));
            let pages = kept.map(|page| {
                let len = (head.len() - page * PAGE_BYTES).min(PAGE_BYTES);
                quota.alloc(len).map(|new| (page as u8, new))
            });
            if let Ok(pages) = pages.collect() {
                return Ok(HeadChange::Divide(pages));
            }
        }
        if head.is_unique() {
            return Ok(HeadChange::Zero);
        }
        quota.alloc(head.len()).map(HeadChange::Copy).map_err(|_| FsError::Jukebox)
    }

    /// Executes a deallocation that was planned under the same lock.
    pub(in super::super) fn punch(&mut self, quota: &Quota, hole: Hole) -> Removed {
        let mut removed = Removed::new();
        let Hole { start, end, head, copies } = hole;
        self.punch_pages(start, end, copies, &mut removed);
        match head {
            HeadChange::Keep => {}
            HeadChange::Remove => removed.extend(self.head.take()),
            HeadChange::Shorten => removed.extend(self.shorten_head(quota, start)),
            HeadChange::Zero => {
                if let Some(head) = &mut self.head {
                    zero_in_place(head, start, end);
                }
            }
            HeadChange::Copy(new) => {
                if let Some(old) = self.head.take() {
                    self.head = Some(copy_with_hole(&old, new, start, end));
                    removed.push(old);
                }
            }
            HeadChange::Divide(pages) => {
                if let Some(old) = self.head.take() {
                    let pages = pages.into_iter().map(|(page, new)| {
                        let at = usize::from(page) * PAGE_BYTES;
                        let (from, to) = (start.saturating_sub(at), end.saturating_sub(at));
                        (page, copy_with_hole(&old[at..], new, from, to))
                    });
                    self.pages.splice(0..0, pages);
                    removed.push(old);
                }
            }
        }
        removed
    }

    /// Frees and zeroes the range in single pages.
    fn punch_pages(
        &mut self,
        start: usize,
        end: usize,
        copies: SmallVec<[(u8, Buffer); 2]>,
        removed: &mut Removed,
    ) {
        let mut copies = copies.into_iter();
        let overlap =
            |page: u8, view: &View| Overlap::of(usize::from(page) * PAGE_BYTES, view.len(), start, end);
        let freed = self.pages.extract_if(.., |(page, view)| matches!(overlap(*page, view), Overlap::All));
        removed.extend(freed.map(|(_, view)| view));
        for (page, view) in &mut self.pages {
            match overlap(*page, view) {
                Overlap::Nothing | Overlap::All => {}
                Overlap::Tail(from) => shorten(view, from),
                Overlap::Middle(from, to) if view.is_unique() => zero_in_place(view, from, to),
                Overlap::Middle(from, to) => {
                    if let Some((_, new)) = copies.find(|(of, _)| of == page) {
                        let new = copy_with_hole(view, new, from, to);
                        removed.push(std::mem::replace(view, new));
                    }
                }
            }
        }
    }

    /// The first byte of data at or after `at`.
    pub(in super::super) fn next_data(&self, at: usize) -> Option<usize> {
        self.slots().find(|(start, view)| at < start + view.len()).map(|(start, _)| at.max(start))
    }

    /// The first byte in a hole at or after `at`; [`BLOCK_BYTES`] if data follows up to the end of the block.
    pub(in super::super) fn next_hole(&self, at: usize) -> usize {
        let after = |at: usize, (start, view): (usize, &View)| {
            if (start..start + view.len()).contains(&at) { start + view.len() } else { at }
        };
        self.slots().fold(at, after).min(BLOCK_BYTES)
    }
}

/// Zeroes `start..end` of `slot`, which is unshared, as far as it has data.
fn zero_in_place(slot: &mut View, start: usize, end: usize) {
    let end = end.min(slot.len());
    match slot.try_mut().and_then(|bytes| bytes.get_mut(start..end)) {
        Some(bytes) => bytes.fill(0),
        None => debug_assert!(false, "an unshared slot became shared"),
    }
}

/// Copies the first bytes of `old` to `new`, with zeros in `start..end` (counted as a copy).
fn copy_with_hole(old: &[u8], mut new: Buffer, start: usize, end: usize) -> View {
    let len = new.len();
    let (start, end) = (start.min(len), end.min(len));
    millrace_buffer::copy(&mut new[..start], &old[..start]);
    new[start..end].fill(0);
    millrace_buffer::copy(&mut new[end..], &old[end..len]);
    new.freeze()
}
