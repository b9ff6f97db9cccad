//! CRC32C digests (RFC 7143 section 13.1); sent least significant byte first.

use std::fmt;

use crc_fast::CrcAlgorithm;

/// A CRC32C computed over successive pieces of a PDU.
#[derive(Clone)]
pub struct Digest(crc_fast::Digest);

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({:02x?})", self.wire())
    }
}

impl Digest {
    /// The digest of zero bytes.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds `bytes`: the header segments, or the data with its padding.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of the added bytes in the byte order of the wire.
    pub fn wire(&self) -> [u8; 4] {
        (self.0.finalize() as u32).to_le_bytes() // 32-bit algorithm: the upper half is zero.
    }
}

/// The digest of `parts`, in the byte order of the wire.
pub fn digest(parts: &[&[u8]]) -> [u8; 4] {
    let mut digest = Digest::new();
    parts.iter().for_each(|part| digest.update(part));
    digest.wire()
}
