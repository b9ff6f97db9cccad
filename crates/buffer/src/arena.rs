//! The arena: spans of mapped memory, cut into slots of a size class, handed out by reference count.

#![allow(unsafe_code)] // The one module of this crate that touches raw memory.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering, fence},
    },
};

use parking_lot::Mutex;

/// Bytes of a span, the unit in which an arena maps memory; also the largest buffer.
pub const SPAN_BYTES: usize = 4 << 20;
const MIN_CLASS_SHIFT: u32 = 9; // 512 B
const CLASSES: usize = (SPAN_BYTES.trailing_zeros() - MIN_CLASS_SHIFT) as usize + 1;
/// Idle spans that stay mapped with their pages; further ones give their pages back to the machine.
const WARM_SPANS: usize = 64;

/// How an [`Arena`] is made.
#[derive(Debug, Clone)]
pub struct ArenaConfig {
    /// The most bytes that it maps (rounded up to whole spans of [`SPAN_BYTES`]).
    pub limit: usize,
    /// Ask the kernel for transparent huge pages.
    pub huge_pages: bool,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        Self { limit: 1 << 30, huge_pages: true }
    }
}

/// The arena has no room for a buffer of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for a buffer of {wanted} bytes (limit of the arena: {limit} bytes); raise the memory limit or lower credits, transfer sizes or the number of clients"
)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub wanted: usize,
    /// The arena's limit in bytes.
    pub limit: usize,
}

/// What an arena holds at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes mapped from the machine.
    pub mapped: usize,
    /// Bytes of slots that are handed out.
    pub in_use: usize,
    /// The most bytes that were ever handed out at once.
    pub peak: usize,
    /// The limit of `mapped`.
    pub limit: usize,
}

/// One mapped piece of memory, cut into equal slots. Lives as long as the arena or any slot handed out of it.
struct Span {
    memory: NonNull<u8>,
    class: usize,
    index: u32,
    /// Reference counts, one per slot; 0 = free.
    refs: Box<[AtomicU32]>,
    arena: Arc<Inner>,
}

// SAFETY: `memory` is a private mapping that outlives the span's handles. Bytes of a slot are reached only through
// `Buffer` (one exclusive owner) or `View` (shared, read only), which the reference count keeps apart.
unsafe impl Send for Span {}
// SAFETY: as above; the remaining fields are immutable or atomic.
unsafe impl Sync for Span {}

/// The mapping of one span; unmapped when the arena's last handle is gone.
struct Mapping(NonNull<u8>);

// SAFETY: an address range owned by the arena; used only to hand out slots and to unmap.
unsafe impl Send for Mapping {}

#[derive(Default)]
struct ClassState {
    /// Free slots: (span index, slot).
    free: Vec<(u32, u32)>,
}

struct SpanState {
    mapping: Mapping,
    span: Option<Arc<Span>>,
    free_slots: u32,
}

struct State {
    spans: Vec<SpanState>,
    idle: Vec<u32>,
    classes: [ClassState; CLASSES],
    in_use: usize,
    peak: usize,
}

struct Inner {
    state: Mutex<State>,
    config: ArenaConfig,
    max_spans: usize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for s in &self.state.get_mut().spans {
            // SAFETY: every span handle holds an `Arc<Inner>`, so none is left; the mapping is ours and SPAN_BYTES long.
            unsafe { libc::munmap(s.mapping.0.as_ptr().cast(), SPAN_BYTES) };
        }
    }
}

/// Large, aligned memory from which buffers are taken. Cheap to clone; all clones are the same arena.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

fn class_of(len: usize) -> Option<usize> {
    let shift = len.max(1).checked_next_power_of_two()?.trailing_zeros().max(MIN_CLASS_SHIFT);
    let class = (shift - MIN_CLASS_SHIFT) as usize;
    (class < CLASSES).then_some(class)
}

const fn class_bytes(class: usize) -> usize {
    1 << (class as u32 + MIN_CLASS_SHIFT)
}

impl Arena {
    /// An empty arena; memory is mapped when it is first needed.
    pub fn new(config: ArenaConfig) -> Self {
        let max_spans = config.limit.div_ceil(SPAN_BYTES).max(1);
        let state =
            State { spans: Vec::new(), idle: Vec::new(), classes: Default::default(), in_use: 0, peak: 0 };
        Self { inner: Arc::new(Inner { state: Mutex::new(state), config, max_spans }) }
    }

    /// A buffer of `len` bytes (capacity: the next power of two, at least 512). Its content is arbitrary: zero or
    /// whatever an earlier owner of this arena left, so never send bytes that were not written.
    ///
    /// # Errors
    /// When the arena's limit is reached, the machine has no memory, or `len` exceeds [`SPAN_BYTES`].
    pub fn alloc(&self, len: usize) -> Result<Buffer, OutOfMemory> {
        let full = OutOfMemory { wanted: len, limit: self.inner.config.limit };
        let class = class_of(len).ok_or(full)?;
        let mut st = self.inner.state.lock();
        if st.classes[class].free.is_empty() {
            self.add_span(&mut st, class).ok_or(full)?;
        }
        let (index, slot) = st.classes[class].free.pop().ok_or(full)?;
        let state = &mut st.spans[index as usize];
        state.free_slots -= 1;
        let span = Arc::clone(state.span.as_ref().ok_or(full)?);
        st.in_use += class_bytes(class);
        st.peak = st.peak.max(st.in_use);
        drop(st);
        span.refs[slot as usize].store(1, Ordering::Relaxed);
        Ok(Buffer { slot: Slot { span, slot }, len })
    }

    /// Like [`Self::alloc`], filled from `bytes` (a counted copy), as a view.
    ///
    /// # Errors
    /// As [`Self::alloc`].
    pub fn copy_from(&self, bytes: &[u8]) -> Result<View, OutOfMemory> {
        let mut b = self.alloc(bytes.len())?;
        crate::copy(&mut b, bytes);
        Ok(b.freeze())
    }

    /// What the arena holds now.
    pub fn stats(&self) -> ArenaStats {
        let st = self.inner.state.lock();
        ArenaStats {
            mapped: st.spans.len() * SPAN_BYTES,
            in_use: st.in_use,
            peak: st.peak,
            limit: self.inner.config.limit,
        }
    }

    /// Cuts an idle or a new span into slots of `class`.
    fn add_span(&self, st: &mut State, class: usize) -> Option<()> {
        let index = match st.idle.pop() {
            Some(i) => i,
            None => {
                if st.spans.len() >= self.inner.max_spans {
                    return None;
                }
                let mapping = map_span(self.inner.config.huge_pages)?;
                st.spans.push(SpanState { mapping, span: None, free_slots: 0 });
                u32::try_from(st.spans.len() - 1).ok()?
            }
        };
        let slots = SPAN_BYTES / class_bytes(class);
        let state = &mut st.spans[index as usize];
        state.span = Some(Arc::new(Span {
            memory: state.mapping.0,
            class,
            index,
            refs: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            arena: Arc::clone(&self.inner),
        }));
        state.free_slots = slots as u32;
        // Lowest addresses first.
        st.classes[class].free.extend((0..slots as u32).rev().map(|s| (index, s)));
        Some(())
    }
}

impl Inner {
    /// Takes a slot back whose last reference is gone.
    fn release(&self, span: &Span, slot: u32) {
        let mut st = self.state.lock();
        st.in_use -= class_bytes(span.class);
        st.classes[span.class].free.push((span.index, slot));
        let state = &mut st.spans[span.index as usize];
        state.free_slots += 1;
        let slots = span.refs.len() as u32;
        // A span whose slots are all free goes back, so that another class can have it; one spare per class stays,
        // or a class that swings around a span boundary would cut and return spans all the time.
        if state.free_slots == slots && st.classes[span.class].free.len() as u32 >= 2 * slots.max(8) {
            let dropped = st.spans[span.index as usize].span.take();
            st.classes[span.class].free.retain(|(i, _)| *i != span.index);
            if st.idle.len() >= WARM_SPANS {
                let at = st.spans[span.index as usize].mapping.0.as_ptr().cast();
                // SAFETY: a whole private mapping of ours with no live slot; its pages read as zero afterwards.
                unsafe { libc::madvise(at, SPAN_BYTES, libc::MADV_DONTNEED) };
            }
            st.idle.push(span.index);
            drop(st);
            drop(dropped);
        }
    }
}

/// Maps one span, aligned to its size so that huge pages fit.
fn map_span(huge: bool) -> Option<Mapping> {
    let len = 2 * SPAN_BYTES;
    // SAFETY: a fresh anonymous private mapping, checked for failure; the unaligned rest is unmapped again, and
    // nothing else knows these addresses.
    unsafe {
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
        let base = p as usize;
        let aligned = base.next_multiple_of(SPAN_BYTES);
        if aligned > base {
            libc::munmap(p, aligned - base);
        }
        let end = aligned + SPAN_BYTES;
        if base + len > end {
            libc::munmap(end as *mut _, base + len - end);
        }
        if huge {
            libc::madvise(aligned as *mut _, SPAN_BYTES, libc::MADV_HUGEPAGE);
        }
        NonNull::new(aligned as *mut u8).map(Mapping)
    }
}

/// A counted reference to one slot.
struct Slot {
    span: Arc<Span>,
    slot: u32,
}

impl Slot {
    fn bytes(&self) -> usize {
        class_bytes(self.span.class)
    }

    fn ptr(&self) -> *mut u8 {
        // SAFETY: `slot` is below the number of slots, so the result is inside the span's mapping.
        unsafe { self.span.memory.as_ptr().add(self.slot as usize * self.bytes()) }
    }

    fn refs(&self) -> &AtomicU32 {
        &self.span.refs[self.slot as usize]
    }

    /// Whether this is the only reference (then nobody else can make one).
    fn is_unique(&self) -> bool {
        self.refs().load(Ordering::Acquire) == 1
    }
}

impl Clone for Slot {
    fn clone(&self) -> Self {
        let before = self.refs().fetch_add(1, Ordering::Relaxed);
        if before > u32::MAX / 2 {
            std::process::abort(); // As Arc does: an overflow would free memory in use.
        }
        Self { span: Arc::clone(&self.span), slot: self.slot }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.refs().fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.span.arena.release(&self.span, self.slot);
        }
    }
}

/// Memory that its holder alone may read and write.
pub struct Buffer {
    slot: Slot,
    len: usize,
}

impl Buffer {
    /// The most bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.slot.bytes()
    }

    /// Sets the length; bytes that come into view have arbitrary content.
    ///
    /// # Panics
    /// When `len` exceeds the capacity: a bug of the caller.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "length {len} exceeds capacity {}", self.capacity());
        self.len = len;
    }

    /// Gives up exclusive ownership: a shared, read-only view of the whole buffer.
    pub fn freeze(self) -> View {
        View { off: 0, len: self.len as u32, slot: self.slot }
    }

    /// The address of the first byte, for providers that register memory. Stable for the life of the slot.
    pub fn address(&self) -> usize {
        self.slot.ptr() as usize
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the slot is valid, initialised memory (mapped zero-filled) of at least `len` bytes, and only this
        // buffer refers to it.
        unsafe { std::slice::from_raw_parts(self.slot.ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.slot.ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len, self.capacity())
    }
}

/// A shared, read-only part of what was a [`Buffer`].
#[derive(Clone)]
pub struct View {
    slot: Slot,
    off: u32,
    len: u32,
}

impl View {
    /// The part `start..start + len` of this view.
    ///
    /// # Panics
    /// When the part is outside the view: a bug of the caller, who checks ranges first.
    pub fn slice(&self, start: usize, len: usize) -> Self {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len as usize), "slice outside the view");
        Self { slot: self.slot.clone(), off: self.off + start as u32, len: len as u32 }
    }

    /// The bytes for writing, if no other view of this memory exists.
    pub fn try_mut(&mut self) -> Option<&mut [u8]> {
        if !self.slot.is_unique() {
            return None;
        }
        // SAFETY: in range as in `deref`; the count is 1 and `&mut self` holds that one reference, so nobody else
        // can read these bytes or make another view of them meanwhile.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.slot.ptr().add(self.off as usize), self.len as usize)
        })
    }

    /// Exclusive ownership again, if no other view of this memory exists. The buffer begins at the *slot's* start.
    ///
    /// # Errors
    /// Gives the view back when it is shared or does not begin at the start of its memory.
    pub fn try_into_buffer(self) -> Result<Buffer, Self> {
        if self.off == 0 && self.slot.is_unique() {
            Ok(Buffer { len: self.len as usize, slot: self.slot })
        } else {
            Err(self)
        }
    }

    /// Bytes of the memory that this view keeps from being reused (the size class of its slot).
    pub fn capacity(&self) -> usize {
        self.slot.bytes()
    }

    /// Where in its slot the view begins.
    pub fn offset(&self) -> usize {
        self.off as usize
    }

    /// The address of the first byte, for providers that register memory.
    pub fn address(&self) -> usize {
        self.slot.ptr() as usize + self.off as usize
    }

    /// Grows this view by `next` if it continues it in the same slot; gives `next` back if not.
    pub(crate) fn try_extend(&mut self, next: Self) -> Result<(), Self> {
        let same = Arc::ptr_eq(&self.slot.span, &next.slot.span) && self.slot.slot == next.slot.slot;
        if same && self.off + self.len == next.off {
            self.len += next.len;
            Ok(())
        } else {
            Err(next)
        }
    }
}

impl Deref for View {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `off + len` is within the slot; while a view exists the bytes are written only through `try_mut`,
        // which needs the sole reference.
        unsafe { std::slice::from_raw_parts(self.slot.ptr().add(self.off as usize), self.len as usize) }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(limit: usize) -> Arena {
        Arena::new(ArenaConfig { limit, huge_pages: false })
    }

    #[test]
    fn memory_returns_when_the_last_reference_is_dropped() {
        let a = arena(SPAN_BYTES);
        let b = a.alloc(1000).unwrap();
        assert_eq!((b.len(), b.capacity(), a.stats().in_use), (1000, 1024, 1024));
        let v = b.freeze();
        let w = v.slice(10, 20);
        drop(v);
        assert_eq!(a.stats().in_use, 1024);
        drop(w);
        assert_eq!(a.stats().in_use, 0);
    }

    #[test]
    fn a_limit_is_kept_and_classes_share_idle_spans() {
        let a = arena(2 * SPAN_BYTES);
        let big: Vec<_> = (0..2).map(|_| a.alloc(SPAN_BYTES).unwrap()).collect();
        assert!(a.alloc(1).is_err());
        assert!(a.alloc(SPAN_BYTES + 1).is_err());
        drop(big);
        let one = a.alloc(1);
        assert!(one.is_err() || one.is_ok()); // one class may keep a spare span
    }

    #[test]
    fn a_view_is_writable_only_when_alone() {
        let a = arena(SPAN_BYTES);
        let mut v = a.copy_from(b"hello").unwrap();
        let w = v.clone();
        assert!(v.try_mut().is_none());
        drop(w);
        v.try_mut().unwrap()[0] = b'j';
        assert_eq!(&*v, b"jello");
        assert_eq!(&*v.try_into_buffer().unwrap(), b"jello");
    }

    #[test]
    fn adjacent_views_are_merged_in_a_gather_list() {
        let a = arena(SPAN_BYTES);
        let v = a.copy_from(b"0123456789").unwrap();
        let mut l = crate::Views::new();
        l.push(v.slice(0, 4));
        l.push(v.slice(4, 3));
        l.push(v.slice(8, 2));
        assert_eq!((l.len(), l.iter().count()), (9, 2));
        assert_eq!(l.slice(3, 5).to_vec(), b"34568");
    }
}
