//! Stored memory, which a quota bounds.

use std::fmt;

use crate::{
    Buffer, View,
    arena::{Arena, Inner},
    block_spans::SlotAt,
    span::{PAGE_BYTES, order_of},
    sync::{Arc, AtomicU64, Ordering},
};

/// A quota has no room, or no slot of the size that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room for {wanted} bytes in a quota of {limit} bytes")]
pub struct OverQuota {
    /// Bytes asked for.
    pub wanted: u64,
    /// The quota's limit in bytes.
    pub limit: u64,
}

/// What a quota has paid for. The slots of the arena refer to it, so that bytes come back when memory does.
pub(crate) struct Account {
    limit: u64,
    used: AtomicU64,
    /// Slots that it pays for, and [`Self::CLOSED`] when the quota is gone. Changed under the arena's lock.
    slots: AtomicU64,
}

impl Account {
    const CLOSED: u64 = 1 << 63;

    pub(crate) fn limit_pages(&self) -> u64 {
        self.limit.div_ceil(PAGE_BYTES as u64)
    }

    /// Counts `more` and discounts `less`, if the limit allows it.
    fn exchange(&self, more: u64, less: u64) -> Result<(), OverQuota> {
        let changed = |used: u64| {
            let sum = used.checked_add(more)?.saturating_sub(less);
            (sum <= self.limit || more <= less).then_some(sum)
        };
        let result = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        result.map(drop).map_err(|_| OverQuota { wanted: more, limit: self.limit })
    }

    pub(crate) fn refund(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "refunded more than was charged");
    }

    pub(crate) fn with_slot(this: &Arc<Self>) -> Arc<Self> {
        this.slots.fetch_add(1, Ordering::Relaxed);
        Arc::clone(this)
    }

    pub(crate) fn without_slot(&self) {
        self.slots.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn close(&self) {
        self.slots.fetch_or(Self::CLOSED, Ordering::Relaxed);
    }

    pub(crate) fn is_closed_and_unused(&self) -> bool {
        self.slots.load(Ordering::Relaxed) == Self::CLOSED
    }
}

/// The right of one owner, such as a file system in memory, to store data in an [`Arena`]: at most so many bytes.
///
/// Memory of a quota is apart from the arena's transient memory, and quotas are apart from one another: whatever one
/// owner stores and removes, others find their memory. The quota pays for the pages ([`PAGE_BYTES`]) of each slot from
/// [`Self::alloc`] or [`Self::exchange`] until the last buffer or view of the slot is dropped, a reader's included. Memory
/// outside the arena can be charged too ([`Self::charge`]), so that one limit holds for both.
pub struct Quota {
    inner: Arc<Inner>,
    account: Arc<Account>,
}

impl Quota {
    pub(crate) fn new(inner: Arc<Inner>, limit: u64) -> Self {
        let account = Account { limit, used: AtomicU64::new(0), slots: AtomicU64::new(0) };
        inner.state.lock().blocks.add_quota(account.limit_pages());
        Self { inner, account: Arc::new(account) }
    }

    /// A buffer of `len` bytes, whose capacity (a power of two of pages, at most [`BLOCK_BYTES`](crate::BLOCK_BYTES)) is
    /// charged. Its content is arbitrary, as with [`Arena::alloc`].
    ///
    /// A buffer of up to [`PAGE_BYTES`] is granted whenever the limit allows it. A larger one may also fail because free
    /// pages do not adjoin; then smaller ones are granted.
    ///
    /// # Errors
    /// [`OverQuota`], also when `len` exceeds a block or the system has no memory.
    pub fn alloc(&self, len: usize) -> Result<Buffer, OverQuota> {
        let refused = OverQuota { wanted: len as u64, limit: self.account.limit };
        let order = order_of(len).ok_or(refused)?;
        let bytes = (PAGE_BYTES << order) as u64;
        self.charge(bytes)?;
        let arena = Arc::as_ptr(&self.inner);
        let mut state = self.inner.state.lock();
        let taken = state.blocks.take_stored(order, &self.account, arena, || self.inner.map());
        state.note_peak();
        drop(state);
        let Some(taken) = taken else {
            self.refund(bytes);
            return Err(refused);
        };
        Ok(Inner::hand_out(&self.inner, taken, len))
    }

    /// Whether [`Self::exchange`] can take the memory of `view` into this quota: it is a block of the same arena, and the
    /// view begins at its start.
    pub fn can_adopt(&self, view: &View) -> bool {
        view.offset() == 0 && self.place(view).is_some()
    }

    /// Where `view` lies, if that is in a span of blocks of the same arena.
    fn place(&self, view: &View) -> Option<SlotAt> {
        view.slot().place_in(Arc::as_ptr(&self.inner))
    }

    /// Takes the memory of `new` into this quota as it is, and in exchange releases that of `old`: all or nothing. `new`
    /// is transient memory for which [`Self::can_adopt`] holds; `old` are the only views of memory in this quota, and
    /// are to be dropped next.
    ///
    /// # Errors
    /// [`OverQuota`] if the limit does not allow the difference, or if another quota pays for one of `new`.
    pub fn exchange(&self, new: &[&View], old: &[&View]) -> Result<(), OverQuota> {
        let new = new.iter().filter_map(|v| self.place(v));
        let old = old.iter().filter_map(|v| self.place(v));
        let bytes = |at: SlotAt| (PAGE_BYTES << at.order) as u64;
        let mut state = self.inner.state.lock();
        let blocks = &mut state.blocks;
        let (mut more, mut less) = (0, 0);
        for at in new.clone() {
            match blocks.owner(at) {
                None => more += bytes(at),
                Some(owner) if Arc::ptr_eq(owner, &self.account) => {}
                Some(_) => return Err(OverQuota { wanted: bytes(at), limit: self.account.limit }),
            }
        }
        for at in old.clone() {
            if blocks.owner(at).is_some_and(|owner| Arc::ptr_eq(owner, &self.account)) {
                less += bytes(at);
            }
        }
        self.account.exchange(more, less)?;
        let stored = blocks.store(new, &self.account) * PAGE_BYTES as u64;
        blocks.release(old);
        self.refund(more - stored); // A slot that `new` names twice is paid for once.
        Ok(())
    }

    /// Counts `bytes` of other memory.
    ///
    /// # Errors
    /// [`OverQuota`].
    pub fn charge(&self, bytes: u64) -> Result<(), OverQuota> {
        self.account.exchange(bytes, 0)
    }

    /// Gives back what was charged.
    pub fn refund(&self, bytes: u64) {
        self.account.refund(bytes);
    }

    /// Charges the difference where `new` bytes of other memory take the place of `old` ones that were charged. It
    /// succeeds where nothing is to be charged.
    ///
    /// # Errors
    /// [`OverQuota`].
    pub fn recharge(&self, new: u64, old: u64) -> Result<(), OverQuota> {
        self.account.exchange(new, old)
    }

    /// The most bytes.
    pub fn limit(&self) -> u64 {
        self.account.limit
    }

    /// Bytes charged at the moment.
    pub fn used(&self) -> u64 {
        self.account.used.load(Ordering::Relaxed)
    }

    /// The arena.
    pub fn arena(&self) -> Arena {
        Arena::from_inner(Arc::clone(&self.inner))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        self.inner.state.lock().blocks.close(&self.account);
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quota({} of {} bytes)", self.used(), self.limit())
    }
}
