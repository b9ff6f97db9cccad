//! Mapped memory: a span as the system and registering adapters see it.

use std::{
    fmt,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{sync::Arc, system};

/// Size of a span in bytes: the unit in which an arena maps memory, and the maximum buffer size. (Small under
/// loom and Miri, which track each byte.)
pub const SPAN_BYTES: usize = if cfg!(any(loom, miri)) { 128 << 10 } else { 4 << 20 };

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// A mapping of [`SPAN_BYTES`], aligned to its size. Unmapped on drop.
struct Mapping {
    memory: system::Memory,
    id: u64,
}

/// The memory that contains a buffer, for registration by a provider: [`SPAN_BYTES`] of address space, mapped
/// once and never moved. Cheap to clone.
///
/// While a clone exists, the memory stays mapped and keeps its physical pages: an arena unmaps only spans to
/// which it has the last reference. A registration holds a clone until it is deregistered. It does not depend
/// on how the span is divided into buffers, or who owns them.
#[derive(Clone)]
pub struct SpanRef(Arc<Mapping>);

impl SpanRef {
    /// Maps zero-filled memory, aligned for huge pages. `None` if the system has no memory.
    pub(crate) fn map(huge: bool) -> Option<Self> {
        let memory = system::Memory::map(huge)?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Some(Self(Arc::new(Mapping { memory, id })))
    }

    /// Unique ID of this mapping within the process: another mapping at the same address has another ID.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.start().as_ptr() as usize
    }

    /// Size in bytes: always [`SPAN_BYTES`].
    #[allow(clippy::len_without_is_empty)] // Never empty.
    pub fn len(&self) -> usize {
        SPAN_BYTES
    }

    /// Whether this is the only reference. For a registration that holds it, this means that the arena has
    /// unmapped the span and no buffer or view of it is left.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.memory.start()
    }
}

impl fmt::Debug for SpanRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanRef({} at {:#x})", self.id(), self.address())
    }
}
