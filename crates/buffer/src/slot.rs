//! Handles to slots: [`Buffer`], the one owner, and [`View`], shared and read only.

#![allow(unsafe_code)] // Slots are raw memory; what keeps access to them apart is said at each block.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use crate::{
    arena::Inner,
    block_spans::SlotAt,
    mapping::SpanRef,
    span::{Layout, Span, Taken},
    sync::{Arc, AtomicU32, Ordering, fence},
};

/// A counted reference to one slot. All references to a slot together hold one strong count of the arena, which keeps
/// the span.
pub(crate) struct Slot {
    span: NonNull<Span>,
    index: u16,
    order: u8,
}

// SAFETY: a `Slot` is a shared reference to a `Span`, which is `Sync`, kept alive by the count that the slot's
// references hold together.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    /// The first reference to a slot that was just taken for this.
    ///
    /// # Safety
    /// `arena` has the slot, and nothing else refers to it.
    pub(crate) unsafe fn first(arena: Arc<Inner>, taken: Taken) -> Self {
        let arena = Arc::into_raw(arena); // given back in `drop`
        let slot = Self { span: taken.span, index: taken.index, order: taken.order };
        debug_assert_eq!(slot.span().arena, arena);
        slot.refs().store(1, Ordering::Relaxed);
        slot
    }

    fn span(&self) -> &Span {
        // SAFETY: an arena keeps a span while one of its slots is handed out, and this is a reference to one; the count
        // that `first` has kept, and the last reference gives back, keeps the arena.
        unsafe { self.span.as_ref() }
    }

    /// Where it is, if that is in a span of blocks of `arena`.
    pub(crate) fn place_in(&self, arena: *const Inner) -> Option<SlotAt> {
        let span = self.span();
        let in_blocks = span.layout == Layout::Blocks && span.arena == arena;
        in_blocks.then_some(SlotAt { span: span.index, slot: self.index, order: self.order })
    }

    fn refs(&self) -> &AtomicU32 {
        &self.span().refs[usize::from(self.index)]
    }

    fn bytes(&self) -> usize {
        self.span().slot_bytes(self.order)
    }

    fn ptr(&self) -> *mut u8 {
        self.span().slot_ptr(self.index)
    }

    /// Tells loom that the bytes are read.
    #[cfg(loom)]
    fn note_read(&self) {
        self.span().bytes[usize::from(self.index)].with(|_| ());
    }

    /// Tells loom that the bytes are written.
    #[cfg(loom)]
    fn note_write(&self) {
        self.span().bytes[usize::from(self.index)].with_mut(|_| ());
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
        Self { ..*self }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Most slots have one reference: then there is nobody to count against.
        if !self.is_unique() {
            if self.refs().fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
        }
        let Span { arena, layout, index, .. } = *self.span();
        // SAFETY: `first` turned one strong count of the arena into this pointer, and of the slot's references only the
        // last comes here.
        let arena = unsafe { Arc::from_raw(arena) };
        // From here on the span may be divided anew: its fields were copied, and it is not used again.
        arena.release(layout, SlotAt { span: index, slot: self.index, order: self.order });
    }
}

/// Memory that its holder alone may read and write.
pub struct Buffer {
    slot: Slot,
    len: usize,
}

impl Buffer {
    /// A buffer in a slot to which `slot` is the only reference. `len` is at most its size.
    pub(crate) fn new(slot: Slot, len: usize) -> Self {
        debug_assert!(slot.is_unique() && len <= slot.bytes());
        Self { slot, len }
    }

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

    /// The mapped memory that it is a part of, for providers that register memory.
    pub fn span(&self) -> &SpanRef {
        &self.slot.span().mapping
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        #[cfg(loom)]
        self.slot.note_read();
        // SAFETY: the slot is valid, initialised memory (mapped zero-filled) of at least `len` bytes, and only this
        // buffer refers to it.
        unsafe { std::slice::from_raw_parts(self.slot.ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        #[cfg(loom)]
        self.slot.note_write();
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
        #[cfg(loom)]
        self.slot.note_write();
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

    /// Whether no other view of this memory exists.
    pub fn is_unique(&self) -> bool {
        self.slot.is_unique()
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Bytes of the memory that this view keeps from being reused (the size of its slot).
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

    /// The mapped memory that it is a part of, for providers that register memory.
    pub fn span(&self) -> &SpanRef {
        &self.slot.span().mapping
    }

    /// Grows this view by `next` if it continues it in the same slot; gives `next` back if not.
    pub(crate) fn try_extend(&mut self, next: Self) -> Result<(), Self> {
        let same = self.slot.span == next.slot.span && self.slot.index == next.slot.index;
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
        #[cfg(loom)]
        self.slot.note_read();
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
