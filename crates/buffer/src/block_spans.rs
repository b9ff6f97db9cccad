//! Block spans: stored memory, bounded by quotas, and transient blocks that can become stored.
//!
//! A span has 64 blocks of 16 pages (64 KiB). A block is allocated whole, or divided into slots of 1 to 8
//! pages by a buddy allocator: a slot of `2^n` pages is aligned to its size, and the free pages of a block
//! are bits of a mask, so that free neighbours merge implicitly. The lowest best-fitting block is used, so
//! that the last spans become empty.
//!
//! # Limits
//!
//! The spans have space for all quotas together, plus [`reserve_spans`](BlockSpans::new). Transient blocks
//! use at most the pages of the reserve. A single page within a quota can therefore always be allocated, even
//! if the pages in use are scattered. Only larger slots can be unavailable, if the free pages are not
//! contiguous.

use std::collections::VecDeque;

use slab::Slab;

use crate::{
    arena::Inner,
    mapping::SpanRef,
    quota::Account,
    span::{AllocatedSlot, BLOCK_ORDER, BLOCK_PAGES, Layout, PAGE_BYTES, SPAN_BLOCKS, SPAN_PAGES, Span},
    sync::Arc,
};

const ALL_FREE: u16 = u16::MAX;
const _: () = assert!(ALL_FREE.count_ones() == BLOCK_PAGES && SPAN_BLOCKS <= u64::BITS);
const ALL_BLOCKS: u64 = u64::MAX >> (u64::BITS - SPAN_BLOCKS);

/// First pages of free slots for each order, for a mask of free pages.
fn runs(free: u16) -> [u16; BLOCK_ORDER as usize + 1] {
    let mut runs = [free; BLOCK_ORDER as usize + 1];
    // Slots of 2, 4, 8 and 16 pages begin at multiples of their size.
    for (order, multiples) in [(1, 0x5555), (2, 0x1111), (3, 0x0101), (4, 0x0001)] {
        let half = runs[order - 1];
        runs[order] = half & (half >> (1 << (order - 1))) & multiples;
    }
    runs
}

/// Order of the largest free slot in a block with at least one free page.
fn largest_order(free: u16) -> u8 {
    let fits = runs(free).iter().rposition(|starts| *starts != 0);
    fits.unwrap_or_default() as u8
}

/// Mask of the pages of a slot of `order` that starts at `page`.
fn pages_of(page: u16, order: u8) -> u16 {
    (ALL_FREE >> (BLOCK_PAGES - (1 << order))) << page
}

/// A set of blocks with fast search for the lowest one: a word per span, and a bit per non-zero word.
#[derive(Default)]
struct BlockSet {
    words: Vec<u64>,
    used_words: Vec<u64>,
}

impl BlockSet {
    fn first(&self) -> Option<(u32, u32)> {
        let at = self.used_words.iter().position(|w| *w != 0)?;
        let span = at as u32 * u64::BITS + self.used_words[at].trailing_zeros();
        Some((span, self.words[span as usize].trailing_zeros()))
    }

    fn word(&self, span: u32) -> u64 {
        self.words.get(span as usize).copied().unwrap_or_default()
    }

    fn set_word(&mut self, span: u32, word: u64) {
        let (at, bit) = (span / u64::BITS, 1 << (span % u64::BITS));
        if self.words.len() <= span as usize {
            self.words.resize(span as usize + 1, 0);
            self.used_words.resize(at as usize + 1, 0);
        }
        self.words[span as usize] = word;
        if word == 0 {
            self.used_words[at as usize] &= !bit;
        } else {
            self.used_words[at as usize] |= bit;
        }
    }

    fn insert(&mut self, span: u32, block: u32) {
        self.set_word(span, self.word(span) | 1 << block);
    }

    fn remove(&mut self, span: u32, block: u32) {
        self.set_word(span, self.word(span) & !(1 << block));
    }
}

struct BlockSpan {
    span: Arc<Span>,
    /// Mask of free pages of each block.
    free: [u16; SPAN_BLOCKS as usize],
    /// Number of pages in use.
    used: u32,
    /// Quota charged for each slot, by the slot's first page; `None` for transient slots.
    owners: Box<[Option<Arc<Account>>]>,
}

/// All block spans.
pub(crate) struct BlockSpans {
    spans: Slab<BlockSpan>,
    /// Partially free blocks, by the order of their largest free slot.
    partial: [BlockSet; BLOCK_ORDER as usize],
    /// Free blocks in spans that are in use.
    whole: BlockSet,
    /// Empty spans, the most recently used one last.
    empty: VecDeque<u32>,
    /// Minimum number of empty spans since the last [`Self::trim`].
    idle: usize,
    reserve_spans: u64,
    /// Sum of all quotas in pages.
    quota_pages: u64,
    /// Pages in use: stored and transient.
    stored: u64,
    transient: u64,
}

impl BlockSpans {
    /// Creates an empty set. While there are quotas, transient blocks may use as many pages as
    /// `reserve_spans` have.
    pub(crate) fn new(reserve_spans: u64) -> Self {
        Self {
            spans: Slab::new(),
            partial: Default::default(),
            whole: BlockSet::default(),
            empty: VecDeque::new(),
            idle: 0,
            reserve_spans,
            quota_pages: 0,
            stored: 0,
            transient: 0,
        }
    }

    pub(crate) fn mapped(&self) -> usize {
        self.spans.len()
    }

    /// Stored memory in bytes.
    pub(crate) fn stored(&self) -> usize {
        self.stored as usize * PAGE_BYTES
    }

    /// Transient memory in bytes.
    pub(crate) fn transient(&self) -> usize {
        self.transient as usize * PAGE_BYTES
    }

    /// The adoptable reserve in bytes.
    pub(crate) fn reserve(&self) -> usize {
        self.reserve_pages() as usize * PAGE_BYTES
    }

    /// Sum of all quotas in bytes.
    pub(crate) fn quotas(&self) -> usize {
        (self.quota_pages as usize).saturating_mul(PAGE_BYTES)
    }

    fn reserve_pages(&self) -> u64 {
        if self.quota_pages == 0 { 0 } else { self.reserve_spans * u64::from(SPAN_PAGES) }
    }

    /// Adds a quota to the limit.
    pub(crate) fn add_quota(&mut self, pages: u64) {
        self.quota_pages = self.quota_pages.saturating_add(pages);
    }

    /// Closes the account of a dropped quota. Its share of the limit is removed with its last slot.
    pub(crate) fn close(&mut self, account: &Account) {
        account.close();
        self.remove_if_unused(account);
    }

    fn remove_if_unused(&mut self, account: &Account) {
        if account.is_closed_and_unused() {
            self.quota_pages = self.quota_pages.saturating_sub(account.limit_pages());
        }
    }

    fn max_spans(&self) -> u64 {
        match self.quota_pages {
            0 => 0,
            pages => pages.div_ceil(u64::from(SPAN_PAGES)).saturating_add(self.reserve_spans),
        }
    }

    /// Allocates a slot of `order` that has been charged to `owner`.
    pub(crate) fn take_stored(
        &mut self,
        order: u8,
        owner: &Arc<Account>,
        arena: *const Inner,
        map: impl FnOnce() -> Option<SpanRef>,
    ) -> Option<AllocatedSlot> {
        let (index, allocated) = self.take(order, arena, map)?;
        self.spans[index as usize].owners[usize::from(allocated.index)] = Some(Account::with_slot(owner));
        self.stored += 1 << order;
        Some(allocated)
    }

    /// Allocates a transient block from the reserve.
    pub(crate) fn take_transient(
        &mut self,
        arena: *const Inner,
        map: impl FnOnce() -> Option<SpanRef>,
    ) -> Option<AllocatedSlot> {
        if self.transient + u64::from(BLOCK_PAGES) > self.reserve_pages() {
            return None;
        }
        let (_, allocated) = self.take(BLOCK_ORDER, arena, map)?;
        self.transient += u64::from(BLOCK_PAGES);
        Some(allocated)
    }

    /// Allocates a slot; also returns the index of its span.
    fn take(
        &mut self,
        order: u8,
        arena: *const Inner,
        map: impl FnOnce() -> Option<SpanRef>,
    ) -> Option<(u32, AllocatedSlot)> {
        let fits = self.partial[usize::from(order)..].iter().find_map(BlockSet::first);
        let (index, block) = match fits.or_else(|| self.whole.first()) {
            Some(found) => found,
            None => (self.open(arena, map)?, 0),
        };
        let free = self.spans[index as usize].free[block as usize];
        let page = runs(free)[usize::from(order)].trailing_zeros() as u16;
        self.set_free(index, block, free & !pages_of(page, order));
        let s = &mut self.spans[index as usize];
        s.used += 1 << order;
        let slot = (block * BLOCK_PAGES) as u16 + page;
        let allocated = AllocatedSlot { span: (&*s.span).into(), span_index: index, index: slot, order };
        Some((index, allocated))
    }

    /// Takes an empty span into use, or maps a new one.
    fn open(&mut self, arena: *const Inner, map: impl FnOnce() -> Option<SpanRef>) -> Option<u32> {
        let index = match self.empty.pop_back() {
            Some(index) => {
                self.idle = self.idle.min(self.empty.len());
                index
            }
            None if (self.spans.len() as u64) < self.max_spans() => {
                let mapping = map()?;
                let entry = self.spans.vacant_entry();
                let index = entry.key() as u32;
                entry.insert(BlockSpan {
                    span: Arc::new(Span::new(mapping, Layout::Blocks, index, arena)),
                    free: [ALL_FREE; SPAN_BLOCKS as usize],
                    used: 0,
                    owners: (0..SPAN_PAGES).map(|_| None).collect(),
                });
                index
            }
            None => return None,
        };
        self.whole.set_word(index, ALL_BLOCKS);
        Some(index)
    }

    /// Sets the free pages of a block, and moves it to the matching set.
    fn set_free(&mut self, index: u32, block: u32, free: u16) {
        let old = std::mem::replace(&mut self.spans[index as usize].free[block as usize], free);
        let (from, to) = (self.set_of(old), self.set_of(free));
        if from != to {
            if let Some(set) = from.and_then(|at| self.set_at(at)) {
                set.remove(index, block);
            }
            if let Some(set) = to.and_then(|at| self.set_at(at)) {
                set.insert(index, block);
            }
        }
    }

    fn set_of(&self, free: u16) -> Option<u8> {
        (free != 0).then(|| largest_order(free))
    }

    fn set_at(&mut self, order: u8) -> Option<&mut BlockSet> {
        if order == BLOCK_ORDER { Some(&mut self.whole) } else { self.partial.get_mut(usize::from(order)) }
    }

    /// Frees a slot and refunds its quota.
    pub(crate) fn free(&mut self, index: u32, slot: u16, order: u8) {
        let s = &mut self.spans[index as usize];
        s.used -= 1 << order;
        let pages = 1 << order;
        match s.owners[usize::from(slot)].take() {
            Some(owner) => {
                self.stored -= pages;
                owner.refund(pages * PAGE_BYTES as u64);
                owner.without_slot();
                self.remove_if_unused(&owner);
            }
            None => self.transient -= pages,
        }
        let (block, page) = (u32::from(slot) / BLOCK_PAGES, slot % BLOCK_PAGES as u16);
        let free = self.spans[index as usize].free[block as usize];
        self.set_free(index, block, free | pages_of(page, order));
        if self.spans[index as usize].used == 0 {
            self.whole.set_word(index, 0);
            self.empty.push_back(index);
        }
    }

    /// Turns transient slots into stored slots of `owner`, which has been charged. Returns the number of
    /// pages.
    pub(crate) fn store(&mut self, slots: impl Iterator<Item = SlotId>, owner: &Arc<Account>) -> u64 {
        let before = self.stored;
        for at in slots {
            let slot_owner = &mut self.spans[at.span as usize].owners[usize::from(at.slot)];
            if slot_owner.is_none() {
                *slot_owner = Some(Account::with_slot(owner));
                self.stored += 1 << at.order;
                self.transient -= 1 << at.order;
            }
        }
        self.stored - before
    }

    /// Turns stored slots, which have been refunded, into transient ones.
    pub(crate) fn release(&mut self, slots: impl Iterator<Item = SlotId>) {
        for at in slots {
            if let Some(owner) = self.spans[at.span as usize].owners[usize::from(at.slot)].take() {
                owner.without_slot();
                self.stored -= 1 << at.order;
                self.transient += 1 << at.order;
            }
        }
    }

    /// The account charged for a slot.
    pub(crate) fn owner(&self, at: SlotId) -> Option<&Arc<Account>> {
        self.spans[at.span as usize].owners[usize::from(at.slot)].as_ref()
    }

    /// See [`super::class_spans::ClassSpans::trim`].
    pub(crate) fn trim(&mut self) -> Vec<Arc<Span>> {
        let (mut removed, idle, spans) = (Vec::new(), self.idle, &mut self.spans);
        self.empty.retain(|index| {
            let goes = removed.len() < idle && spans[*index as usize].span.mapping.is_last();
            if goes {
                removed.push(spans.remove(*index as usize).span);
            }
            !goes
        });
        self.idle = self.empty.len();
        removed
    }
}

/// Identifies a slot in a block span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotId {
    pub(crate) span: u32,
    pub(crate) slot: u16,
    pub(crate) order: u8,
}
