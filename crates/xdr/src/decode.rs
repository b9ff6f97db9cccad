//! Decoding, with every length checked against the bytes that are there.

use crate::{ItemPadding, Message, Payload, View, Views, pad};

/// Why a stream is not the XDR that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    /// The stream ends before the item does.
    #[error("XDR stream too short: {wanted} bytes wanted at offset {at}, {left} left")]
    Short {
        /// Offset in the head.
        at: usize,
        /// Bytes wanted.
        wanted: usize,
        /// Bytes left in the head.
        left: usize,
    },
    /// A counted item is longer than its type allows.
    #[error("XDR item of {len} (limit {max}) at offset {at}")]
    TooLong {
        /// Offset in the head.
        at: usize,
        /// The length or count that the peer sent.
        len: usize,
        /// The limit of the type.
        max: usize,
    },
    /// A boolean, enum or discriminant has no such value.
    #[error("XDR value {value} is not valid at offset {at}")]
    Invalid {
        /// Offset in the head.
        at: usize,
        /// The value.
        value: u32,
    },
    /// A chunk lies where the stream has no item for it, or its length differs from the item's.
    #[error("a payload of {len} bytes does not fit the item at offset {at}")]
    Payload {
        /// Offset in the head.
        at: usize,
        /// Bytes of the payload.
        len: usize,
    },
}

/// Things that can be read from XDR.
pub trait Decode<'a>: Sized {
    /// Reads one.
    ///
    /// # Errors
    /// When the bytes are not its XDR form.
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError>;
}

/// Reads a [`Message`] whose head is one view.
#[derive(Clone)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    view: Option<&'a View>,
    /// What follows the first view: the rest of a payload that no single buffer could hold.
    rest: &'a [View],
    payloads: &'a [Payload],
    padding: Option<ItemPadding>,
    at: usize,
}

impl<'a> Decoder<'a> {
    /// Reads plain bytes, without payloads. [`Self::payload`] then copies.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Self { bytes, view: None, rest: &[], payloads: &[], padding: None, at: 0 }
    }

    /// Reads a received message. Transports deliver heads as one view; of a head that was too long for one buffer
    /// the first view is read, and [`Self::payload`] alone may reach into the following ones.
    pub fn new(message: &'a Message) -> Self {
        let views = message.head.iter().as_slice();
        let (view, rest) = views.split_first().map_or((None, views), |(first, rest)| (Some(first), rest));
        let bytes = view.map_or(&[][..], |v| &v[..]);
        Self { bytes, view, rest, payloads: &message.payloads, padding: message.padding, at: 0 }
    }

    /// Offset in the head.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes left in the head.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// `len` raw bytes, without padding.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], XdrError> {
        let left = self.remaining();
        if len > left {
            return Err(XdrError::Short { at: self.at, wanted: len, left });
        }
        let out = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(out)
    }

    /// An unsigned integer.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        let b = self.raw(4)?;
        Ok(u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// An unsigned hyper.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// A boolean: 0 or 1, nothing else.
    ///
    /// # Errors
    /// [`XdrError::Short`], [`XdrError::Invalid`].
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(XdrError::Invalid { at: self.at - 4, value }),
        }
    }

    /// The error for a value just read by [`Self::u32`] that its enum does not have.
    pub fn invalid(&self, value: u32) -> XdrError {
        XdrError::Invalid { at: self.at.saturating_sub(4), value }
    }

    /// Fixed-length opaque data, with its padding.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        let mut out = [0; N];
        out.copy_from_slice(self.raw(N)?);
        self.raw(pad(N))?;
        Ok(out)
    }

    /// A count of elements, at most `max`, each of at least `min_bytes` on the wire.
    ///
    /// # Errors
    /// [`XdrError::TooLong`], [`XdrError::Short`].
    pub fn count(&mut self, max: usize, min_bytes: usize) -> Result<usize, XdrError> {
        let at = self.at;
        let len = self.u32()? as usize;
        if len > max {
            return Err(XdrError::TooLong { at, len, max });
        }
        let wanted = len.saturating_mul(min_bytes);
        if wanted > self.remaining() {
            return Err(XdrError::Short { at: self.at, wanted, left: self.remaining() });
        }
        Ok(len)
    }

    /// Variable-length opaque data or a string of at most `max` bytes, with its padding.
    ///
    /// # Errors
    /// [`XdrError::TooLong`], [`XdrError::Short`]; [`XdrError::Payload`] when a chunk lies here and `max` refuses it.
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], XdrError> {
        let len = self.count(max, 1)?;
        if let Some(p) = self.payload_here() {
            return Err(XdrError::Payload { at: self.at, len: p.data.len() });
        }
        self.skip_padding(len)?;
        let out = self.raw(len)?;
        self.raw(pad(len))?;
        Ok(out)
    }

    /// A value.
    ///
    /// # Errors
    /// Those of the value.
    pub fn get<T: Decode<'a>>(&mut self) -> Result<T, XdrError> {
        T::decode(self)
    }

    /// An optional value.
    ///
    /// # Errors
    /// Those of the value.
    pub fn option<T: Decode<'a>>(&mut self) -> Result<Option<T>, XdrError> {
        if self.bool()? { T::decode(self).map(Some) } else { Ok(None) }
    }

    /// Leaves out what the transport has put before an item of `len` bytes that begins here.
    fn skip_padding(&mut self, len: usize) -> Result<(), XdrError> {
        match self.padding {
            None => Ok(()),
            Some(p) => self.raw(p.before(self.at, len)).map(drop),
        }
    }

    fn payload_here(&self) -> Option<&'a Payload> {
        self.payloads.iter().find(|p| p.position == self.at)
    }

    /// Variable-length opaque data of at most `max` bytes that may have travelled as a payload: by reference in
    /// either case (plain bytes without a view are copied into `arena`-less memory by [`Self::opaque`] instead).
    ///
    /// A payload may carry the XDR padding (RFC 8166 section 3.4.5.2 lets a requester do so): its length is the
    /// item's, or that rounded up to 4; the padding is cut off here.
    ///
    /// # Errors
    /// [`XdrError::TooLong`], [`XdrError::Short`], [`XdrError::Payload`].
    pub fn payload(&mut self, max: usize) -> Result<Views, XdrError> {
        let at = self.at;
        let len = self.u32()? as usize;
        if len > max {
            return Err(XdrError::TooLong { at, len, max });
        }
        if let Some(p) = self.payload_here().filter(|_| len > 0) {
            let got = p.data.len();
            if got != len && got != len + pad(len) {
                return Err(XdrError::Payload { at: self.at, len: got });
            }
            let mut data = p.data.clone();
            data.truncate(len);
            return Ok(data);
        }
        self.skip_padding(len)?;
        let start = self.at;
        if let Some(view) = self.view.filter(|_| len > self.remaining() && !self.rest.is_empty()) {
            return self.payload_to_the_end(view, len);
        }
        self.raw(len)?;
        self.raw(pad(len))?;
        match self.view {
            Some(v) => Ok(v.slice(start, len).into()),
            None => Err(XdrError::Payload { at: start, len }),
        }
    }

    /// A payload that begins in the first view and goes on in the next ones. It is the last item: what may follow
    /// it is not read.
    fn payload_to_the_end(&mut self, first: &View, len: usize) -> Result<Views, XdrError> {
        let mut data = Views::from(first.slice(self.at, self.remaining()));
        data.extend(self.rest.iter().cloned());
        if data.len() < len + pad(len) {
            return Err(XdrError::Short { at: self.at, wanted: len + pad(len), left: data.len() });
        }
        data.truncate(len);
        self.at = self.bytes.len();
        Ok(data)
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

/// XDR void: nothing.
impl<'a> Decode<'a> for () {
    fn decode(_: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(())
    }
}

/// XDR optional data: a boolean, then the value if it is true.
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
