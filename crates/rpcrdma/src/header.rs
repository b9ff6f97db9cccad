//! The transport header (RFC 8166 section 4): the fixed part, the three chunk lists and the error bodies.

use std::fmt;

use millrace_rdma::{Segment, SteeringTag};
use millrace_xdr::{Arena, Decoder, OutOfMemory, View, Views, XdrError};
use smallvec::SmallVec;

/// The protocol version (`rdma_vers`).
pub const VERSION: u32 = 1;
/// Bytes of the smallest message that is decoded as a call (RFC 8166 section 4.2 with three absent lists).
pub const MIN_CALL: usize = 28;
/// Bytes of the smallest valid header except RDMA_DONE: an ERR_CHUNK.
const MIN_HEADER: usize = 20;
const FIXED: usize = 16;
/// Bytes of a segment.
pub(crate) const SEGMENT: usize = 16;
/// Bytes that a Read list entry, a Write chunk or a Reply chunk, each with one segment, add to a header.
pub(crate) const READ_ENTRY: usize = 8 + SEGMENT;
pub(crate) const WRITE_CHUNK: usize = 8 + SEGMENT;
pub(crate) const REPLY_CHUNK: usize = 4 + SEGMENT;

const RDMA_MSG: u32 = 0;
const RDMA_NOMSG: u32 = 1;
const RDMA_DONE: u32 = 3;
const RDMA_ERROR: u32 = 4;
const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

/// Maximum length in bytes of a head that is copied after its transport header: one contiguous buffer costs
/// less to send than two.
const COPIED_HEAD: usize = 512;

/// The segments of one Write or Reply chunk, or of one Read chunk.
pub type Chunk = SmallVec<[Segment; 2]>;

/// One entry of a Read list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadSegment {
    /// Offset of the item in the unreduced payload stream, a multiple of 4; the same in all segments of a
    /// chunk.
    pub position: u32,
    /// The memory.
    pub segment: Segment,
}

/// The three chunk lists of a header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lists {
    /// The Read list; empty in all replies of RFC 8166.
    pub reads: SmallVec<[ReadSegment; 2]>,
    /// The Write list: one item per Write chunk. The result of an *empty* chunk, which has no segments, is
    /// inline.
    pub writes: SmallVec<[Chunk; 1]>,
    /// The Reply chunk.
    pub reply: Option<Chunk>,
}

impl Lists {
    /// Whether the header has no chunks.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reply.is_none()
    }

    /// The segments of all lists, in wire order.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        let writes = self.writes.iter().chain(&self.reply).flatten();
        self.reads.iter().map(|r| &r.segment).chain(writes)
    }

    fn encoded_len(&self) -> usize {
        let chunk = |c: &Chunk| 8 + SEGMENT * c.len();
        let writes: usize = self.writes.iter().map(chunk).sum();
        READ_ENTRY * self.reads.len() + 4 + writes + 4 + self.reply.as_ref().map_or(4, chunk)
    }
}

/// The error that an RDMA_ERROR reports (RFC 8166 section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// ERR_VERS: the responder does not support the version of the call.
    #[error(
        "the server supports RPC-over-RDMA versions {low} to {high} only, and this client version {VERSION} (ERR_VERS); \
         let the server serve version {VERSION}, or connect over TCP"
    )]
    Version {
        /// Lowest supported version.
        low: u32,
        /// Highest supported version.
        high: u32,
    },
    /// ERR_CHUNK: the header or its chunks are invalid, or the reply is larger than the call's chunks.
    #[error(
        "the server cannot use the memory that the call offers, or the reply does not fit in it (ERR_CHUNK); its log \
         may say why: use smaller transfers, or connect over TCP"
    )]
    Chunk,
}

/// The message type (`rdma_proc`) and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// RDMA_MSG: the (reduced) RPC message follows the header.
    Msg(Lists),
    /// RDMA_NOMSG: chunks convey the RPC message.
    NoMsg(Lists),
    /// RDMA_DONE (RFC 5666 section 3.8, which RFC 8166 has removed): the requester has read the chunks of the
    /// reply.
    Done,
    /// RDMA_ERROR.
    Error(TransportError),
}

impl Body {
    /// Splits the body into the lists and the inline part of the message. `message` is the received Send, with a
    /// header of `at` bytes. Bytes after an RDMA_NOMSG header are ignored.
    pub fn into_parts(self, at: usize, message: View) -> (Lists, Option<View>) {
        match self {
            Self::Msg(lists) => (lists, Some(message.skip(at))),
            Self::NoMsg(lists) => (lists, None),
            Self::Done | Self::Error(_) => (Lists::default(), None),
        }
    }
}

/// A transport header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// XID of the RPC message.
    pub xid: u32,
    /// Version: 1, or in an error the version of the rejected call.
    pub vers: u32,
    /// Credits requested (call) or granted (reply).
    pub credits: u32,
    /// Message type and its fields.
    pub body: Body,
}

/// A transport header that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The message is shorter than a header; it is dropped without a reply.
    #[error("{0} bytes are too short for an RPC-over-RDMA header")]
    Short(usize),
    /// Unsupported version; the reply is ERR_VERS.
    #[error("RPC-over-RDMA version {vers} (xid {xid:#010x})")]
    Version {
        /// XID of the message.
        xid: u32,
        /// Version of the message.
        vers: u32,
    },
    /// Malformed header; a call is answered with ERR_CHUNK, a reply is dropped.
    #[error("bad RPC-over-RDMA header (xid {xid:#010x}): {what}")]
    Malformed {
        /// XID of the message.
        xid: u32,
        /// Reason.
        what: &'static str,
    },
    /// RDMA_ERROR with an unknown error code; dropped (RFC 8166 section 4.5).
    #[error("RDMA_ERROR of an unknown kind (xid {xid:#010x})")]
    UnknownError {
        /// XID of the message.
        xid: u32,
    },
}

impl Header {
    /// Creates a header of version 1.
    pub fn new(xid: u32, credits: u32, body: Body) -> Self {
        Self { xid, vers: VERSION, credits, body }
    }

    /// Decodes the header at the start of `bytes`. Returns the header and its length in bytes.
    ///
    /// # Errors
    /// The header is too short, malformed or of another version, or its lists have more than `max_segments`
    /// segments in total.
    pub fn decode(bytes: &[u8], max_segments: usize) -> Result<(Self, usize), HeaderError> {
        let short = |_: XdrError| HeaderError::Short(bytes.len());
        let mut d = Decoder::from_bytes(bytes);
        let [xid, vers, credits, proc] = d.words().map_err(short)?;
        if bytes.len() < MIN_HEADER && proc != RDMA_DONE {
            return Err(HeaderError::Short(bytes.len()));
        }
        if vers != VERSION {
            return Err(HeaderError::Version { xid, vers });
        }
        let malformed = |what| HeaderError::Malformed { xid, what };
        let body = match proc {
            RDMA_MSG => Body::Msg(ListReader::new(&mut d, max_segments).lists().map_err(malformed)?),
            RDMA_NOMSG => Body::NoMsg(ListReader::new(&mut d, max_segments).lists().map_err(malformed)?),
            RDMA_DONE => Body::Done,
            RDMA_ERROR => {
                Body::Error(transport_error(&mut d).map_err(|_| HeaderError::UnknownError { xid })?)
            }
            // RDMA_MSGP too, which RFC 8166 has removed.
            _ => return Err(malformed("unknown procedure")),
        };
        Ok((Self { xid, vers, credits, body }, d.position()))
    }

    /// Length of the encoded header in bytes.
    pub fn encoded_len(&self) -> usize {
        FIXED
            + match &self.body {
                Body::Msg(l) | Body::NoMsg(l) => l.encoded_len(),
                Body::Done => 0,
                Body::Error(TransportError::Version { .. }) => 12,
                Body::Error(TransportError::Chunk) => 4,
            }
    }

    /// Encodes the header at the start of `out` and returns its length in bytes.
    ///
    /// # Panics
    /// `out` is shorter than [`Self::encoded_len`].
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let mut w = Writer { out, at: 0 };
        let proc = match &self.body {
            Body::Msg(_) => RDMA_MSG,
            Body::NoMsg(_) => RDMA_NOMSG,
            Body::Done => RDMA_DONE,
            Body::Error(_) => RDMA_ERROR,
        };
        w.words([self.xid, self.vers, self.credits, proc]);
        match &self.body {
            Body::Msg(l) | Body::NoMsg(l) => w.lists(l),
            Body::Done => {}
            Body::Error(TransportError::Version { low, high }) => w.words([ERR_VERS, *low, *high]),
            Body::Error(TransportError::Chunk) => w.u32(ERR_CHUNK),
        }
        w.at
    }

    /// Builds a Send of the header without an RPC message.
    ///
    /// # Errors
    /// The arena has no memory.
    pub fn without_message(&self, arena: &Arena) -> Result<Views, OutOfMemory> {
        let mut b = arena.alloc(self.encoded_len())?;
        self.encode(&mut b);
        Ok(b.freeze().into())
    }

    /// Builds a Send of the header and an RPC message, whose XID is replaced by that of the header. The header is
    /// written before a message that has space for it and no other reference, which is taken then. Otherwise a
    /// short message that consists of a head only is copied after the header, and other messages are referenced.
    ///
    /// # Errors
    /// The arena has no memory.
    pub fn with_message(
        &self,
        message: &mut Views,
        only_head: bool,
        arena: &Arena,
    ) -> Result<Views, OutOfMemory> {
        let length = self.encoded_len();
        if only_head
            && message.len() >= 4
            && let Some(bytes) = message.prepend(length)
        {
            self.encode(bytes);
            bytes[length..length + 4].copy_from_slice(&self.xid.to_be_bytes());
            return Ok(std::mem::take(message));
        }
        let whole = only_head && message.len() <= COPIED_HEAD;
        let xid = self.xid.to_be_bytes();
        let copied = if whole { message.len() } else { xid.len().min(message.len()) };
        let mut b = arena.alloc(length + copied)?;
        let at = self.encode(&mut b);
        let mut end = at;
        for view in message.iter().take_while(|_| whole) {
            b[end..end + view.len()].copy_from_slice(view);
            end += view.len();
        }
        b[at..at + copied.min(xid.len())].copy_from_slice(&xid[..copied.min(xid.len())]);
        let mut data = Views::from(b.freeze());
        if copied < message.len() {
            data.extend(message.slice(copied, message.len() - copied).iter().cloned());
        }
        Ok(data)
    }
}

fn transport_error(d: &mut Decoder<'_>) -> Result<TransportError, XdrError> {
    match d.u32()? {
        ERR_VERS => Ok(TransportError::Version { low: d.u32()?, high: d.u32()? }),
        ERR_CHUNK => Ok(TransportError::Chunk),
        other => Err(d.invalid(other)),
    }
}

/// Decodes the lists with one limit on the number of their segments.
struct ListReader<'d, 'a> {
    d: &'d mut Decoder<'a>,
    left: usize,
}

const TRUNCATED: &str = "a chunk list runs past the message";
const TOO_MANY: &str = "too many segments";

impl<'d, 'a> ListReader<'d, 'a> {
    fn new(d: &'d mut Decoder<'a>, max_segments: usize) -> Self {
        Self { d, left: max_segments }
    }

    fn lists(mut self) -> Result<Lists, &'static str> {
        let mut lists = Lists::default();
        while self.present()? {
            self.take(1)?;
            let position = self.u32()?;
            if position % 4 != 0 {
                return Err("a position that is not a multiple of 4");
            }
            lists.reads.push(ReadSegment { position, segment: self.segment()? });
        }
        while self.present()? {
            // An empty chunk has 8 bytes. Counting it as a segment limits the number of empty chunks.
            self.take(1)?;
            lists.writes.push(self.chunk()?);
        }
        if self.present()? {
            lists.reply = Some(self.chunk()?);
        }
        Ok(lists)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.d.u32().map_err(|_| TRUNCATED)
    }

    fn present(&mut self) -> Result<bool, &'static str> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a list discriminator that is neither 0 nor 1"),
        }
    }

    fn take(&mut self, segments: usize) -> Result<(), &'static str> {
        self.left = self.left.checked_sub(segments).ok_or(TOO_MANY)?;
        Ok(())
    }

    fn chunk(&mut self) -> Result<Chunk, &'static str> {
        let count = self.u32()? as usize;
        // A division, because `16 * 0x1000_0001` would wrap in 32 bits.
        if count > self.d.remaining() / SEGMENT {
            return Err(TRUNCATED);
        }
        self.take(count)?;
        let mut chunk = Chunk::with_capacity(count);
        for _ in 0..count {
            chunk.push(self.segment()?);
        }
        Ok(chunk)
    }

    fn segment(&mut self) -> Result<Segment, &'static str> {
        let [handle, length, high, low] = self.d.words().map_err(|_| TRUNCATED)?;
        let offset = u64::from(high) << 32 | u64::from(low);
        if offset.checked_add(u64::from(length)).is_none() {
            return Err("a segment that wraps around the address space");
        }
        Ok(Segment { handle: SteeringTag(handle), length, offset })
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn words<const N: usize>(&mut self, words: [u32; N]) {
        let bytes = words.map(u32::to_be_bytes);
        self.out[self.at..self.at + 4 * N].copy_from_slice(bytes.as_flattened());
        self.at += 4 * N;
    }

    fn u32(&mut self, v: u32) {
        self.words([v]);
    }

    fn segment(&mut self, s: &Segment) {
        self.words([s.handle.0, s.length, (s.offset >> 32) as u32, s.offset as u32]);
    }

    fn chunk(&mut self, c: &Chunk) {
        self.words([1, c.len() as u32]);
        c.iter().for_each(|s| self.segment(s));
    }

    fn lists(&mut self, l: &Lists) {
        for r in &l.reads {
            self.words([1, r.position]);
            self.segment(&r.segment);
        }
        self.u32(0);
        l.writes.iter().for_each(|c| self.chunk(c));
        self.u32(0);
        match &l.reply {
            Some(c) => self.chunk(c),
            None => self.u32(0),
        }
    }
}

fn write_segment(f: &mut fmt::Formatter<'_>, s: &Segment) -> fmt::Result {
    write!(f, "{:#x}+{}@{:#x}", s.handle.0, s.length, s.offset)
}

fn write_chunk(f: &mut fmt::Formatter<'_>, c: &Chunk) -> fmt::Result {
    f.write_str("[")?;
    for (i, s) in c.iter().enumerate() {
        f.write_str(if i > 0 { " " } else { "" })?;
        write_segment(f, s)?;
    }
    f.write_str("]")
}

/// As in a packet dump: `MSG xid=0x11223345 credits=32 read 72:0x501+5000@0x7f0000001000`.
impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, lists) = match &self.body {
            Body::Msg(l) => ("MSG", Some(l)),
            Body::NoMsg(l) => ("NOMSG", Some(l)),
            Body::Done => ("DONE", None),
            Body::Error(_) => ("ERROR", None),
        };
        write!(f, "{name} xid={:#010x}", self.xid)?;
        if self.vers != VERSION {
            write!(f, " vers={}", self.vers)?;
        }
        write!(f, " credits={}", self.credits)?;
        if let Body::Error(e) = &self.body {
            write!(f, " {e}")?;
        }
        let Some(lists) = lists else { return Ok(()) };
        for r in &lists.reads {
            write!(f, " read {}:", r.position)?;
            write_segment(f, &r.segment)?;
        }
        for c in &lists.writes {
            f.write_str(" write ")?;
            write_chunk(f, c)?;
        }
        if let Some(c) = &lists.reply {
            f.write_str(" reply ")?;
            write_chunk(f, c)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millrace_buffer::ArenaConfig;
    use millrace_xdr::Encoder;
    use smallvec::smallvec;

    use super::*;

    /// A Send is the same whether its header is written before the message, or the message is shared, too large
    /// for the headroom of its encoder, or without enough headroom for the header.
    #[test]
    fn a_send_has_the_same_bytes_in_the_memory_of_the_message_or_elsewhere() {
        let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
        for segments in [0, 1, 5, 20] {
            let segment = Segment { handle: SteeringTag(7), length: 4096, offset: 1 << 40 };
            let writes = smallvec![std::iter::repeat_n(segment, segments).collect()];
            let header = Header::new(0x0102_0304, 9, Body::Msg(Lists { writes, ..Lists::default() }));
            for length in [4, 8, 100, 380, 384, 388, 512, 516, 2000] {
                let mut e = Encoder::new(&arena, 256);
                let bytes: Vec<_> = (0..length).map(|i| i as u8).collect();
                e.put_raw(&bytes);
                let mut message = e.finish().unwrap().head;
                let shared = message.clone();
                let apart = header.with_message(&mut message, true, &arena).unwrap();
                drop(shared);
                assert_eq!(message.len(), length, "shared memory is not taken");
                let taken = header.with_message(&mut message, true, &arena).unwrap();
                let mut expected = vec![0; header.encoded_len()];
                header.encode(&mut expected);
                expected.extend([1, 2, 3, 4].iter().chain(&bytes[4..]));
                assert!(apart.to_vec() == expected && taken.to_vec() == expected, "{segments} {length}");
                let in_place = expected.len() - length <= 128 && length <= 384;
                assert_eq!(message.is_empty(), in_place, "{segments} {length}");
            }
        }
    }
}
