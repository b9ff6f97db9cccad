//! Mapped memory: a span as the system and an adapter that has registered it see it.

use std::{
    fmt,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{sync::Arc, system};

/// Bytes of a span, the unit in which an arena maps memory; also the largest buffer. (Small under loom and Miri, which
/// follow each place of it.)
pub const SPAN_BYTES: usize = if cfg!(any(loom, miri)) { 128 << 10 } else { 4 << 20 };

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// One mapping of [`SPAN_BYTES`], aligned to its size. Unmapped on drop.
struct Mapping {
    memory: system::Memory,
    id: u64,
}

/// The memory in which a buffer lies, as a provider registers it: [`SPAN_BYTES`] of address space, mapped once and
/// never moved. Cheap to clone.
///
/// While a clone exists the memory stays mapped and keeps its physical pages: an arena unmaps only spans to which it has
/// the last reference. A registration holds a clone until it is deregistered, and depends on nothing else: the buffers
/// into which the span is divided, and their owners, may change meanwhile.
#[derive(Clone)]
pub struct SpanRef(Arc<Mapping>);

impl SpanRef {
    /// Maps new, zero-filled memory, aligned so that huge pages fit. `None` if the system refuses.
    pub(crate) fn map(huge: bool) -> Option<Self> {
        let memory = system::Memory::map(huge)?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Some(Self(Arc::new(Mapping { memory, id })))
    }

    /// Identifies this memory among all that the process ever maps: another span at the same address has another id.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The address of the first byte.
    pub fn address(&self) -> usize {
        self.start().as_ptr() as usize
    }

    /// Its bytes: [`SPAN_BYTES`].
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        SPAN_BYTES
    }

    /// Whether this is the only reference to the memory. A registration that holds it learns so that the arena, all
    /// buffers and all views of the span are gone.
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
