//! RDMA_MSGP (RFC 5666 section 3.7, which RFC 8166 has removed): an inline call whose long items are aligned in the
//! responder's receive buffer. Only the data of a call is an item here: requesters leave others unpadded, and responders
//! find the data where their service expects it.

use std::{fmt, str::FromStr};

use millrace_buffer::{Arena, OutOfMemory, View, Views};
use millrace_rpcrdma::{Body, Header, Lists, VERSION};
use millrace_xdr::{Message, Payload, pad};

/// The message type (`rdma_proc`).
const RDMA_MSGP: u32 = 2;
/// Bytes of a header without chunks.
pub(crate) const HEADER: usize = 36;
/// The largest alignment in bytes: a page.
const MAX_ALIGN: u32 = 4096;

/// Padding of a call. Pad bytes align the first byte of each item of at least `threshold` bytes to a multiple of `align`,
/// counted from the start of the Send. (RFC 5666 does not define the origin; RFC 8166 calls the definition incomplete.) As
/// text: `ALIGN:THRESHOLD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Padding {
    /// Alignment in bytes: a multiple of 4 from 4 to 4096.
    pub align: u32,
    /// Minimum length in bytes of an aligned item.
    pub threshold: u32,
}

impl fmt::Display for Padding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.align, self.threshold)
    }
}

impl FromStr for Padding {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let numbers = || {
            let (align, threshold) = s.split_once(':')?;
            Some(Self { align: align.parse().ok()?, threshold: threshold.parse().ok()? })
        };
        numbers().filter(|p| p.is_valid()).ok_or_else(|| {
            format!(
                "invalid padding {s:?}: use ALIGN:THRESHOLD in bytes, such as 512:1024, with ALIGN a multiple of 4 from 4 \
                 to {MAX_ALIGN}"
            )
        })
    }
}

impl Padding {
    fn is_valid(self) -> bool {
        self.align.is_multiple_of(4) && (4..=MAX_ALIGN).contains(&self.align)
    }

    /// The nearest valid padding.
    pub(crate) fn clamped(self) -> Self {
        Self { align: self.align.clamp(4, MAX_ALIGN).next_multiple_of(4), ..self }
    }

    /// Number of pad bytes before an item of `len` bytes at offset `at` of the message.
    fn before(self, at: usize, len: usize) -> usize {
        let at = HEADER + at;
        if len < self.threshold as usize { 0 } else { at.next_multiple_of(self.align as usize) - at }
    }

    /// The stream of `message` with pad bytes before its payloads. `None` if no payload needs padding, if an item
    /// of the head might need padding (the head is at least as long as the threshold), or if `zeros` is too
    /// short.
    pub(crate) fn pad(self, message: &Message, zeros: &View) -> Option<Views> {
        let threshold = self.threshold as usize;
        if message.head.len() >= threshold || message.payloads.iter().all(|p| p.data.len() < threshold) {
            return None;
        }
        let mut out = Views::new();
        let mut at = 0;
        for p in &message.payloads {
            out.extend(message.head.slice(at, p.position - at).iter().cloned());
            let before = self.before(out.len(), p.data.len());
            if before > zeros.len() {
                return None;
            }
            out.push(zeros.slice(0, before));
            out.extend(p.data.iter().cloned());
            out.push(zeros.slice(0, pad(p.data.len())));
            at = p.position;
        }
        out.extend(message.head.slice(at, message.head.len() - at).iter().cloned());
        Some(out)
    }

    /// The Send of a padded `stream` of at least 4 bytes, whose XID is replaced.
    ///
    /// # Errors
    /// The arena has no memory.
    pub(crate) fn send(
        self,
        xid: u32,
        credits: u32,
        stream: &Views,
        arena: &Arena,
    ) -> Result<Views, OutOfMemory> {
        let words = [xid, VERSION, credits, RDMA_MSGP, self.align, self.threshold, 0, 0, 0, xid];
        let mut data = Views::from(arena.copy_from(words.map(u32::to_be_bytes).as_flattened())?);
        data.extend(stream.slice(4, stream.len() - 4).iter().cloned());
        Ok(data)
    }

    /// Decodes the header at the start of `bytes`, which becomes that of an RDMA_MSG. `None` if it is not a valid
    /// RDMA_MSGP without chunks.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Header, Self)> {
        let words: [u32; HEADER / 4] = {
            let (words, _) = bytes.get(..HEADER)?.as_chunks::<4>();
            std::array::from_fn(|i| words.get(i).map_or(0, |w| u32::from_be_bytes(*w)))
        };
        let [xid, VERSION, credits, RDMA_MSGP, align, threshold, 0, 0, 0] = words else { return None };
        let padding = Self { align, threshold };
        let header = Header::new(xid, credits, Body::Msg(Lists::default()));
        padding.is_valid().then_some((header, padding))
    }

    /// The message of a received `stream`, whose data is expected at `data` of the stream without pad bytes. The data stays
    /// where it is. A stream that is too short ends before its data, so that its arguments are invalid.
    ///
    /// # Errors
    /// The arena has no memory for a head that continues after the data.
    pub(crate) fn remove(
        self,
        stream: View,
        data: Option<usize>,
        arena: &Arena,
    ) -> Result<Message, OutOfMemory> {
        let length = data.and_then(|at| stream.get(at.checked_sub(4)?..at)?.first_chunk());
        let (Some(at), Some(length)) = (data, length.map(|word| u32::from_be_bytes(*word) as usize)) else {
            return Ok(Message::from_view(stream));
        };
        let start = at + self.before(at, length);
        let head = stream.slice(0, at);
        if stream.len().saturating_sub(start) < length + pad(length) {
            return Ok(Message::from_view(head));
        }
        let rest = stream.clone().skip(start + length + pad(length));
        let head = if rest.is_empty() { head } else { arena.copy_from(&[&head[..], &rest].concat())? };
        let mut message = Message::from_view(head);
        message.payloads.push(Payload { position: at, data: stream.slice(start, length).into() });
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use millrace_buffer::ArenaConfig;
    use millrace_xdr::{Decoder, Encoder};

    use super::*;

    fn arena() -> Arena {
        Arena::new(ArenaConfig { limit: 1 << 22, huge_pages: false })
    }

    #[test]
    fn long_payloads_are_aligned_and_decoded_again() {
        let arena = arena();
        let zeros = arena.copy_from(&[0; 64]).unwrap();
        for align in [4, 12, 32, 64] {
            let padding = Padding { align, threshold: 100 };
            let mut e = Encoder::new(&arena, 64);
            e.put_opaque(&[1; 9]);
            e.put_payload(arena.copy_from(&[2; 301]).unwrap().into());
            e.put_u32(4);
            let stream = padding.pad(&e.finish().unwrap(), &zeros).unwrap().to_vec();
            let first = stream.iter().position(|b| *b == 2).unwrap();
            assert_eq!((first + HEADER) % align as usize, 0);
            let received = arena.copy_from(&stream).unwrap();
            let message = padding.remove(received.clone(), Some(20), &arena).unwrap();
            assert_eq!(message.payloads[0].data.iter().next().unwrap().as_ptr(), received[first..].as_ptr());
            let mut d = Decoder::new(&message);
            assert_eq!(d.opaque(100).unwrap(), [1; 9]);
            assert_eq!(d.payload(1000).unwrap().to_vec(), [2; 301]);
            assert_eq!((d.u32(), d.remaining()), (Ok(4), 0));
            // Without data, with a position outside of it, and with a part of it.
            for (data, bytes, expected) in [
                (None, &stream[..], &stream[..]),
                (Some(3), &stream, &stream),
                (Some(20_000), &stream, &stream),
                (Some(20), &stream[..first + 303], &stream[..20]),
                (Some(20), &stream[..20], &stream[..20]),
            ] {
                let message = padding.remove(arena.copy_from(bytes).unwrap(), data, &arena).unwrap();
                assert!(message.payloads.is_empty() && message.head.to_vec() == expected);
            }
        }
    }

    #[test]
    fn ambiguous_messages_are_not_padded() {
        let arena = arena();
        let zeros = arena.copy_from(&[0; 64]).unwrap();
        let padding = Padding { align: 64, threshold: 100 };
        let build = |head: usize, payload: usize| {
            let mut e = Encoder::new(&arena, 64);
            e.put_raw(&vec![1; head]);
            e.put_payload(arena.copy_from(&vec![2; payload]).unwrap().into());
            e.finish().unwrap()
        };
        assert!(padding.pad(&build(20, 99), &zeros).is_none());
        assert!(padding.pad(&build(96, 100), &zeros).is_none());
        assert!(padding.pad(&build(92, 100), &zeros).is_some());
    }
}
