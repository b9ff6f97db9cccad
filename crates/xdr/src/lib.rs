//! XDR (RFC 4506) in parts.
//!
//! An encoded stream is a [`Message`]: a *head* (ordinary XDR bytes) and *payloads*, the bulk items that an upper
//! layer marked with [`Encoder::put_payload`]. A payload's length word is in the head; its bytes (and their XDR
//! padding) are not. A stream transport gathers the parts; RPC-over-RDMA turns payloads into chunks. The papers call
//! this de-chunking in the XDR layer. Decoding is bounded: nothing is allocated that the bytes present do not cover.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{Decode, Decoder, XdrError};
pub use encode::{Encode, Encoder};
pub use millrace_buffer::{Arena, Buffer, OutOfMemory, View, Views};
use smallvec::SmallVec;

/// Bytes of padding after `len` bytes of opaque data (RFC 4506 section 4.9).
pub const fn pad(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// A bulk item that travels beside the head.
#[derive(Debug, Clone)]
pub struct Payload {
    /// Offset in the head at which the item's bytes (and padding) belong: just after its length word.
    pub position: usize,
    /// The item's bytes, without padding.
    pub data: Views,
}

/// Pad bytes that a transport has put before long items of a stream, so that they lie at multiples of `align` in its
/// receive buffer. They are no part of XDR; [`Decoder`] leaves them out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemPadding {
    /// Bytes, at least 1.
    pub align: usize,
    /// Variable-length opaque items of at least so many bytes are padded.
    pub threshold: usize,
    /// Where in the receive buffer the stream begins.
    pub origin: usize,
}

impl ItemPadding {
    /// Bytes before an item of `len` bytes whose length word ends at offset `at` of the stream.
    pub fn before(&self, at: usize, len: usize) -> usize {
        let at = self.origin + at;
        if len < self.threshold { 0 } else { at.next_multiple_of(self.align.max(1)) - at }
    }
}

/// An encoded XDR stream in parts.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// The XDR bytes, less the payloads.
    pub head: Views,
    /// The payloads in order of position.
    pub payloads: SmallVec<[Payload; 1]>,
    /// What stands between the head's items, in a message that was received with such padding.
    pub padding: Option<ItemPadding>,
}

impl Message {
    /// A message that is all head.
    pub fn from_view(head: View) -> Self {
        Self { head: head.into(), ..Self::default() }
    }

    /// Bytes of the whole stream, payloads with their padding included.
    pub fn stream_len(&self) -> usize {
        self.head.len() + self.payloads.iter().map(|p| p.data.len() + pad(p.data.len())).sum::<usize>()
    }

    /// The first four bytes as a number: the XID of an RPC message.
    pub fn xid(&self) -> Option<u32> {
        let first = self.head.iter().next()?;
        first.first_chunk().map(|b| u32::from_be_bytes(*b))
    }

    /// Replaces the first four bytes, the XID of an RPC message. False, and nothing changed, when the head is
    /// shorter or someone else still holds a view of it (then the caller sends another head).
    pub fn set_xid(&mut self, xid: u32) -> bool {
        let bytes = self.head.first_mut().and_then(View::try_mut);
        let Some(word) = bytes.and_then(|b| b.first_chunk_mut()) else { return false };
        *word = xid.to_be_bytes();
        true
    }

    /// The whole stream in order as views, payloads and padding in their places. `zeros` supplies padding and must
    /// hold at least 3 zero bytes.
    ///
    /// # Panics
    /// When a payload's position is outside the head: a bug of whoever built the message.
    pub fn gather(&self, zeros: &View) -> Views {
        let mut out = Views::new();
        let mut at = 0;
        for p in &self.payloads {
            out.extend(self.head.slice(at, p.position - at).iter().cloned());
            out.extend(p.data.iter().cloned());
            out.push(zeros.slice(0, pad(p.data.len())));
            at = p.position;
        }
        out.extend(self.head.slice(at, self.head.len() - at).iter().cloned());
        out
    }
}
