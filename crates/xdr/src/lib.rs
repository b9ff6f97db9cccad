//! XDR (RFC 4506) with separate payloads.
//!
//! An encoded stream is a [`Message`]: a *head* (ordinary XDR) and *payloads*, bulk items marked with
//! [`Encoder::put_payload`]. The length word of a payload is in the head; its bytes and their XDR padding are
//! not. A stream transport gathers the parts; RPC-over-RDMA moves payloads in chunks. The original papers call
//! this de-chunking in the XDR layer. Decoding is bounded: allocations never exceed the bytes received.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{Decode, Decoder, XdrError};
pub use encode::{Encode, Encoder};
pub use millrace_buffer::{Arena, Buffer, OutOfMemory, View, Views};
use smallvec::SmallVec;

/// Number of padding bytes after `len` bytes of opaque data (RFC 4506 section 4.9).
pub const fn pad(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// A bulk item that is separate from the head.
#[derive(Debug, Clone)]
pub struct Payload {
    /// Offset in the head at which the item's bytes and padding belong: after its length word.
    pub position: usize,
    /// Data of the item, without padding.
    pub data: Views,
}

/// An encoded XDR stream, divided into head and payloads.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// The XDR stream without the payloads.
    pub head: Views,
    /// Payloads in order of position.
    pub payloads: SmallVec<[Payload; 1]>,
}

impl Message {
    /// Creates a message without payloads.
    pub fn from_view(head: View) -> Self {
        Self { head: head.into(), ..Self::default() }
    }

    /// Length of the whole stream, including payloads and their padding.
    pub fn stream_len(&self) -> usize {
        self.head.len() + self.payloads.iter().map(|p| p.data.len() + pad(p.data.len())).sum::<usize>()
    }

    /// The first four bytes as a number: the XID of an RPC message.
    pub fn xid(&self) -> Option<u32> {
        let first = self.head.iter().next()?;
        first.first_chunk().map(|b| u32::from_be_bytes(*b))
    }

    /// Replaces the first four bytes, the XID of an RPC message. Returns `false` and changes nothing if the
    /// head is shorter, or shared with another view (the caller must then send another head).
    pub fn set_xid(&mut self, xid: u32) -> bool {
        let bytes = self.head.first_mut().and_then(View::try_mut);
        let Some(word) = bytes.and_then(|b| b.first_chunk_mut()) else { return false };
        *word = xid.to_be_bytes();
        true
    }

    /// Returns the whole stream as views, with payloads and padding in place. `zeros` supplies padding and
    /// must hold at least 3 zero bytes.
    ///
    /// # Panics
    /// If a payload's position is outside the head: a bug in the code that built the message.
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
