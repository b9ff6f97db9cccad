//! Messages to the kernel: a header (`fuse_out_header`) and a body, in a buffer and borrowed data.

use std::io::IoSlice;

/// The beginning of a message: all of it but the data that the caller owns.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    bytes: [u8; Self::SIZE],
    length: usize,
}

impl Head {
    const HEADER: usize = 16;
    /// The longest reply without data: that to FUSE_CREATE.
    const SIZE: usize = Self::HEADER + 144;

    /// A head with an incomplete header.
    pub(crate) fn new() -> Self {
        Self { bytes: [0; Self::SIZE], length: Self::HEADER }
    }

    fn put<const N: usize>(&mut self, field: [u8; N]) -> &mut Self {
        self.bytes[self.length..self.length + N].copy_from_slice(&field);
        self.length += N;
        self
    }

    pub(crate) fn u16(&mut self, field: u16) -> &mut Self {
        self.put(field.to_ne_bytes())
    }

    pub(crate) fn u32(&mut self, field: u32) -> &mut Self {
        self.put(field.to_ne_bytes())
    }

    pub(crate) fn u64(&mut self, field: u64) -> &mut Self {
        self.put(field.to_ne_bytes())
    }

    pub(crate) fn zeros<const N: usize>(&mut self) -> &mut Self {
        self.put([0; N])
    }

    /// The encoded fields, without the header.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[Self::HEADER..self.length]
    }

    /// Completes the header. `code` is the negative errno of a reply, or the code of a notification.
    pub(crate) fn message<'a>(
        mut self,
        unique: u64,
        code: i32,
        data: &'a [u8],
        end: &'static [u8],
    ) -> Message<'a> {
        let length = (self.length + data.len() + end.len()) as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[4..8].copy_from_slice(&code.to_ne_bytes());
        self.bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        Message { head: self, data, end }
    }
}

/// A message to the kernel, which it accepts in one write.
#[derive(Debug, Clone)]
pub struct Message<'a> {
    head: Head,
    data: &'a [u8],
    end: &'static [u8],
}

impl Message<'_> {
    /// The parts for writev(2); some may be empty.
    pub fn slices(&self) -> [IoSlice<'_>; 3] {
        [&self.head.bytes[..self.head.length], self.data, self.end].map(IoSlice::new)
    }
}
