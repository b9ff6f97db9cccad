//! Spans of blocks: stored memory, which quotas bound, and transient blocks beside it.
//!
//! A span has 64 blocks of 16 pages (64 KiB). A block is handed out whole, or divided by halves into slots of 1 to 8
//! pages, as a buddy allocator does: a slot of `2^n` pages begins at a multiple of its size, and the free pages of a block
//! are the bits of a mask, so that neighbours merge by themselves. The lowest block that fits best is taken, which leaves
//! the spans at the end to run empty.
//!
//! # Limits
//!
//! The spans have room for all quotas together and for [`landing`](BlockSpans::new) spans more. Transient blocks use at
//! most the landing's pages. So a page for a quota that is not used up is always free, whatever is free beside it: pages of
//! all quotas may lie next to one another. Only larger slots may be missing when the free pages do not adjoin.

use std::collections::VecDeque;

use slab::Slab;

use crate::{
    arena::Inner,
    mapping::SpanRef,
    quota::Account,
    span::{BLOCK_ORDER, BLOCK_PAGES, Layout, PAGE_BYTES, SPAN_BLOCKS, SPAN_PAGES, Span, Taken},
    sync::Arc,
};

const ALL_FREE: u16 = u16::MAX;
const _: () = assert!(ALL_FREE.count_ones() == BLOCK_PAGES && SPAN_BLOCKS <= u64::BITS);
const ALL_BLOCKS: u64 = u64::MAX >> (u64::BITS - SPAN_BLOCKS);

/// The pages at which a free slot of each order begins, given a block's free pages.
fn runs(free: u16) -> [u16; BLOCK_ORDER as usize + 1] {
    let mut runs = [free; BLOCK_ORDER as usize + 1];
    // Multiples of 2, 4, 8 and 16.
    for (order, multiples) in [(1, 0x5555), (2, 0x1111), (3, 0x0101), (4, 0x0001)] {
        let half = runs[order - 1];
        runs[order] = half & (half >> (1 << (order - 1))) & multiples;
    }
    runs
}

/// The order of the largest free slot in a block that has a free page.
fn largest(free: u16) -> u8 {
    let fits = runs(free).iter().rposition(|starts| *starts != 0);
    fits.unwrap_or_default() as u8
}

/// The pages of a slot of `order` that begins at `page` of a block.
fn pages_of(page: u16, order: u8) -> u16 {
    (ALL_FREE >> (BLOCK_PAGES - (1 << order))) << page
}

/// A set of blocks, from which the lowest is found fast: a word for each span, and a bit for each word that is not 0.
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
    /// The free pages of each block.
    free: [u16; SPAN_BLOCKS as usize],
    /// Pages that are handed out.
    used: u32,
    /// By the first page of a slot: the quota that pays for it; `None` for transient slots.
    owners: Box<[Option<Arc<Account>>]>,
}

/// All spans of blocks.
pub(crate) struct BlockSpans {
    spans: Slab<BlockSpan>,
    /// Blocks that are partly free, by the order of their largest free slot.
    partial: [BlockSet; BLOCK_ORDER as usize],
    /// Free blocks in spans that are in use.
    whole: BlockSet,
    /// Spans of which nothing is handed out, the one that was used last at the end.
    empty: VecDeque<u32>,
    /// The fewest empty spans that there were since the last [`Self::trim`].
    idle: usize,
    landing_spans: u64,
    /// Pages of all quotas together.
    quota_pages: u64,
    /// Pages that are handed out: for quotas, and transient.
    stored: u64,
    transient: u64,
}

impl BlockSpans {
    /// None yet. Transient blocks may use as many pages as `landing_spans` have, while there are quotas.
    pub(crate) fn new(landing_spans: u64) -> Self {
        Self {
            spans: Slab::new(),
            partial: Default::default(),
            whole: BlockSet::default(),
            empty: VecDeque::new(),
            idle: 0,
            landing_spans,
            quota_pages: 0,
            stored: 0,
            transient: 0,
        }
    }

    pub(crate) fn mapped(&self) -> usize {
        self.spans.len()
    }

    /// Bytes that are handed out for quotas.
    pub(crate) fn stored(&self) -> usize {
        self.stored as usize * PAGE_BYTES
    }

    /// Bytes of transient blocks.
    pub(crate) fn transient(&self) -> usize {
        self.transient as usize * PAGE_BYTES
    }

    /// Bytes that transient blocks may use.
    pub(crate) fn landing(&self) -> usize {
        self.landing_pages() as usize * PAGE_BYTES
    }

    /// Bytes of all quotas together.
    pub(crate) fn quotas(&self) -> usize {
        (self.quota_pages as usize).saturating_mul(PAGE_BYTES)
    }

    fn landing_pages(&self) -> u64 {
        if self.quota_pages == 0 { 0 } else { self.landing_spans * u64::from(SPAN_PAGES) }
    }

    /// Makes room for a quota.
    pub(crate) fn add_quota(&mut self, pages: u64) {
        self.quota_pages = self.quota_pages.saturating_add(pages);
    }

    /// Closes the account of a quota that is dropped. Its room goes with the last slot that it pays for.
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
            pages => pages.div_ceil(u64::from(SPAN_PAGES)).saturating_add(self.landing_spans),
        }
    }

    /// Takes a slot of `order` that `owner`'s quota pays for, and has counted already.
    pub(crate) fn take_stored(
        &mut self,
        order: u8,
        owner: &Arc<Account>,
        arena: *const Inner,
        map: impl FnOnce() -> Option<SpanRef>,
    ) -> Option<Taken> {
        let (index, taken) = self.take(order, arena, map)?;
        self.spans[index as usize].owners[usize::from(taken.index)] = Some(Account::with_slot(owner));
        self.stored += 1 << order;
        Some(taken)
    }

    /// Takes a transient block, if the landing has one.
    pub(crate) fn take_transient(
        &mut self,
        arena: *const Inner,
        map: impl FnOnce() -> Option<SpanRef>,
    ) -> Option<Taken> {
        if self.transient + u64::from(BLOCK_PAGES) > self.landing_pages() {
            return None;
        }
        let (_, taken) = self.take(BLOCK_ORDER, arena, map)?;
        self.transient += u64::from(BLOCK_PAGES);
        Some(taken)
    }

    /// Takes a slot; also the key of its span.
    fn take(
        &mut self,
        order: u8,
        arena: *const Inner,
        map: impl FnOnce() -> Option<SpanRef>,
    ) -> Option<(u32, Taken)> {
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
        let taken = Taken { span: (&*s.span).into(), index: (block * BLOCK_PAGES) as u16 + page, order };
        Some((index, taken))
    }

    /// Brings an empty span, or a new one, into use.
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

    /// Sets the free pages of a block, and the set that the block is in.
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
        (free != 0).then(|| largest(free))
    }

    fn set_at(&mut self, order: u8) -> Option<&mut BlockSet> {
        if order == BLOCK_ORDER { Some(&mut self.whole) } else { self.partial.get_mut(usize::from(order)) }
    }

    /// Takes a slot back, whose bytes its quota counts no more.
    pub(crate) fn give(&mut self, index: u32, slot: u16, order: u8) {
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

    /// Makes transient slots stored ones of `owner`, whose quota has counted them already. Gives their pages.
    pub(crate) fn store(&mut self, slots: impl Iterator<Item = SlotAt>, owner: &Arc<Account>) -> u64 {
        let before = self.stored;
        for at in slots {
            let paying = &mut self.spans[at.span as usize].owners[usize::from(at.slot)];
            if paying.is_none() {
                *paying = Some(Account::with_slot(owner));
                self.stored += 1 << at.order;
                self.transient -= 1 << at.order;
            }
        }
        self.stored - before
    }

    /// Makes stored slots transient, which their quota counts no more.
    pub(crate) fn release(&mut self, slots: impl Iterator<Item = SlotAt>) {
        for at in slots {
            if let Some(owner) = self.spans[at.span as usize].owners[usize::from(at.slot)].take() {
                owner.without_slot();
                self.stored -= 1 << at.order;
                self.transient += 1 << at.order;
            }
        }
    }

    /// The account that pays for a slot.
    pub(crate) fn owner(&self, at: SlotAt) -> Option<&Arc<Account>> {
        self.spans[at.span as usize].owners[usize::from(at.slot)].as_ref()
    }

    /// As [`super::class_spans::ClassSpans::trim`].
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

/// A slot in a span of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotAt {
    pub(crate) span: u32,
    pub(crate) slot: u16,
    pub(crate) order: u8,
}
