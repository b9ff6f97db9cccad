//! One block of a file: its slots of memory.

use std::iter;

use millrace_buffer::{BLOCK_BYTES, Buffer, PAGE_BYTES, Quota, View, Views};

use super::source::Source;
use crate::{FsError, FsResult};

const BLOCK_PAGES: usize = BLOCK_BYTES / PAGE_BYTES;

/// 64 KiB of a file. Each slot may be shorter than its place; what lies after its bytes, and between slots, reads as zero.
#[derive(Default)]
pub(super) struct Block {
    /// The slot at the block's beginning.
    head: Option<View>,
    /// Pages beyond the head's slot, by their number in the block, in order.
    pages: Vec<(u8, View)>,
}

/// Where the bytes of a step of a write go.
pub(super) enum Memory {
    /// The slot that arrived becomes the block.
    Adopted(View),
    /// The head is unshared and has room: copy into it.
    Head,
    /// Copy into this new head, together with what the block has in its place.
    NewHead(Buffer),
    /// The page at which the step begins is unshared: copy into it.
    Page,
    /// Copy into this new page, together with the content of the old one.
    NewPage(Buffer),
}

/// The numbers of the pages that `start..end` touches, as bits.
fn pages_of(start: usize, end: usize) -> u16 {
    let below = |page: usize| ((1u32 << page) - 1) as u16;
    below(end.div_ceil(PAGE_BYTES)) & !below(start / PAGE_BYTES)
}

/// The pages of the largest head worth having where the pages `data` have data: three quarters of them have.
fn worthwhile_head(data: u16) -> usize {
    let sizes = iter::successors(Some(BLOCK_PAGES), |pages| (*pages > 1).then_some(pages / 2));
    let worth = |pages: &usize| {
        let used = (data & pages_of(0, pages * PAGE_BYTES)).count_ones() as usize;
        used * 4 >= pages * 3
    };
    sizes.into_iter().find(worth).unwrap_or(0)
}

impl Block {
    /// Its slots with the places in the block where they begin, in order.
    fn slots(&self) -> impl Iterator<Item = (usize, &View)> {
        let pages = self.pages.iter().map(|(page, view)| (usize::from(*page) * PAGE_BYTES, view));
        self.head.iter().map(|head| (0, head)).chain(pages)
    }

    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        self.head.iter().chain(self.pages.iter().map(|(_, view)| view))
    }

    /// Bytes of memory of its slots.
    pub(super) fn bytes(&self) -> u64 {
        self.views().map(|v| v.capacity() as u64).sum()
    }

    /// Whether it is one slot, to the last byte.
    pub(super) fn is_full(&self) -> bool {
        self.head.as_ref().is_some_and(|h| h.len() == BLOCK_BYTES)
    }

    fn head_room(&self) -> usize {
        self.head.as_ref().map_or(0, |h| h.capacity())
    }

    fn page(&self, page: u8) -> Option<&View> {
        let at = self.pages.binary_search_by_key(&page, |(n, _)| *n).ok()?;
        Some(&self.pages[at].1)
    }

    /// The end of the data that lies below `limit`.
    fn data_end(&self, limit: usize) -> usize {
        self.slots().map(|(start, v)| (start + v.len()).min(limit)).max().unwrap_or(0)
    }

    /// Adds the bytes `start..end` to `out`, by reference.
    pub(super) fn read(
        &self,
        start: usize,
        end: usize,
        zeros: impl Fn() -> FsResult<View>,
        out: &mut Views,
    ) -> FsResult<()> {
        let mut at = start;
        for (place, view) in self.slots() {
            let (from, to) = (at.max(place), end.min(place + view.len()));
            if from < to {
                if at < from {
                    out.push(zeros()?.slice(at, from - at));
                }
                out.push(view.slice(from - place, to - from));
                at = to;
            }
        }
        if at < end {
            out.push(zeros()?.slice(at, end - at));
        }
        Ok(())
    }

    /// Fills `to` with the bytes that begin at `start` (data is counted as copied).
    fn copy_out(&self, start: usize, to: &mut [u8]) {
        let (mut at, end) = (start, start + to.len());
        for (place, view) in self.slots() {
            let (from, until) = (at.max(place), end.min(place + view.len()));
            if from < until {
                to[at - start..from - start].fill(0);
                millrace_buffer::copy(&mut to[from - start..], &view[from - place..until - place]);
                at = until;
            }
        }
        to[at - start..].fill(0);
    }

    /// Plans a write of `start..end` as steps, for which it allocates memory. `piece` is the data, if that can be adopted;
    /// `after_full` says that the block before this one is full. Whether one slot has the whole block afterwards.
    pub(super) fn plan(
        &self,
        quota: &Quota,
        start: usize,
        end: usize,
        piece: Option<&View>,
        after_full: bool,
        mut step: impl FnMut(usize, usize, Memory),
    ) -> FsResult<bool> {
        let worth =
            |p: &&View| start == 0 && p.len() * 2 > p.capacity() && p.len() >= self.data_end(BLOCK_BYTES);
        if let Some(piece) = piece.filter(worth) {
            step(start, end, Memory::Adopted(piece.clone()));
            return Ok(true);
        }
        let head = self.plan_head(quota, start, end, after_full)?;
        let room = match &head {
            Some(Memory::NewHead(new)) => new.capacity(),
            _ => self.head_room(),
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

    /// What happens to the head, if the write touches it or lets it grow.
    fn plan_head(
        &self,
        quota: &Quota,
        start: usize,
        end: usize,
        after_full: bool,
    ) -> FsResult<Option<Memory>> {
        let room = self.head_room();
        let touched = pages_of(start, end);
        let there = self.slots().fold(0, |pages, (place, v)| pages | pages_of(place, place + v.len()));
        let wanted = match after_full {
            true => BLOCK_BYTES,
            false => worthwhile_head(there | touched) * PAGE_BYTES,
        };
        // Without a page to be added there is no reason to grow.
        let grows = wanted > room && start < wanted && touched & !there & pages_of(room, wanted) != 0;
        if grows && let Ok(mut new) = quota.alloc(wanted) {
            new.set_len(end.min(wanted).max(self.data_end(wanted)));
            return Ok(Some(Memory::NewHead(new)));
        }
        // Where the quota has no slot of that size, single pages may do.
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

    /// Carries out a step that was planned under the same lock; `source` stands at its bytes.
    pub(super) fn apply(&mut self, start: usize, end: usize, memory: Memory, source: &mut Source<'_>) {
        match memory {
            Memory::Adopted(view) => {
                source.skip(end - start);
                *self = Self { head: Some(view), pages: Vec::new() };
            }
            Memory::Head => {
                if let Some(head) = self.head.take() {
                    self.head = Some(written(head, start, end, source));
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
                    let (place, (_, old)) = (usize::from(page) * PAGE_BYTES, self.pages.remove(at));
                    let new = written(old, start - place, end - place, source);
                    self.pages.insert(at, (page, new));
                }
            }
            Memory::NewPage(mut new) => {
                let page = (start / PAGE_BYTES) as u8;
                let place = usize::from(page) * PAGE_BYTES;
                self.copy_out(place, &mut new[..start - place]);
                source.copy_to(&mut new[start - place..end - place]);
                self.copy_out(end, &mut new[end - place..]);
                let view = new.freeze();
                match self.pages.binary_search_by_key(&page, |(n, _)| *n) {
                    Ok(at) => self.pages[at].1 = view,
                    Err(at) => self.pages.insert(at, (page, view)),
                }
            }
        }
    }

    /// Cuts it off at `end`. Gives a slot that a smaller one has replaced.
    pub(super) fn truncate(&mut self, quota: &Quota, end: usize) -> Option<View> {
        self.pages.retain(|(page, _)| usize::from(*page) * PAGE_BYTES < end);
        if let Some((page, view)) = self.pages.last_mut() {
            shorten(view, end - usize::from(*page) * PAGE_BYTES);
        }
        let head = self.head.as_mut()?;
        shorten(head, end);
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

/// `slot`, which is unshared and has room, with the next bytes of `source` at `start..end`.
fn written(mut slot: View, start: usize, end: usize, source: &mut Source<'_>) -> View {
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
            debug_assert!(false, "a slot that was unshared is shared");
            slot
        }
    }
}
