//! Encoding into arena memory.

use smallvec::SmallVec;

use crate::{Arena, Buffer, Message, OutOfMemory, Payload, Views, pad};

/// Bytes before the head of a short message, in which a transport can write its header
/// ([`millrace_buffer::Views::prepend`]). A header of RPC-over-RDMA with four segments has at most this size.
const HEADROOM: usize = 128;
/// Bytes of the smallest slot of an arena: up to this size, the headroom costs no memory.
const SMALLEST_SLOT: usize = 512;

/// Types that can be encoded as XDR.
pub trait Encode {
    /// Appends the encoding of the value.
    fn encode(&self, e: &mut Encoder);
}

/// Builds a [`Message`] in arena memory, from which a provider can send it without a copy.
///
/// Individual calls do not fail: if the arena is exhausted, [`Self::finish`] returns the error. The data
/// before that is still available to [`Self::truncate`], so that a shorter message can be built instead.
pub struct Encoder {
    arena: Arena,
    head: Option<Buffer>,
    len: usize,
    payloads: SmallVec<[Payload; 1]>,
    failed: Option<OutOfMemory>,
}

impl Encoder {
    /// Creates an encoder with an initial head capacity of `hint` bytes.
    pub fn new(arena: &Arena, hint: usize) -> Self {
        let mut e =
            Self { arena: arena.clone(), head: None, len: 0, payloads: SmallVec::new(), failed: None };
        let headroom = if hint + HEADROOM <= SMALLEST_SLOT { HEADROOM } else { 0 };
        match arena.alloc(hint.max(64) + headroom) {
            Ok(mut b) => {
                b.advance(headroom);
                b.set_len(b.capacity());
                e.head = Some(b);
            }
            Err(err) => e.failed = Some(err),
        }
        e
    }

    /// Like [`Self::new`], but fails at once.
    ///
    /// # Errors
    /// The arena cannot provide `hint` bytes.
    pub fn try_new(arena: &Arena, hint: usize) -> Result<Self, OutOfMemory> {
        let e = Self::new(arena, hint);
        e.failed.map_or(Ok(e), Err)
    }

    /// Whether the arena was exhausted.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Current length of the head in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the head is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The arena of this encoder.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Appends raw bytes. The caller must maintain 4-byte alignment.
    #[inline]
    pub fn put_raw(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if !self.reserve(end) {
            return;
        }
        if let Some(room) = self.head.as_mut().and_then(|b| b.get_mut(self.len..end)) {
            room.copy_from_slice(bytes);
            self.len = end;
        }
    }

    /// Like [`Self::put_raw`], optimized for words.
    #[inline]
    fn put_word<const N: usize>(&mut self, bytes: [u8; N]) {
        let end = self.len + N;
        if !self.reserve(end) {
            return;
        }
        let room = self.head.as_mut().and_then(|b| b.get_mut(self.len..end)?.first_chunk_mut());
        if let Some(word) = room {
            *word = bytes;
            self.len = end;
        }
    }

    #[inline]
    fn reserve(&mut self, end: usize) -> bool {
        self.failed.is_none() && (self.head.as_ref().is_some_and(|b| end <= b.len()) || self.grow(end))
    }

    #[cold]
    fn grow(&mut self, end: usize) -> bool {
        let Some(old) = self.head.as_ref() else { return false };
        match self.arena.alloc(end) {
            Ok(mut b) => {
                b.set_len(b.capacity());
                b[..self.len].copy_from_slice(&old[..self.len]);
                self.head = Some(b);
                true
            }
            Err(e) => {
                self.failed = Some(e);
                false
            }
        }
    }

    /// Appends an unsigned integer.
    #[inline]
    pub fn put_u32(&mut self, v: u32) {
        self.put_word(v.to_be_bytes());
    }

    /// Appends an unsigned hyper.
    #[inline]
    pub fn put_u64(&mut self, v: u64) {
        self.put_word(v.to_be_bytes());
    }

    /// Appends unsigned integers, faster than one by one.
    #[inline]
    pub fn put_words<const N: usize>(&mut self, words: [u32; N]) {
        let end = self.len + 4 * N;
        if !self.reserve(end) {
            return;
        }
        if let Some(room) = self.head.as_mut().and_then(|b| b.get_mut(self.len..end)) {
            for (bytes, word) in room.as_chunks_mut().0.iter_mut().zip(words) {
                *bytes = word.to_be_bytes();
            }
            self.len = end;
        }
    }

    /// Appends a boolean.
    #[inline]
    pub fn put_bool(&mut self, v: bool) {
        self.put_u32(u32::from(v));
    }

    /// Appends fixed-length opaque data with padding.
    pub fn put_fixed(&mut self, bytes: &[u8]) {
        self.put_raw(bytes);
        match pad(bytes.len()) {
            0 => {}
            padding => self.put_raw(&[0; 3][..padding]),
        }
    }

    /// Appends variable-length opaque data or a string: length, bytes and padding.
    pub fn put_opaque(&mut self, bytes: &[u8]) {
        self.put_u32(bytes.len() as u32);
        self.put_fixed(bytes);
    }

    /// Appends a value.
    pub fn put<T: Encode + ?Sized>(&mut self, v: &T) {
        v.encode(self);
    }

    /// Appends an optional value: a boolean, and the value if there is one.
    pub fn put_option<T: Encode>(&mut self, v: Option<&T>) {
        self.put_bool(v.is_some());
        if let Some(v) = v {
            v.encode(self);
        }
    }

    /// Appends variable-length opaque data that a transport may place directly: the length word goes into the
    /// head, the bytes become a payload, by reference. Empty data is a payload too, because RPC-over-RDMA assigns
    /// a reply's payloads to the Write chunks of its call in order (RFC 8166 section 3.4.6.2).
    pub fn put_payload(&mut self, data: Views) {
        self.put_u32(data.len() as u32);
        self.payloads.push(Payload { position: self.len, data });
    }

    /// Replaces four bytes appended earlier, for example a count.
    pub fn patch_u32(&mut self, at: usize, v: u32) {
        if at + 4 <= self.len
            && let Some(b) = self.head.as_mut()
        {
            b[at..at + 4].copy_from_slice(&v.to_be_bytes());
        }
    }

    /// Truncates the head to `len` bytes, drops later payloads, and clears an error.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.payloads.retain(|p| p.position <= len);
        if self.head.is_some() {
            self.failed = None;
        }
    }

    /// Returns the message.
    ///
    /// # Errors
    /// The arena was exhausted.
    pub fn finish(self) -> Result<Message, OutOfMemory> {
        match (self.failed, self.head) {
            (None, Some(mut b)) => {
                b.set_len(self.len);
                Ok(Message { head: b.freeze().into(), payloads: self.payloads })
            }
            (Some(e), _) => Err(e),
            (None, None) => Err(OutOfMemory::new(self.len.into(), self.arena.stats().limit)),
        }
    }
}

impl Encode for u32 {
    fn encode(&self, e: &mut Encoder) {
        e.put_u32(*self);
    }
}

impl Encode for u64 {
    fn encode(&self, e: &mut Encoder) {
        e.put_u64(*self);
    }
}

impl Encode for bool {
    fn encode(&self, e: &mut Encoder) {
        e.put_bool(*self);
    }
}

/// XDR void.
impl Encode for () {
    fn encode(&self, _: &mut Encoder) {}
}

/// XDR optional data: a boolean, and the value if there is one.
impl<T: Encode> Encode for Option<T> {
    fn encode(&self, e: &mut Encoder) {
        e.put_option(self.as_ref());
    }
}

/// Fixed-length opaque data.
impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, e: &mut Encoder) {
        match N % 4 {
            0 => e.put_word(*self),
            _ => e.put_fixed(self),
        }
    }
}
