//! One block of a file.

mod hole;

use std::iter;

use millrace_buffer::{BLOCK_BYTES, Buffer, PAGE_BYTES, Quota, View, Views};

use super::source::DataCursor;
use crate::{FsError, FsResult};

const BLOCK_PAGES: usize = BLOCK_BYTES / PAGE_BYTES;

/// 64 KiB of a file. A slot may be shorter than its range; bytes after its end, and between slots, read as
/// zero.
#[derive(Default, Clone)]
pub(super) struct Block {
    /// The slot at the start of the block.
    head: Option<View>,
    /// Pages after the head, sorted by page number in the block.
    pages: Vec<(u8, View)>,
    /// Charge for the place in the map of blocks, in bytes; 0 if its slots were never those of another block.
    charge: u16,
}

/// Destination of one step of a write.
pub(super) enum Memory {
    /// The received slot becomes the block.
    Adopted(View),
    /// The head is unshared and large enough: write in place.
    Head,
    /// Write into a new head, which also takes over the old content.
    NewHead(Buffer),
    /// The page is unshared: write in place.
    Page,
    /// Write into a new page, which also takes over the old content.
    NewPage(Buffer),
}

/// Bit mask of the pages that `start..end` covers.
fn page_mask(start: usize, end: usize) -> u16 {
    let below = |page: usize| ((1u32 << page) - 1) as u16;
    below(end.div_ceil(PAGE_BYTES)) & !below(start / PAGE_BYTES)
}

/// Size in pages of the largest head of which at least three quarters of the pages have data.
fn best_head_pages(data: u16) -> usize {
    let sizes = iter::successors(Some(BLOCK_PAGES), |pages| (*pages > 1).then_some(pages / 2));
    let worth = |pages: &usize| {
        let used = (data & page_mask(0, pages * PAGE_BYTES)).count_ones() as usize;
        used * 4 >= pages * 3
    };
    sizes.into_iter().find(worth).unwrap_or(0)
}

impl Block {
    /// Slots with their offsets in the block, in order.
    fn slots(&self) -> impl Iterator<Item = (usize, &View)> {
        let pages = self.pages.iter().map(|(page, view)| (usize::from(*page) * PAGE_BYTES, view));
        self.head.iter().map(|head| (0, head)).chain(pages)
    }

    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        self.head.iter().chain(self.pages.iter().map(|(_, view)| view))
    }

    /// Total capacity of its slots, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.views().map(|v| v.capacity() as u64).sum()
    }

    /// Number of slots besides the head: up to 16.
    pub(super) fn pages(&self) -> u16 {
        self.pages.len() as u16
    }

    /// The bytes that are charged for its place in the map of blocks.
    pub(super) fn charge(&self) -> u16 {
        self.charge
    }

    /// Changes its part of the charge, which the caller has charged or refunds.
    pub(super) fn set_charge(&mut self, bytes: u16) {
        self.charge = bytes;
    }

    /// Whether it has no memory.
    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none() && self.pages.is_empty()
    }

    /// Whether it consists of one full slot.
    pub(super) fn is_full(&self) -> bool {
        self.head.as_ref().is_some_and(|h| h.len() == BLOCK_BYTES)
    }

    fn head_capacity(&self) -> usize {
        self.head.as_ref().map_or(0, |h| h.capacity())
    }

    fn page(&self, page: u8) -> Option<&View> {
        let at = self.pages.binary_search_by_key(&page, |(n, _)| *n).ok()?;
        Some(&self.pages[at].1)
    }

    /// End of the data below `limit`.
    fn data_end(&self, limit: usize) -> usize {
        self.slots().map(|(start, v)| (start + v.len()).min(limit)).max().unwrap_or(0)
    }

    /// Appends views of `start..end` to `out`.
    pub(super) fn read(
        &self,
        start: usize,
        end: usize,
        zeros: impl Fn() -> FsResult<View>,
        out: &mut Views,
    ) -> FsResult<()> {
        let mut at = start;
        for (offset, view) in self.slots() {
            let (from, to) = (at.max(offset), end.min(offset + view.len()));
            if from < to {
                if at < from {
                    out.push(zeros()?.slice(at, from - at));
                }
                out.push(view.slice(from - offset, to - from));
                at = to;
            }
        }
        if at < end {
            out.push(zeros()?.slice(at, end - at));
        }
        Ok(())
    }

    /// Copies the bytes from `start` on into `to` (counted as a copy).
    fn copy_out(&self, start: usize, to: &mut [u8]) {
        let (mut at, end) = (start, start + to.len());
        for (offset, view) in self.slots() {
            let (from, until) = (at.max(offset), end.min(offset + view.len()));
            if from < until {
                to[at - start..from - start].fill(0);
                millrace_buffer::copy(&mut to[from - start..], &view[from - offset..until - offset]);
                at = until;
            }
        }
        to[at - start..].fill(0);
    }

    /// Plans a write of `start..end` and allocates its memory. `adoptable`: the data, if it is one slot that
    /// may be adopted. `previous_full`: whether the preceding block is full. Returns whether the block will
    /// be one slot.
    pub(super) fn plan(
        &self,
        quota: &Quota,
        start: usize,
        end: usize,
        adoptable: Option<&View>,
        previous_full: bool,
        mut step: impl FnMut(usize, usize, Memory),
    ) -> FsResult<bool> {
        let worth =
            |p: &&View| start == 0 && p.len() * 2 > p.capacity() && p.len() >= self.data_end(BLOCK_BYTES);
        if let Some(adoptable) = adoptable.filter(worth) {
            step(start, end, Memory::Adopted(adoptable.clone()));
            return Ok(true);
        }
        let head = self.plan_head(quota, start, end, previous_full)?;
        let room = match &head {
            Some(Memory::NewHead(new)) => new.capacity(),
            _ => self.head_capacity(),
        };
        let mut at = start;
        if let Some(memory) = head {
            at = end.min(room);
            step(start, at, memory);
        }
        while at < end {
            let next = end.min((at / PAGE_BYTES + 1) * PAGE_BYTES);
            step(at, next, self.plan_page(quota, at / PAGE_BYTES)?);
            at = next;
        }
        Ok(room == BLOCK_BYTES)
    }

    /// Plans the head, if the write covers a part of it or lets it grow.
    fn plan_head(
        &self,
        quota: &Quota,
        start: usize,
        end: usize,
        previous_full: bool,
    ) -> FsResult<Option<Memory>> {
        let room = self.head_capacity();
        let touched = page_mask(start, end);
        let present = self.slots().fold(0, |pages, (offset, v)| pages | page_mask(offset, offset + v.len()));
        let wanted = match previous_full {
            true => BLOCK_BYTES,
            false => best_head_pages(present | touched) * PAGE_BYTES,
        };
        // Grow only if the write adds a page.
        let grows = wanted > room && start < wanted && touched & !present & page_mask(room, wanted) != 0;
        if grows && let Ok(mut new) = quota.alloc(wanted) {
            new.set_len(end.min(wanted).max(self.data_end(wanted)));
            return Ok(Some(Memory::NewHead(new)));
        }
        // If the quota has no slot of that size, single pages may still fit.
        let Some(head) = self.head.as_ref().filter(|_| start < room) else { return Ok(None) };
        if head.is_unique() {
            return Ok(Some(Memory::Head));
        }
        let mut new = quota.alloc(room).map_err(|_| FsError::Jukebox)?;
        new.set_len(end.min(room).max(head.len()));
        Ok(Some(Memory::NewHead(new)))
    }

    fn plan_page(&self, quota: &Quota, page: usize) -> FsResult<Memory> {
        let old = self.page(page as u8);
        if old.is_some_and(View::is_unique) {
            return Ok(Memory::Page);
        }
        let refused = if old.is_some() { FsError::Jukebox } else { FsError::NoSpc };
        Ok(Memory::NewPage(quota.alloc(PAGE_BYTES).map_err(|_| refused)?))
    }

    /// Executes a step that was planned under the same lock; `source` is positioned at its data.
    pub(super) fn apply(&mut self, start: usize, end: usize, memory: Memory, source: &mut DataCursor<'_>) {
        match memory {
            Memory::Adopted(view) => {
                source.skip(end - start);
                self.head = Some(view);
                self.pages = Vec::new();
            }
            Memory::Head => {
                if let Some(head) = self.head.take() {
                    self.head = Some(write_into(head, start, end, source));
                }
            }
            Memory::NewHead(mut new) => {
                let (len, room) = (new.len(), new.capacity());
                self.copy_out(0, &mut new[..start]);
                source.copy_to(&mut new[start..end]);
                self.copy_out(end, &mut new[end..len]);
                self.pages.retain(|(page, _)| usize::from(*page) * PAGE_BYTES >= room);
                self.head = Some(new.freeze());
            }
            Memory::Page => {
                let page = (start / PAGE_BYTES) as u8;
                if let Ok(at) = self.pages.binary_search_by_key(&page, |(n, _)| *n) {
                    let (offset, (_, old)) = (usize::from(page) * PAGE_BYTES, self.pages.remove(at));
                    let new = write_into(old, start - offset, end - offset, source);
                    self.pages.insert(at, (page, new));
                }
            }
            Memory::NewPage(mut new) => {
                let page = (start / PAGE_BYTES) as u8;
                let offset = usize::from(page) * PAGE_BYTES;
                self.copy_out(offset, &mut new[..start - offset]);
                source.copy_to(&mut new[start - offset..end - offset]);
                self.copy_out(end, &mut new[end - offset..]);
                let view = new.freeze();
                match self.pages.binary_search_by_key(&page, |(n, _)| *n) {
                    Ok(at) => self.pages[at].1 = view,
                    Err(at) => self.pages.insert(at, (page, view)),
                }
            }
        }
    }

    /// Truncates the block. Returns a slot that was replaced by a smaller one.
    pub(super) fn truncate(&mut self, quota: &Quota, end: usize) -> Option<View> {
        self.pages.retain(|(page, _)| usize::from(*page) * PAGE_BYTES < end);
        if let Some((page, view)) = self.pages.last_mut() {
            shorten(view, end - usize::from(*page) * PAGE_BYTES);
        }
        self.shorten_head(quota, end)
    }

    /// Shortens the head to `len` bytes. Returns the slot if it was replaced by a smaller one.
    fn shorten_head(&mut self, quota: &Quota, len: usize) -> Option<View> {
        let head = self.head.as_mut()?;
        shorten(head, len);
        let smaller = head.len().div_ceil(PAGE_BYTES).next_power_of_two() * PAGE_BYTES;
        if smaller == head.capacity() {
            return None;
        }
        let mut new = quota.alloc(head.len()).ok()?;
        millrace_buffer::copy(&mut new, head);
        self.head.replace(new.freeze())
    }
}

fn shorten(view: &mut View, len: usize) {
    if len < view.len() {
        *view = view.slice(0, len);
    }
}

/// Writes the next bytes of `source` to `start..end` of `slot`, which is unshared and large enough.
fn write_into(mut slot: View, start: usize, end: usize, source: &mut DataCursor<'_>) -> View {
    if let Some(bytes) = slot.try_mut().and_then(|b| b.get_mut(start..end)) {
        source.copy_to(bytes);
        return slot;
    }
    match slot.try_into_buffer() {
        Ok(mut buffer) => {
            let len = buffer.len();
            buffer.set_len(end.max(len));
            if len < start {
                buffer[len..start].fill(0);
            }
            source.copy_to(&mut buffer[start..end]);
            buffer.freeze()
        }
        Err(slot) => {
            debug_assert!(false, "an unshared slot became shared");
            slot
        }
    }
}
