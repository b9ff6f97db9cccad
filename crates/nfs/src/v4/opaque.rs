//! Borrowed opaque data with a limit, and lists with a limit.

use std::{fmt, ops::Deref};

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{MAX_HANDLE, MAX_NAME};

/// Variable-length opaque data or a string (`opaque<MAX>`) in a message. Decoding rejects more than `MAX` bytes;
/// encoding does not check the length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Opaque<'a, const MAX: usize>(pub &'a [u8]);

/// `nfs_fh4`: a file handle in a message.
pub type FileHandle<'a> = Opaque<'a, MAX_HANDLE>;

/// `component4`: a name in a directory. Decoding does not check it for emptiness, `/`, NUL or UTF-8.
pub type Name<'a> = Opaque<'a, MAX_NAME>;

impl<const MAX: usize> Deref for Opaque<'_, MAX> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

/// As a string with escapes.
impl<const MAX: usize> fmt::Debug for Opaque<'_, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<const MAX: usize> Encode for Opaque<'_, MAX> {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.0);
    }
}

impl<'a, const MAX: usize> Decode<'a> for Opaque<'a, MAX> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.opaque(MAX).map(Opaque)
    }
}

/// A list (`T<MAX>`). Decoding rejects more than `MAX` elements; encoding does not check their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> Deref for List<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Encode, const MAX: usize> Encode for List<T, MAX> {
    fn encode(&self, e: &mut Encoder) {
        e.put_u32(self.0.len() as u32);
        self.0.iter().for_each(|v| e.put(v));
    }
}

impl<'a, T: Decode<'a>, const MAX: usize> Decode<'a> for List<T, MAX> {
    /// Elements have at least 4 bytes each, so that the message bounds their number.
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let count = d.count(MAX, 4)?;
        (0..count).map(|_| d.get()).collect::<Result<_, _>>().map(Self)
    }
}
