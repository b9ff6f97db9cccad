//! The content of one regular file: pages that are shared by reference.

use std::{collections::BTreeMap, slice};

use buffer::{Arena, Buffer, View, Views};
use smallvec::SmallVec;

use super::space::Quota;
use crate::{FsError, FsResult};

/// Bytes of a page: the unit in which content is kept, shared and swapped. Data that arrives in pieces of this size
/// (each in its own slot of the arena) at a multiple of this offset becomes the file's pages without a copy.
pub const PAGE_BYTES: usize = 64 << 10;
const PAGE: u64 = PAGE_BYTES as u64;
/// The smallest slot of an arena.
const MIN_SLOT: usize = 512;
/// Pages of one write whose plan needs no heap (4 MiB at any offset).
const PLANNED_INLINE: usize = 65;

/// Where content gets its memory, and what it counts it against.
pub(super) struct Store<'a> {
    pub(super) arena: &'a Arena,
    pub(super) quota: &'a Quota,
}

/// One page: a view that begins at the start of its own slot. It may be shorter than [`PAGE_BYTES`]; what lies
/// after it, up to the file's size, reads as zero. `None` only inside a method.
type Page = Option<View>;

/// A file's size and its pages; pages that are not there are holes.
#[derive(Default)]
pub(super) struct Content {
    size: u64,
    /// Bytes of the slots of all pages, as charged to the quota.
    pinned: u64,
    /// Page 0, kept apart so that a small file needs no map.
    first: Page,
    rest: BTreeMap<u64, Page>,
    /// What an EXCLUSIVE create made the file with.
    verifier: Option<[u8; 8]>,
}

/// Content that was cut off, to be dropped where no lock is held.
pub(super) struct CutOff {
    _first: Page,
    _rest: BTreeMap<u64, Page>,
}

/// What happens to one page of a write. Everything that can fail is done while plans are made.
enum Plan {
    /// The piece becomes the page.
    Adopt(View),
    /// The page is ours alone and has room: copy into it.
    InPlace,
    /// Copy into this new page, together with what remains of the old one.
    Fresh(Buffer),
}

/// The part `start..end` of page `index` that a write covers.
#[derive(Clone, Copy)]
struct Part {
    index: u64,
    start: usize,
    end: usize,
}

/// The pages that `len` bytes at `offset` touch.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let index = at / PAGE;
        let stop = end.min((index + 1) * PAGE);
        let part = Part { index, start: (at % PAGE) as usize, end: (stop - index * PAGE) as usize };
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

    /// Bytes of memory that the pages pin.
    pub(super) fn pinned(&self) -> u64 {
        self.pinned
    }

    fn page(&self, index: u64) -> Option<&View> {
        if index == 0 { self.first.as_ref() } else { self.rest.get(&index)?.as_ref() }
    }

    fn page_mut(&mut self, index: u64) -> Option<&mut View> {
        if index == 0 { self.first.as_mut() } else { self.rest.get_mut(&index)?.as_mut() }
    }

    /// The place of page `index`, made if it is not there.
    fn place(&mut self, index: u64) -> &mut Page {
        if index == 0 { &mut self.first } else { self.rest.entry(index).or_default() }
    }

    /// Up to `count` bytes at `offset` by reference, and whether they reach the end. `zeros` gives a view of
    /// [`PAGE_BYTES`] zeros, for holes.
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
            let page = self.page(part.index);
            let data_end = page.map_or(0, |p| p.len()).clamp(part.start, part.end);
            if let Some(page) = page.filter(|_| data_end > part.start) {
                out.push(page.slice(part.start, data_end - part.start));
            }
            if part.end > data_end {
                out.push(zeros()?.slice(data_end, part.end - data_end));
            }
        }
        Ok((out, len == left))
    }

    /// Writes `data` at `offset` whole, or changes nothing ([`FsError::NoSpc`]). The caller has checked that the end
    /// is within the largest file.
    ///
    /// A piece that is a page by itself is kept instead of copied ([`adoptable`]). Everything else is copied, in
    /// place if no reader holds the page, else into a new page, so that readers keep what they were given.
    pub(super) fn write(&mut self, store: &Store<'_>, offset: u64, data: &Views) -> FsResult<()> {
        let mut plans: SmallVec<[Plan; PLANNED_INLINE]> = SmallVec::new();
        let (mut more, mut less) = (0, 0);
        let mut source = Source::new(data);
        for part in parts(offset, data.len()) {
            let piece = source.piece_of(part.end - part.start);
            let plan = self.plan(store, part, piece)?;
            let gained = match &plan {
                Plan::Adopt(view) => view.capacity(),
                Plan::Fresh(buffer) => buffer.capacity(),
                Plan::InPlace => 0,
            };
            if gained > 0 {
                more += gained as u64;
                less += self.page(part.index).map_or(0, |p| p.capacity() as u64);
            }
            plans.push(plan);
        }
        if more > less {
            store.quota.take(more - less)?;
        } else {
            store.quota.give_back(less - more);
        }
        self.pinned = self.pinned + more - less;
        let mut source = Source::new(data);
        for (part, plan) in parts(offset, data.len()).zip(plans.drain(..)) {
            self.apply(part, plan, &mut source);
        }
        self.size = self.size.max(offset + data.len() as u64);
        Ok(())
    }

    /// Decides about one page, and gets the memory for it.
    fn plan(&mut self, store: &Store<'_>, part: Part, piece: Option<&View>) -> FsResult<Plan> {
        let old = self.page_mut(part.index);
        let old_len = old.as_ref().map_or(0, |p| p.len());
        if let Some(piece) = piece.filter(|p| part.start == 0 && p.len() >= old_len && adoptable(p)) {
            return Ok(Plan::Adopt(piece.clone()));
        }
        let exists = old.is_some();
        if old.is_some_and(|p| part.end <= p.capacity() && p.try_mut().is_some()) {
            return Ok(Plan::InPlace);
        }
        // The first page grows by size classes, so that small files stay small. A later page that is written in
        // pieces will be filled soon: it gets its whole size at once.
        let need = part.end.max(old_len);
        let size = if exists && part.index > 0 { PAGE_BYTES } else { need };
        let mut fresh = store.arena.alloc(size).map_err(|_| FsError::NoSpc)?;
        fresh.set_len(need);
        Ok(Plan::Fresh(fresh))
    }

    /// Carries out a plan; `source` stands at the bytes of this part.
    fn apply(&mut self, part: Part, plan: Plan, source: &mut Source<'_>) {
        let len = part.end - part.start;
        let place = self.place(part.index);
        let buffer = match plan {
            Plan::Adopt(view) => {
                source.skip(len);
                *place = Some(view);
                return;
            }
            Plan::InPlace => {
                if let Some(bytes) = place.as_mut().and_then(|p| p.try_mut()).filter(|b| part.end <= b.len())
                {
                    source.copy_to(&mut bytes[part.start..part.end]);
                    return;
                }
                // The page is ours alone (so it was planned under the same lock) and shorter than its slot.
                let Some(Ok(mut buffer)) = place.take().map(View::try_into_buffer) else {
                    debug_assert!(false, "a page that was ours alone is not");
                    return;
                };
                let old_len = buffer.len();
                buffer.set_len(part.end);
                zero(&mut buffer, old_len, part.start);
                source.copy_to(&mut buffer[part.start..]);
                buffer
            }
            Plan::Fresh(mut buffer) => {
                let old = place.as_deref().unwrap_or_default();
                let kept = old.len().min(part.start);
                buffer::copy(&mut buffer, &old[..kept]);
                zero(&mut buffer, kept, part.start);
                source.copy_to(&mut buffer[part.start..part.end]);
                if let Some(tail) = old.get(part.end..) {
                    buffer::copy(&mut buffer[part.end..], tail);
                }
                buffer
            }
        };
        *place = Some(buffer.freeze());
    }

    /// Cuts the content off at `size`, or extends it with a hole.
    pub(super) fn set_size(&mut self, quota: &Quota, size: u64) -> CutOff {
        self.size = size;
        let kept_pages = size.div_ceil(PAGE);
        let first = if kept_pages == 0 { self.first.take() } else { None };
        let rest = self.rest.split_off(&kept_pages.max(1));
        let tail = (size % PAGE) as usize;
        if tail > 0
            && let Some(page) = self.page_mut(size / PAGE).filter(|p| p.len() > tail)
        {
            *page = page.slice(0, tail);
        }
        let cut = first.iter().chain(rest.values().flatten());
        let freed = cut.map(|p| p.capacity() as u64).sum();
        self.pinned -= freed;
        quota.give_back(freed);
        CutOff { _first: first, _rest: rest }
    }
}

fn zero(buffer: &mut Buffer, from: usize, to: usize) {
    if from < to {
        buffer[from..to].fill(0);
    }
}

/// Whether a piece of a write can become a page as it is: it begins its slot, and the slot is no larger than a page
/// and not mostly empty.
fn adoptable(piece: &View) -> bool {
    let worth = piece.len().saturating_mul(2).clamp(MIN_SLOT, PAGE_BYTES);
    piece.offset() == 0 && piece.capacity() <= worth
}

/// Reads the bytes of a gather list in order.
struct Source<'a> {
    views: slice::Iter<'a, View>,
    /// The view that is being read, and where.
    view: Option<&'a View>,
    at: usize,
}

impl<'a> Source<'a> {
    fn new(data: &'a Views) -> Self {
        let mut views = data.iter();
        let view = views.next();
        Self { views, view, at: 0 }
    }

    /// Hands the next `len` bytes out in pieces.
    fn take(&mut self, mut len: usize, mut each: impl FnMut(&[u8])) {
        while let Some(view) = self.view.filter(|_| len > 0) {
            let n = len.min(view.len() - self.at);
            each(&view[self.at..self.at + n]);
            self.at += n;
            len -= n;
            if self.at == view.len() {
                self.view = self.views.next();
                self.at = 0;
            }
        }
    }

    fn skip(&mut self, len: usize) {
        self.take(len, |_| ());
    }

    /// Fills `dst` with the next bytes (counted as copied).
    fn copy_to(&mut self, dst: &mut [u8]) {
        let mut at = 0;
        self.take(dst.len(), |bytes| {
            buffer::copy(&mut dst[at..], bytes);
            at += bytes.len();
        });
    }

    /// Goes over the next `len` bytes; the view that they are, if they are exactly one.
    fn piece_of(&mut self, len: usize) -> Option<&'a View> {
        let whole = self.view.filter(|v| self.at == 0 && v.len() == len);
        self.skip(len);
        whole
    }
}
