//! Decoding with all lengths checked against the available bytes.

use crate::{Message, Payload, View, Views, pad};

/// Error of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    /// The stream ends within the item.
    #[error("XDR stream too short: {wanted} bytes required at offset {at}, {left} left")]
    Short {
        /// Offset in the head.
        at: usize,
        /// Bytes required.
        wanted: usize,
        /// Bytes left in the head.
        left: usize,
    },
    /// A variable-length item exceeds its limit.
    #[error("XDR item of length {len} at offset {at} exceeds the limit of {max}")]
    TooLong {
        /// Offset in the head.
        at: usize,
        /// The received length or count.
        len: usize,
        /// The limit of the type.
        max: usize,
    },
    /// Invalid value of a boolean, enum or discriminant.
    #[error("invalid XDR value {value} at offset {at}")]
    Invalid {
        /// Offset in the head.
        at: usize,
        /// The value.
        value: u32,
    },
    /// The position or length of a payload is not that of a bulk item.
    #[error("payload of {len} bytes does not match the item at offset {at}")]
    Payload {
        /// Offset in the head.
        at: usize,
        /// Length of the payload in bytes.
        len: usize,
    },
}

/// Types that can be decoded from XDR.
pub trait Decode<'a>: Sized {
    /// Decodes a value.
    ///
    /// # Errors
    /// The bytes are not a valid encoding.
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError>;
}

/// Decodes a [`Message`] whose head is one view.
#[derive(Clone)]
pub struct Decoder<'a> {
    /// The bytes that are not decoded yet, of the current view.
    bytes: &'a [u8],
    view: Option<&'a View>,
    /// Further views of the head, for a payload that did not fit into one buffer.
    rest: &'a [View],
    payloads: &'a [Payload],
    /// Offset in the head of the end of `bytes`.
    end: usize,
}

impl<'a> Decoder<'a> {
    /// Decodes plain bytes, without payloads.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Self { bytes, view: None, rest: &[], payloads: &[], end: bytes.len() }
    }

    /// Decodes a received message. Transports deliver the head as one view. If a head did not fit into one
    /// buffer, the first view is decoded, and only [`Self::payload`] may continue into the following ones. Items
    /// after such a payload are decoded if they are in the view in which it ends.
    pub fn new(message: &'a Message) -> Self {
        let views = message.head.iter().as_slice();
        let (view, rest) = views.split_first().map_or((None, views), |(first, rest)| (Some(first), rest));
        let bytes = view.map_or(&[][..], |v| &v[..]);
        Self { bytes, view, rest, payloads: &message.payloads, end: bytes.len() }
    }

    /// Offset in the head.
    #[inline]
    pub fn position(&self) -> usize {
        self.end - self.bytes.len()
    }

    /// Bytes left in the head, or, if the head has several views, in the current view.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of the head that are not decoded yet, of all views.
    pub fn rest(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        std::iter::once(self.bytes).chain(self.rest.iter().map(|view| &view[..]))
    }

    /// Reads `len` raw bytes, without padding.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    #[inline]
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], XdrError> {
        let Some((out, rest)) = self.bytes.split_at_checked(len) else { return Err(self.short(len)) };
        self.bytes = rest;
        Ok(out)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], XdrError> {
        let Some((out, rest)) = self.bytes.split_first_chunk() else { return Err(self.short(N)) };
        self.bytes = rest;
        Ok(out)
    }

    #[cold]
    fn short(&self, wanted: usize) -> XdrError {
        XdrError::Short { at: self.position(), wanted, left: self.remaining() }
    }

    /// Reads an unsigned integer.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    #[inline]
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        self.array().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Reads an unsigned hyper.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    #[inline]
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        self.array().map(|bytes| u64::from_be_bytes(*bytes))
    }

    /// Reads unsigned integers, faster than one by one.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    #[inline]
    pub fn words<const N: usize>(&mut self) -> Result<[u32; N], XdrError> {
        let bytes = self.raw(4 * N)?.as_chunks().0;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes) {
            *word = u32::from_be_bytes(*bytes);
        }
        Ok(words)
    }

    /// Reads a boolean, which must be 0 or 1.
    ///
    /// # Errors
    /// [`XdrError::Short`], [`XdrError::Invalid`].
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(XdrError::Invalid { at: self.position() - 4, value }),
        }
    }

    /// The error for an invalid enum value just read by [`Self::u32`].
    pub fn invalid(&self, value: u32) -> XdrError {
        XdrError::Invalid { at: self.position().saturating_sub(4), value }
    }

    /// Reads fixed-length opaque data and its padding.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        let out = *self.array()?;
        self.raw(pad(N))?;
        Ok(out)
    }

    /// Reads an element count of at most `max`, for elements of at least `min_bytes` bytes.
    ///
    /// # Errors
    /// [`XdrError::TooLong`], [`XdrError::Short`].
    pub fn count(&mut self, max: usize, min_bytes: usize) -> Result<usize, XdrError> {
        let at = self.position();
        let len = self.u32()? as usize;
        if len > max {
            return Err(XdrError::TooLong { at, len, max });
        }
        let wanted = len.saturating_mul(min_bytes);
        if wanted > self.remaining() {
            return Err(XdrError::Short { at: self.position(), wanted, left: self.remaining() });
        }
        Ok(len)
    }

    /// Reads variable-length opaque data or a string of at most `max` bytes, with its padding.
    ///
    /// # Errors
    /// [`XdrError::TooLong`], [`XdrError::Short`]; [`XdrError::Payload`] if there is a payload at this
    /// position.
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], XdrError> {
        let len = self.count(max, 1)?;
        if len == 0 && self.payloads.is_empty() {
            return Ok(&[]); // The tag of nearly all COMPOUNDs.
        }
        if let Some(p) = self.payload_here() {
            return Err(XdrError::Payload { at: self.position(), len: p.data.len() });
        }
        let padded = self.raw(len + pad(len))?;
        Ok(&padded[..len])
    }

    /// Reads a value.
    ///
    /// # Errors
    /// Those of the type.
    pub fn get<T: Decode<'a>>(&mut self) -> Result<T, XdrError> {
        T::decode(self)
    }

    /// Reads an optional value.
    ///
    /// # Errors
    /// Those of the type.
    pub fn option<T: Decode<'a>>(&mut self) -> Result<Option<T>, XdrError> {
        if self.bool()? { T::decode(self).map(Some) } else { Ok(None) }
    }

    fn payload_here(&self) -> Option<&'a Payload> {
        self.payloads.iter().find(|p| p.position == self.position())
    }

    /// Reads variable-length opaque data of at most `max` bytes by reference, from a payload or from the
    /// head. Fails for a decoder of plain bytes, which has no view to refer to.
    ///
    /// A payload may include the XDR padding (RFC 8166 section 3.4.5.2 permits it): its length is that of the
    /// item, or that rounded up to a multiple of 4; the padding is removed.
    ///
    /// # Errors
    /// [`XdrError::TooLong`], [`XdrError::Short`], [`XdrError::Payload`].
    pub fn payload(&mut self, max: usize) -> Result<Views, XdrError> {
        let at = self.position();
        let len = self.u32()? as usize;
        if len > max {
            return Err(XdrError::TooLong { at, len, max });
        }
        if let Some(p) = self.payload_here().filter(|_| len > 0) {
            let got = p.data.len();
            if got != len && got != len + pad(len) {
                return Err(XdrError::Payload { at: self.position(), len: got });
            }
            let mut data = p.data.clone();
            data.truncate(len);
            return Ok(data);
        }
        let at = self.position();
        let start = self.view.map_or(0, |view| view.len() - self.remaining());
        if let Some(view) = self.view.filter(|_| len > self.remaining() && !self.rest.is_empty()) {
            return self.payload_across_views(view.slice(start, self.remaining()), len);
        }
        self.raw(len + pad(len))?;
        match self.view {
            Some(v) => Ok(v.slice(start, len).into()),
            None => Err(XdrError::Payload { at, len }),
        }
    }

    /// Reads a payload that starts in the first view and continues in the following ones.
    fn payload_across_views(&mut self, first: View, len: usize) -> Result<Views, XdrError> {
        let mut data = if first.is_empty() { Views::new() } else { Views::from(first) };
        data.extend(self.rest.iter().cloned());
        if data.len() < len + pad(len) {
            return Err(XdrError::Short { at: self.position(), wanted: len + pad(len), left: data.len() });
        }
        data.truncate(len);
        self.skip_views(len + pad(len));
        Ok(data)
    }

    /// Skips `len` bytes, of which the following views have the part that exceeds the present one.
    fn skip_views(&mut self, mut len: usize) {
        while len >= self.remaining()
            && let Some((next, rest)) = self.rest.split_first()
        {
            len -= self.remaining();
            self.end += next.len();
            (self.bytes, self.view, self.rest) = (&next[..], Some(next), rest);
        }
        self.bytes = &self.bytes[len.min(self.remaining())..];
    }
}

impl<'a> Decode<'a> for u32 {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.u32()
    }
}

impl<'a> Decode<'a> for u64 {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.u64()
    }
}

impl<'a> Decode<'a> for bool {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.bool()
    }
}

/// XDR void.
impl<'a> Decode<'a> for () {
    fn decode(_: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(())
    }
}

/// XDR optional data: a boolean, and the value if it is true.
impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.option()
    }
}

/// Fixed-length opaque data.
impl<'a, const N: usize> Decode<'a> for [u8; N] {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.fixed()
    }
}
