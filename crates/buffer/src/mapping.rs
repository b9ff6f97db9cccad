//! Mapped memory: what a span is to the machine, and to an adapter that has registered it.

#![allow(unsafe_code)] // Maps memory, gives its pages back, and unmaps it.

use std::{
    fmt,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

/// Bytes of a span, the unit in which an arena maps memory; also the largest buffer.
pub const SPAN_BYTES: usize = 4 << 20;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// One mapping of [`SPAN_BYTES`], aligned to its size. Unmapped on drop.
struct Mapping {
    start: NonNull<u8>,
    id: u64,
    /// How many [`PinnedSpan`]s there are. Locked while pages are given back, so that none comes in between.
    pins: Mutex<usize>,
}

// SAFETY: an address range that this value owns. Its bytes are reached only through `Buffer` (one exclusive owner of a
// slot) and `View` (shared, read only), which the slot's reference count keeps apart.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(test)]
        live::COUNT.with(|c| c.set(c.get() - 1));
        // SAFETY: the mapping is ours and SPAN_BYTES long; whatever refers to it has a `SpanRef`, or is a slot, whose
        // arena has one.
        unsafe { libc::munmap(self.start.as_ptr().cast(), SPAN_BYTES) };
    }
}

/// The memory in which a buffer lies, as a provider registers it: [`SPAN_BYTES`] of address space, mapped once and
/// never moved. Cheap to clone; the memory stays mapped while a clone exists.
///
/// This is all that a registration depends on. Which buffers the span is cut into, and whose they are, may change
/// while it is registered.
#[derive(Clone)]
pub struct SpanRef(Arc<Mapping>);

impl SpanRef {
    /// Maps fresh, zero-filled memory, so aligned that huge pages fit. `None` when the machine refuses.
    pub(crate) fn map(huge: bool) -> Option<Self> {
        let len = 2 * SPAN_BYTES;
        // SAFETY: a fresh anonymous private mapping, checked for failure; what lies outside the aligned part is
        // unmapped again, and nothing else knows these addresses.
        let start = unsafe {
            let p = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if p == libc::MAP_FAILED {
                return None;
            }
            let before = p.addr().next_multiple_of(SPAN_BYTES) - p.addr();
            let aligned = p.byte_add(before);
            if before > 0 {
                libc::munmap(p, before);
            }
            libc::munmap(aligned.byte_add(SPAN_BYTES), len - SPAN_BYTES - before);
            if huge {
                libc::madvise(aligned, SPAN_BYTES, libc::MADV_HUGEPAGE);
            }
            NonNull::new(aligned.cast())?
        };
        #[cfg(test)]
        live::COUNT.with(|c| c.set(c.get() + 1));
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Some(Self(Arc::new(Mapping { start, id, pins: Mutex::new(0) })))
    }

    /// Names this memory among all that the process ever maps: another span at the same address has another id.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The address of the first byte.
    pub fn address(&self) -> usize {
        self.start() as usize
    }

    /// Its bytes: [`SPAN_BYTES`].
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        SPAN_BYTES
    }

    /// Keeps the pages of this span in place while the result lives, so that an adapter may be told their physical
    /// addresses. An arena gives the pages of idle memory back to the machine otherwise, and gets other pages for the
    /// same addresses later, while an adapter that registered them would go on using the old ones.
    pub fn pin(&self) -> PinnedSpan {
        *self.0.pins.lock() += 1;
        PinnedSpan(self.clone())
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// Gives the pages back to the machine, unless the span is pinned; says whether it has. They read as zero
    /// afterwards. No slot of it may be handed out.
    pub(crate) fn discard(&self) -> bool {
        let pins = self.0.pins.lock();
        if *pins > 0 {
            return false;
        }
        #[cfg(test)]
        live::DISCARDED.with(|c| c.set(c.get() + 1));
        // SAFETY: a whole private mapping of ours in which the caller says that no slot is live, and which, while the
        // lock is held, no adapter uses.
        unsafe { libc::madvise(self.start().cast(), SPAN_BYTES, libc::MADV_DONTNEED) };
        true
    }
}

impl fmt::Debug for SpanRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanRef({} at {:#x})", self.id(), self.address())
    }
}

/// A span whose pages stay in place. Whoever has registered the span holds this until it is deregistered.
#[derive(Debug)]
pub struct PinnedSpan(SpanRef);

impl PinnedSpan {
    /// The span.
    pub fn span(&self) -> &SpanRef {
        &self.0
    }

    /// Whether nothing but this keeps the memory: its arena is gone, and so are all buffers and views.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.0.0) == 1
    }
}

impl Drop for PinnedSpan {
    fn drop(&mut self) {
        *self.0.0.pins.lock() -= 1;
    }
}

/// Mappings that exist, as the thread of a test has made and dropped them.
#[cfg(test)]
pub(crate) mod live {
    thread_local! {
        pub(crate) static COUNT: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
        /// How often this thread has given the pages of one back.
        pub(crate) static DISCARDED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
}
