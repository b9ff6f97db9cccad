//! Protection domains: by what means a peer reaches memory, and how that ends.

use std::sync::Arc;

use millrace_buffer::{SpanRef, Views};
use smallvec::SmallVec;

use crate::{Access, Memory, Segment};

/// What a peer needs to reach one piece of exposed memory, in the order of its bytes. Most means give one segment.
pub type Segments = SmallVec<[Segment; 1]>;

/// Bytes of the pages at whose borders the segments of [`Means::Global`] end.
pub const GLOBAL_PAGE: usize = 4096;

/// By what means a peer reaches exposed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// A registration of its own: tag and translation entries are allocated for exactly these bytes and freed when
    /// they are revoked. Every provider can; where there is hardware, it is the most expensive.
    Registration,
    /// A window out of those that [`Domain::reserve_windows`] allocated, bound to exactly these bytes and invalidated
    /// when they are revoked (memory window type 2, fast registration). Its tag keeps the index and changes the key.
    Window,
    /// The one tag of the whole arena that [`Domain::enable_global`] made: nothing is allocated or bound. Tagged
    /// offsets are addresses, and no segment crosses a border of a page of [`GLOBAL_PAGE`] bytes. On hardware the peer
    /// reaches *all memory of the arena, always*; a software provider limits it to what is exposed now.
    Global,
}

/// Names one exposure in its domain; never on the wire. Every provider chooses its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExposureId(pub u64);

/// What memory of this side's own is for in the work that uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalUse {
    /// Bytes are taken from it: the source of an RDMA Write.
    Source,
    /// Bytes are put into it: the sink of an RDMA Read.
    Sink,
}

/// Names a registration for this side's own use in its domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalKey(pub u64);

/// Memory that a peer can reach now.
#[derive(Debug)]
pub struct Exposure {
    /// Its name to the domain.
    pub id: ExposureId,
    /// What the peer needs.
    pub segments: Segments,
}

/// Why memory could not be exposed. The memory comes back.
#[derive(Debug, thiserror::Error)]
#[error("cannot expose {} bytes: {reason}", memory.len())]
pub struct ExposeError {
    /// The memory.
    pub memory: Memory,
    /// Why.
    pub reason: &'static str,
}

/// The protection domain of one connection: the table of its steering tags.
pub trait Domain: Send + Sync + 'static {
    /// Lets the peer reach `memory`, and nothing else of this process unless `by` says otherwise, with the right
    /// `access`.
    ///
    /// # Errors
    /// When the domain does not have these means or has run out of them, `memory` is larger than they allow or in more
    /// pieces than [`crate::Capabilities::max_region_pieces`], the domain is closed, or shared memory shall be written.
    fn expose(&self, by: Means, memory: Memory, access: Access) -> Result<Exposure, ExposeError>;

    /// Makes the memory unreachable and gives it back. When it returns no peer can touch the memory any more. (Where
    /// an adapter has to invalidate a window, it waits for that: for microseconds, or behind a peer that does not answer
    /// for at most a quarter of a second, after which the connection ends.) `None` if there is no such exposure: each is revoked or released once, by its [`crate::ExposedRegion`].
    fn revoke(&self, id: ExposureId) -> Option<Memory>;

    /// Gives the memory back, and leaves a window through which the peer writes bound to it until
    /// [`Self::invalidate_released`]: until then a late RDMA Write lands in memory that has a new owner already. What
    /// is not exposed so is revoked, and everything is where the provider cannot do otherwise.
    fn release(&self, id: ExposureId) -> Option<Memory> {
        self.revoke(id)
    }

    /// Invalidates all windows that were released; gives how many.
    fn invalidate_released(&self) -> usize {
        0
    }

    /// Whether the peer can reach the memory: it was not invalidated by the peer's Send with Invalidate, and not
    /// revoked.
    fn is_valid(&self, id: ExposureId) -> bool;

    /// How many regions the peer can reach now, and their bytes; those released and not yet invalidated count.
    fn exposed(&self) -> (usize, usize);

    /// Allocates `count` windows for at most `largest` bytes each, for the life of the domain; gives how many there are
    /// now. Only the first call allocates.
    fn reserve_windows(&self, _count: usize, _largest: usize) -> usize {
        0
    }

    /// Makes the tag of [`Means::Global`]; `false` where the provider has none.
    fn enable_global(&self) -> bool {
        false
    }

    /// Whether this side's own memory is to be registered by these means: not where a provider in software needs no
    /// registration, and not by a window on adapters whose windows are for peers alone. Where memory must be registered and
    /// nobody does so by [`Self::register_local`] or [`Self::keep_local`], the span that it lies in is, when it is first
    /// used, and stays so.
    fn registers_local(&self, _by: Means) -> bool {
        false
    }

    /// Registers exactly these pieces for this side's own use in the work that is posted next, as source or sink. `None`
    /// when the adapter has no room for it, or [`Self::registers_local`] says no. The memory stays where it is until
    /// [`Self::deregister_local`], which comes before any other work uses it. (The sinks of an iWARP adapter are
    /// registered with each RDMA Read anyway, for they have tags.)
    fn register_local(&self, _by: Means, _pieces: &[&[u8]], _for: LocalUse) -> Option<LocalKey> {
        None
    }

    /// Registers a whole span for this side's own use, until [`Self::deregister_local`]. `None` as above. The caller keeps
    /// its reference until then, so that the span stays mapped.
    fn keep_local(&self, _span: &SpanRef) -> Option<LocalKey> {
        None
    }

    /// Ends what [`Self::register_local`] or [`Self::keep_local`] began; the work that used it is done.
    fn deregister_local(&self, _key: LocalKey) {}

    /// Copies bytes from the start of exposed memory (which stays exposed) to `to`; `false` if there are not as many,
    /// or the provider cannot.
    fn copy_out(&self, _id: ExposureId, _to: &mut [u8]) -> bool {
        false
    }

    /// Copies `from` to the start of exposed memory that is not shared (and stays exposed); `false` if it does not fit,
    /// or the provider cannot.
    fn copy_in(&self, _id: ExposureId, _from: &Views) -> bool {
        false
    }
}

/// How code holds a domain.
pub type DomainRef = Arc<dyn Domain>;
