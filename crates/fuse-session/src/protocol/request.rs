//! The header of requests (`fuse_in_header`).

use crate::protocol::{DecodeError, fields::Fields};

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Operation (`enum fuse_opcode`).
    pub opcode: u32,
    /// Number of the request, which its reply repeats.
    pub unique: u64,
    /// Node that the request applies to; 0 if it has none.
    pub node: u64,
    /// User of the caller.
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Thread of the caller; 0 for the kernel, and for callers in a PID namespace that does not contain the file system.
    pub pid: u32,
}

impl Header {
    /// Size in bytes.
    pub const SIZE: usize = 40;

    /// Decodes the header of `message`, and returns it with the remainder for [`crate::protocol::Operation::decode`].
    ///
    /// # Errors
    /// [`DecodeError::Short`] and [`DecodeError::Length`].
    pub fn decode(message: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        Self::decode_start(message, message.len())
    }

    /// As [`Self::decode`], of `start`, the first bytes of a message of `length` bytes.
    ///
    /// # Errors
    /// As those of [`Self::decode`].
    pub fn decode_start(start: &[u8], length: usize) -> Result<(Self, &[u8]), DecodeError> {
        let mut fields = Fields::new(start);
        let stated = fields.u32()?;
        let (opcode, unique, node) = (fields.u32()?, fields.u64()?, fields.u64()?);
        let (uid, gid, pid) = (fields.u32()?, fields.u32()?, fields.u32()?);
        // Extensions at the end, in units of 8 bytes (7.38); 0 before.
        let extensions = 8 * usize::from(fields.u16()?);
        fields.skip::<2>()?;
        if stated as usize != length {
            return Err(DecodeError::Length { stated, received: length });
        }
        let end = length.checked_sub(extensions).ok_or(DecodeError::Short)?;
        let body = start.get(Self::SIZE..end.min(start.len())).ok_or(DecodeError::Short)?;
        Ok((Self { opcode, unique, node, uid, gid, pid }, body))
    }
}
