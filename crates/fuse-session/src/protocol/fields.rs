//! Reading of fields from a received message.

use crate::protocol::DecodeError;

/// The rest of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Skips padding and fields without use, of `N` bytes.
    pub(crate) fn skip<const N: usize>(&mut self) -> Result<(), DecodeError> {
        self.array::<N>().map(drop)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (first, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(first)
    }

    /// A string that ends with a NUL byte, without it.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.0.iter().position(|byte| *byte == 0).ok_or(DecodeError::NoNul)?;
        let string = &self.0[..length];
        self.0 = &self.0[length + 1..];
        Ok(string)
    }

    /// The name of a directory entry, which is not empty.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], DecodeError> {
        self.string().and_then(|name| if name.is_empty() { Err(DecodeError::NoName) } else { Ok(name) })
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}
