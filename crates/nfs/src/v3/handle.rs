//! `nfs_fh3` (RFC 1813 section 2.5).

use std::{fmt, hash};

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::MAX_HANDLE;

/// A file handle: opaque to the client, stored inline.
#[derive(Clone, Copy)]
pub struct FileHandle {
    len: u8,
    bytes: [u8; MAX_HANDLE],
}

impl FileHandle {
    /// Creates a handle; `None` if `bytes` is longer than [`MAX_HANDLE`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut h = Self { len: u8::try_from(bytes.len()).ok()?, bytes: [0; MAX_HANDLE] };
        h.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(h)
    }

    /// The bytes of the handle.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether the length is 0, which is never valid but can be sent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl TryFrom<&[u8]> for FileHandle {
    type Error = usize;

    /// Returns the length if it exceeds [`MAX_HANDLE`].
    fn try_from(bytes: &[u8]) -> Result<Self, usize> {
        Self::new(bytes).ok_or(bytes.len())
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for FileHandle {}

impl hash::Hash for FileHandle {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl AsRef<[u8]> for FileHandle {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Hexadecimal.
impl fmt::Display for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileHandle({self})")
    }
}

impl Encode for FileHandle {
    fn encode(&self, e: &mut Encoder) {
        e.put_opaque(self.as_bytes());
    }
}

impl<'a> Decode<'a> for FileHandle {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        #[cfg(feature = "call-counts")]
        crate::call_counts::HANDLES_DECODED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let at = d.position();
        let bytes = d.opaque(MAX_HANDLE)?;
        Self::new(bytes).ok_or(XdrError::TooLong { at, len: bytes.len(), max: MAX_HANDLE })
    }
}
