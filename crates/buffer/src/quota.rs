//! Stored memory, bounded by quotas.

use std::fmt;

use crate::{
    Buffer, View,
    arena::{Arena, ArenaState, Inner},
    block_spans::SlotId,
    span::{PAGE_BYTES, order_of},
    sync::{Arc, AtomicU64, Ordering},
};

/// The quota is exhausted, or no slot of the requested size is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {wanted} bytes in a quota of {limit} bytes")]
pub struct OverQuota {
    /// Requested bytes.
    pub wanted: u64,
    /// Limit of the quota in bytes.
    pub limit: u64,
}

/// Memory charged to a quota. Slots refer to it, so that the charge is refunded when they are freed.
pub(crate) struct Account {
    limit: u64,
    used: AtomicU64,
    /// Number of slots charged to it, plus [`Self::CLOSED`] after the quota is dropped. Changed under the
    /// arena's lock.
    slots: AtomicU64,
}

impl Account {
    const CLOSED: u64 = 1 << 63;

    pub(crate) fn limit_pages(&self) -> u64 {
        self.limit.div_ceil(PAGE_BYTES as u64)
    }

    /// Charges `more` and refunds `less`, if the limit allows it.
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

/// The right of one owner, such as an in-memory file system, to store a limited amount of data in an
/// [`Arena`].
///
/// Memory of a quota is separate from transient memory and from other quotas: the full quota is available
/// regardless of what others store. The pages ([`PAGE_BYTES`]) of a slot from [`Self::alloc`] or
/// [`Self::exchange`] are charged until the last buffer or view of it is dropped, including those of readers.
/// Memory outside of the arena can be charged too ([`Self::charge`]), so that one limit covers both.
pub struct Quota {
    arena: Arena,
    account: Arc<Account>,
}

impl Quota {
    pub(crate) fn new(arena: Arena, limit: u64) -> Self {
        let account = Account { limit, used: AtomicU64::new(0), slots: AtomicU64::new(0) };
        arena.inner().change(|state| state.blocks.add_quota(account.limit_pages()));
        Self { arena, account: Arc::new(account) }
    }

    /// Allocates a buffer of `len` bytes and charges its capacity (a power of two pages, at most
    /// [`BLOCK_BYTES`](crate::BLOCK_BYTES)). Its content is arbitrary, as with [`Arena::alloc`].
    ///
    /// A buffer of up to [`PAGE_BYTES`] is available whenever the limit allows. A larger one may fail because
    /// free pages are not contiguous; smaller ones are still available then.
    ///
    /// # Errors
    /// [`OverQuota`], also if `len` exceeds a block or the system has no memory.
    pub fn alloc(&self, len: usize) -> Result<Buffer, OverQuota> {
        let error = OverQuota { wanted: len as u64, limit: self.account.limit };
        let order = order_of(len).ok_or(error)?;
        let bytes = (PAGE_BYTES << order) as u64;
        self.charge(bytes)?;
        let inner = self.arena.inner();
        let mut state = inner.lock();
        let allocated =
            state.blocks.take_stored(order, &self.account, Arc::as_ptr(inner), || inner.map(true));
        state.update_peak();
        drop(state);
        let Some(allocated) = allocated else {
            self.refund(bytes);
            return Err(error);
        };
        Ok(Inner::make_buffer(inner, allocated, len))
    }

    /// Whether [`Self::exchange`] can adopt the memory of `view`: it is in a block span of the same arena,
    /// and the view starts at the start of its slot.
    pub fn can_adopt(&self, view: &View) -> bool {
        view.offset() == 0 && self.slot_id(view).is_some()
    }

    /// Identifies the slot of `view` if it is in a block span of the same arena.
    fn slot_id(&self, view: &View) -> Option<SlotId> {
        view.slot().id_in(Arc::as_ptr(self.arena.inner()))
    }

    /// Adopts the memory of `new` without a copy, and in exchange releases that of `old`, atomically. `new`
    /// is transient memory for which [`Self::can_adopt`] is true; `old` are the only views of memory charged
    /// to this quota, and must be dropped next.
    ///
    /// # Errors
    /// [`OverQuota`] if the limit does not allow the difference, or memory of `new` is charged to another
    /// quota.
    pub fn exchange(&self, new: &[&View], old: &[&View]) -> Result<(), OverQuota> {
        let new = new.iter().filter_map(|v| self.slot_id(v));
        let old = old.iter().filter_map(|v| self.slot_id(v));
        let bytes = |at: SlotId| (PAGE_BYTES << at.order) as u64;
        self.arena.inner().change(|ArenaState { blocks, .. }| {
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
            self.refund(more - stored); // A slot that occurs twice in `new` is charged once.
            Ok(())
        })
    }

    /// Charges `bytes` of memory outside of the arena.
    ///
    /// # Errors
    /// [`OverQuota`].
    pub fn charge(&self, bytes: u64) -> Result<(), OverQuota> {
        self.account.exchange(bytes, 0)
    }

    /// Refunds a charge.
    pub fn refund(&self, bytes: u64) {
        self.account.refund(bytes);
    }

    /// Replaces a charge of `old` bytes by one of `new` bytes. Succeeds if `new` is not larger, even beyond
    /// the limit.
    ///
    /// # Errors
    /// [`OverQuota`].
    pub fn recharge(&self, new: u64, old: u64) -> Result<(), OverQuota> {
        self.account.exchange(new, old)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.account.limit
    }

    /// Bytes currently charged.
    pub fn used(&self) -> u64 {
        self.account.used.load(Ordering::Relaxed)
    }

    /// The arena of the quota.
    pub fn arena(&self) -> Arena {
        self.arena.clone()
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        self.arena.inner().change(|state| state.blocks.close(&self.account));
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quota({} of {} bytes)", self.used(), self.limit())
    }
}
