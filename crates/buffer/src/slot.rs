//! References to slots: [`Buffer`], exclusive, and [`View`], shared and read-only.

#![allow(unsafe_code)] // Slots are raw memory; each block explains why accesses do not conflict.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use crate::{
    arena::Inner,
    block_spans::SlotId,
    mapping::SpanRef,
    span::{AllocatedSlot, Layout, Span},
    sync::{AtomicU32, Ordering, fence},
};

/// A counted reference to a slot, and a range of its bytes. A slot in use holds one strong reference to the arena, which
/// keeps the span alive.
///
/// It has the address of the range, because computing that from the span takes three dependent loads.
pub(crate) struct Slot {
    span: NonNull<Span>,
    /// First byte of the range.
    start: NonNull<u8>,
    /// Length of the range in bytes.
    len: u32,
    index: u16,
    order: u8,
}

// SAFETY: a `Slot` is a shared reference to a `Span`, which is `Sync`, kept alive by the count that the slot's
// references hold together, and an address in its memory, which `Buffer` and `View` access by their own rules.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    /// Creates the first reference to a slot that was just allocated, with its first `len` bytes.
    ///
    /// # Safety
    /// The slot holds a strong reference to its arena, has at least `len` bytes, and there is no other reference to it.
    pub(crate) unsafe fn first(allocated: AllocatedSlot, len: usize) -> Self {
        let AllocatedSlot { span, index, order, .. } = allocated;
        // SAFETY: the arena keeps the span while the slot is in use.
        let start = unsafe { span.as_ref() }.slot_start(index);
        let slot = Self { span, start, len: len as u32, index, order };
        debug_assert!(len <= slot.bytes());
        slot.refs().store(1, Ordering::Relaxed);
        slot
    }

    fn span(&self) -> &Span {
        // SAFETY: an arena keeps a span while one of its slots is in use, and this is a reference to such a slot, which
        // keeps the arena alive.
        unsafe { self.span.as_ref() }
    }

    /// Identifies the slot if it is in a block span of `arena`.
    pub(crate) fn id_in(&self, arena: *const Inner) -> Option<SlotId> {
        let span = self.span();
        let in_blocks = span.layout == Layout::Blocks && span.arena == arena;
        in_blocks.then_some(SlotId { span: span.index, slot: self.index, order: self.order })
    }

    /// Whether both are references to the same slot.
    fn is(&self, other: &Self) -> bool {
        self.span == other.span && self.index == other.index
    }

    fn refs(&self) -> &AtomicU32 {
        &self.span().refs[usize::from(self.index)]
    }

    fn bytes(&self) -> usize {
        self.span().slot_bytes(self.order)
    }

    /// Offset of the range in the slot.
    fn offset(&self) -> usize {
        self.start.as_ptr() as usize - self.span().slot_start(self.index).as_ptr() as usize
    }

    /// Another reference to the slot, with the range from `at` to `at + len` of this one. The caller has checked that.
    fn part(&self, at: usize, len: usize) -> Self {
        debug_assert!(at + len <= self.len as usize);
        let mut part = self.clone();
        // SAFETY: `at` is at most the length of the range, which is inside the slot.
        part.start = unsafe { part.start.add(at) };
        part.len = len as u32;
        part
    }

    /// Removes the first `n` bytes of the range, which has at least as many.
    fn advance(&mut self, n: usize) {
        debug_assert!(n <= self.len as usize);
        // SAFETY: `n` is at most the length of the range, which is inside the slot.
        self.start = unsafe { self.start.add(n) };
        self.len -= n as u32;
    }

    /// Extends the range by that of `next` if it follows in the same slot; otherwise returns `next`.
    fn extend(&mut self, next: Self) -> Result<(), Self> {
        // SAFETY: the range ends inside the slot, or where the slot ends.
        let end = unsafe { self.start.add(self.len as usize) };
        if self.is(&next) && end == next.start {
            self.len += next.len;
            Ok(())
        } else {
            Err(next)
        }
    }

    /// Reports a read of the slot to loom.
    #[cfg(loom)]
    fn note_read(&self) {
        self.span().bytes[usize::from(self.index)].with(|_| ());
    }

    /// Reports a write of the slot to loom.
    #[cfg(loom)]
    fn note_write(&self) {
        self.span().bytes[usize::from(self.index)].with_mut(|_| ());
    }

    /// Whether this is the only reference (then no other can be created).
    fn is_unique(&self) -> bool {
        self.refs().load(Ordering::Acquire) == 1
    }
}

impl Clone for Slot {
    fn clone(&self) -> Self {
        let before = self.refs().fetch_add(1, Ordering::Relaxed);
        if before > u32::MAX / 2 {
            std::process::abort(); // As in `Arc`: an overflow would free memory in use.
        }
        Self { ..*self }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Common case: with a single reference no atomic decrement is needed.
        if !self.is_unique() {
            if self.refs().fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
        }
        let Span { arena, layout, index, .. } = *self.span();
        let (span, slot, order) = (self.span, self.index, self.order);
        let slot = AllocatedSlot { span, span_index: index, index: slot, order };
        // SAFETY: the slot holds a strong reference to the arena, and this is the last reference to the slot.
        unsafe { Inner::release(arena, layout, slot) };
    }
}

/// Memory with exclusive access by its owner: a slot, or a part of one ([`Self::split_off`]).
pub struct Buffer(Slot);

impl Buffer {
    /// Creates a buffer from the only reference to a slot.
    pub(crate) fn new(slot: Slot) -> Self {
        debug_assert!(slot.is_unique());
        Self(slot)
    }

    /// Maximum length in bytes; for a part of a slot its length, as long as there are other parts.
    pub fn capacity(&self) -> usize {
        match self.0.is_unique() {
            true => self.0.bytes() - self.0.offset(),
            false => self.len(),
        }
    }

    /// Sets the length; added bytes have arbitrary content.
    ///
    /// # Panics
    /// If `len` exceeds the capacity: a bug of the caller.
    pub fn set_len(&mut self, len: usize) {
        // Only more bytes may belong to another part of the slot; counting references costs an atomic read.
        if len > self.len() {
            assert!(len <= self.capacity(), "length {len} exceeds capacity {}", self.capacity());
        }
        self.0.len = len as u32;
    }

    /// Removes the first `n` bytes. [`View::prepend`] can make them available again.
    ///
    /// # Panics
    /// If `n` exceeds the length: a bug of the caller.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len(), "advance by {n} of {} bytes", self.len());
        self.0.advance(n);
    }

    /// Divides the buffer: it keeps its first `at` bytes, and the buffer that is returned has the others. The memory is
    /// free when both are dropped.
    ///
    /// # Panics
    /// If `at` exceeds the length: a bug of the caller.
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len(), "split at {at} of {} bytes", self.len());
        let rest = self.0.part(at, self.len() - at);
        self.0.len = at as u32;
        Self(rest)
    }

    /// Appends `next` if its bytes follow in the same slot, as after [`Self::split_off`].
    ///
    /// # Errors
    /// Returns `next` if its bytes are elsewhere.
    pub fn unsplit(&mut self, next: Self) -> Result<(), Self> {
        self.0.extend(next.0).map_err(Self)
    }

    /// Turns the buffer into a shared, read-only view of it.
    pub fn freeze(self) -> View {
        View(self.0)
    }

    /// Address of the first byte, for providers that register memory. Constant for the life of the slot.
    pub fn address(&self) -> usize {
        self.0.start.as_ptr() as usize
    }

    /// The mapping that contains the buffer, for providers that register memory.
    pub fn span(&self) -> &SpanRef {
        &self.0.span().mapping
    }
}

impl Deref for Buffer {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        #[cfg(loom)]
        self.0.note_read();
        // SAFETY: the range is valid, initialized memory (mapped zero-filled), and this buffer holds the only reference
        // to it: `split_off` divides the bytes, and `set_len` adds bytes only if there is no other reference to the slot.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len as usize) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        #[cfg(loom)]
        self.0.note_write();
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len as usize) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len(), self.capacity())
    }
}

/// A shared, read-only range of a former [`Buffer`].
#[derive(Clone)]
pub struct View(Slot);

impl View {
    /// Returns the range `start..start + len` of this view.
    ///
    /// # Panics
    /// If the range is outside the view: a bug of the caller, who must check ranges.
    pub fn slice(&self, start: usize, len: usize) -> Self {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()), "slice outside the view");
        Self(self.0.part(start, len))
    }

    /// The view without its first `n` bytes, or an empty one if it is shorter.
    #[must_use]
    pub fn skip(mut self, n: usize) -> Self {
        self.0.advance(n.min(self.len()));
        self
    }

    /// Extends the view by the `n` bytes before it, and returns all its bytes for writing. `None`, without a change, if
    /// the slot has fewer bytes before it, or there is another view of its memory. The added bytes have arbitrary
    /// content.
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        if self.offset() < n || !self.is_unique() {
            return None;
        }
        // SAFETY: the slot has at least `n` bytes before the range.
        self.0.start = unsafe { self.0.start.sub(n) };
        self.0.len += n as u32;
        self.try_mut()
    }

    /// Shortens the view to its first `len` bytes, if it is longer.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.0.len = self.len().min(len) as u32;
    }

    /// Returns the bytes for writing if there is no other view of this memory.
    pub fn try_mut(&mut self) -> Option<&mut [u8]> {
        if !self.0.is_unique() {
            return None;
        }
        #[cfg(loom)]
        self.0.note_write();
        // SAFETY: valid as in `deref`; the count is 1 and `&mut self` borrows that reference, so no other
        // reference can read these bytes or be created meanwhile.
        Some(unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.len()) })
    }

    /// Turns the view into a buffer if there is no other view of this memory. The buffer starts at the start
    /// of the *slot*.
    ///
    /// # Errors
    /// Returns the view if it is shared, or does not start at the start of its slot.
    pub fn try_into_buffer(self) -> Result<Buffer, Self> {
        if self.offset() == 0 && self.is_unique() { Ok(Buffer::new(self.0)) } else { Err(self) }
    }

    /// Whether there is no other view of this memory.
    pub fn is_unique(&self) -> bool {
        self.0.is_unique()
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.0
    }

    /// Size of the slot in bytes: the memory that this view keeps from being reused.
    pub fn capacity(&self) -> usize {
        self.0.bytes()
    }

    /// Offset of the view in its slot.
    pub fn offset(&self) -> usize {
        self.0.offset()
    }

    /// Address of the first byte, for providers that register memory.
    pub fn address(&self) -> usize {
        self.0.start.as_ptr() as usize
    }

    /// The mapping that contains the view, for providers that register memory.
    pub fn span(&self) -> &SpanRef {
        &self.0.span().mapping
    }

    /// Extends this view by `next` if they are contiguous in the same slot; otherwise returns `next`.
    pub(crate) fn try_extend(&mut self, next: Self) -> Result<(), Self> {
        self.0.extend(next.0).map_err(Self)
    }
}

impl Deref for View {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        #[cfg(loom)]
        self.0.note_read();
        // SAFETY: the range is inside the slot; while a view exists, the bytes are written only through
        // `try_mut`, which requires the only reference.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len as usize) }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} bytes)", self.len())
    }
}
