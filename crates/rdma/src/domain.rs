//! Protection domains: exposure of memory to the peer, revocation, and registration for local use.

use std::sync::Arc;

use millrace_buffer::{SpanRef, Views};
use smallvec::SmallVec;

use crate::{Access, Memory, Segment};

/// Segments of one exposed region, in the order of its bytes. Most kinds of registration have one segment.
pub type Segments = SmallVec<[Segment; 1]>;

/// Page size for [`RegistrationKind::Global`]: no segment crosses a multiple of this many bytes.
pub const GLOBAL_PAGE: usize = 4096;

/// How memory is registered, for the access of the peer or for local use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationKind {
    /// A memory region of exactly these bytes: steering tag and translation entries are allocated now and
    /// freed at revocation. Every provider supports it; on adapters it is the most expensive kind.
    Region,
    /// A window that [`Domain::reserve_windows`] allocated, bound to exactly these bytes and invalidated at
    /// revocation (memory window type 2, fast registration). The tag keeps its index and gets a new key at
    /// each binding.
    Window,
    /// The steering tag of the whole arena, from [`Domain::enable_global`]: nothing is allocated or bound.
    /// Tagged offsets are addresses, and no segment crosses a multiple of [`GLOBAL_PAGE`]. On adapters the
    /// peer has permanent access to *all memory of the arena*; a software provider grants access to exposed
    /// memory only.
    Global,
}

/// Identifies an exposure in its domain. Local only: it is never sent to the peer. Each provider chooses the
/// values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExposureId(pub u64);

/// Use of local memory in a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalUse {
    /// The source of an RDMA Write.
    Source,
    /// The sink of an RDMA Read.
    Sink,
}

/// Identifies a registration for local use in its domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalKey(pub u64);

/// An exposure: memory that the peer can access.
#[derive(Debug)]
pub struct Exposure {
    /// Identifier in the domain.
    pub id: ExposureId,
    /// Segments to send to the peer.
    pub segments: Segments,
}

/// An exposure that failed. Returns the memory to the caller.
#[derive(Debug, thiserror::Error)]
#[error("cannot expose {} bytes: {reason}", memory.len())]
pub struct ExposeError {
    /// The memory, unchanged.
    pub memory: Memory,
    /// Reason of the failure.
    pub reason: &'static str,
}

/// The protection domain of one connection: the table of its steering tags.
pub trait Domain: Send + Sync + 'static {
    /// Grants the peer the right `access` to `memory`, and to no other memory of this process except as
    /// described for [`RegistrationKind::Global`].
    ///
    /// # Errors
    /// The domain lacks this kind of registration or its resources are exhausted; `memory` is too large or has
    /// more pieces than [`crate::Capabilities::max_region_pieces`]; the domain is closed; or `access` is
    /// [`Access::RemoteWrite`] and the memory is shared.
    fn expose(&self, by: RegistrationKind, memory: Memory, access: Access) -> Result<Exposure, ExposeError>;

    /// Ends the peer's access and returns the memory. The peer cannot access the memory after this function
    /// returns. An adapter that must invalidate a window blocks the caller for microseconds, or, if the peer
    /// does not respond, for at most 250 ms, after which the connection ends. `None` if the exposure does not
    /// exist; a [`crate::ExposedRegion`] revokes or releases its exposure once.
    fn revoke(&self, id: ExposureId) -> Option<Memory>;

    /// Returns the memory without invalidation: a window with [`Access::RemoteWrite`] stays bound until
    /// [`Self::invalidate_released`], and a late RDMA Write of the peer can overwrite the data of the
    /// memory's next owner. Other exposures are revoked. The default revokes every exposure.
    fn release(&self, id: ExposureId) -> Option<Memory> {
        self.revoke(id)
    }

    /// Invalidates all released windows and returns their number.
    fn invalidate_released(&self) -> usize {
        0
    }

    /// Whether the peer has access: the exposure was not revoked, and the peer did not invalidate its tag by
    /// Send with Invalidate.
    fn is_valid(&self, id: ExposureId) -> bool;

    /// Number of regions that the peer can access, and their total bytes; includes released windows that are
    /// still bound.
    fn exposed(&self) -> (usize, usize);

    /// Allocates `count` windows for at most `largest` bytes each, for the lifetime of the domain, and
    /// returns the number of windows. Only the first call allocates.
    fn reserve_windows(&self, _count: usize, _largest: usize) -> usize {
        0
    }

    /// Creates the tag for [`RegistrationKind::Global`]. Returns `false` if the provider does not support it.
    fn enable_global(&self) -> bool {
        false
    }

    /// Whether memory must be registered in this way for local use. `false` for software providers, which
    /// need no registration, and for windows on adapters whose windows grant remote access only. If memory
    /// needs a registration and the caller used neither [`Self::register_local`] nor [`Self::keep_local`],
    /// the provider registers its span at the first use, permanently.
    fn registers_local(&self, _by: RegistrationKind) -> bool {
        false
    }

    /// Registers exactly these pieces as source or sink of the work that is posted next. The memory must not
    /// move, and no other work may use it, until [`Self::deregister_local`]. `None` if the adapter has no
    /// resources or [`Self::registers_local`] is `false`. (iWARP adapters register sinks with each RDMA Read
    /// anyway, because a sink has a steering tag.)
    fn register_local(&self, _by: RegistrationKind, _pieces: &[&[u8]], _for: LocalUse) -> Option<LocalKey> {
        None
    }

    /// Registers a whole span for local use until [`Self::deregister_local`]. The caller keeps its reference
    /// until then, so that the span stays mapped. `None` as for [`Self::register_local`].
    fn keep_local(&self, _span: &SpanRef) -> Option<LocalKey> {
        None
    }

    /// Ends a registration of [`Self::register_local`] or [`Self::keep_local`]. All work that uses it must
    /// have completed.
    fn deregister_local(&self, _key: LocalKey) {}

    /// Copies the first `to.len()` bytes of exposed memory to `to`. The memory stays exposed. Returns `false`
    /// if the region is shorter or the provider cannot copy.
    fn copy_out(&self, _id: ExposureId, _to: &mut [u8]) -> bool {
        false
    }

    /// Copies `from` to the start of exposed owned memory. The memory stays exposed. Returns `false` if
    /// `from` is longer than the region, the memory is shared, or the provider cannot copy.
    fn copy_in(&self, _id: ExposureId, _from: &Views) -> bool {
        false
    }
}

/// Shared reference to a domain.
pub type DomainRef = Arc<dyn Domain>;
