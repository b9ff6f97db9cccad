//! Messages whose chunks are pulled by RDMA Read: calls at the responder (RFC 8166 sections 3.4.5, 3.5.5), and replies
//! at the requester of the Read-Read design.

use buffer::{Arena, Buffer, OutOfMemory, SPAN_BYTES, View, Views};
use rdma::{PostError, QueuePair, ReadRequest, Segment, WorkId};
use slab::Slab;
use smallvec::SmallVec;
use xdr::{Message, Payload};

use crate::{
    chunks::{HeadOffset, head_offsets, joined, read_chunks},
    header::ReadSegment,
};

/// Emptied sink lists that are kept for reuse.
const SPARE_SINKS: usize = 64;

/// What a message's Reads amount to, checked before the first of them is posted.
pub(crate) struct Shape {
    /// Bytes of the Position-Zero chunk, which then is the head.
    head: Option<usize>,
    /// Where the other chunks belong in the head.
    payloads: SmallVec<[HeadOffset; 2]>,
}

impl Shape {
    /// Whether the message has a head of at most `head` bytes, if that is in a chunk, and at most one payload, of at
    /// most `payload` bytes.
    ///
    /// # Errors
    /// What is too much.
    pub(crate) fn fits(&self, head: usize, payload: usize) -> Result<(), &'static str> {
        if self.head.is_some_and(|len| len > head) {
            return Err("a Position-Zero chunk longer than the longest message");
        }
        match self.payloads.as_slice() {
            [] => Ok(()),
            [p] if p.len <= payload as u64 => Ok(()),
            [_] => Err("a Read chunk larger than the memory for it"),
            _ => Err("more Read chunks than items that may be in one"),
        }
    }
}

/// Sorts a message's Read list and checks it: `inline` is the message after the header, `None` for RDMA_NOMSG;
/// `max` the most bytes of all chunks together.
///
/// # Errors
/// What is wrong.
pub(crate) fn check(
    reads: &mut [ReadSegment],
    inline: Option<&View>,
    max: u64,
) -> Result<Shape, &'static str> {
    reads.sort_by_key(|r| r.position); // Stable: list order is kept within a chunk.
    let total: u64 = reads.iter().map(|r| u64::from(r.segment.length)).sum();
    if total > max {
        return Err("Read chunks larger than the transfer limit");
    }
    let zero = read_chunks(reads).next().filter(|c| c.position == 0).map(|c| c.len());
    let head = match (inline, zero) {
        (Some(_), None) => None,
        (None, Some(len)) if (4..=SPAN_BYTES as u64).contains(&len) => Some(len as usize),
        (Some(_), Some(_)) => return Err("a Position-Zero chunk beside an inline message"),
        (None, Some(_)) => return Err("a Position-Zero chunk of an unusable size"),
        (None, None) => return Err("neither an inline message nor a Position-Zero chunk"),
    };
    let head_len = head.unwrap_or_else(|| inline.map_or(0, |v| v.len()));
    Ok(Shape { head, payloads: head_offsets(reads, head_len as u64)? })
}

/// Where sinks come from.
pub(crate) struct Sources<'a> {
    pub(crate) arena: &'a Arena,
    /// Bytes of the buffers into which payloads are placed.
    pub(crate) piece: usize,
    /// Bytes of the largest RDMA Read.
    pub(crate) max_transfer: usize,
}

/// A message with Reads in flight.
struct Pull<T> {
    of: T,
    inline: Option<View>,
    shape: Shape,
    /// The sink of each Read in stream order; empty until it is back.
    sinks: SmallVec<[Vec<Buffer>; 2]>,
    /// Reads that are not back.
    outstanding: usize,
}

/// Messages with Reads in flight; `T` says what each belongs to.
pub(crate) struct Pulls<T> {
    open: Slab<Pull<T>>,
    /// Emptied sink lists, for reuse.
    spare: Vec<Vec<Buffer>>,
}

impl<T> Default for Pulls<T> {
    fn default() -> Self {
        Self { open: Slab::new(), spare: Vec::new() }
    }
}

impl<T> Pulls<T> {
    /// Whether no Read is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Plans the Reads of a checked list, in stream order: takes the memory for all of them, or for none. The one
    /// segment at the position of `into` is read into that buffer; it is not longer.
    ///
    /// # Errors
    /// When there is not enough.
    pub(crate) fn plan(
        &mut self,
        reads: &[ReadSegment],
        mut into: Option<(u32, Buffer)>,
        sources: &Sources<'_>,
    ) -> Result<SmallVec<[ReadRequest; 2]>, OutOfMemory> {
        let mut out: SmallVec<[ReadRequest; 2]> = SmallVec::new();
        for chunk in read_chunks(reads) {
            for from in joined(chunk.segments.iter().map(|r| r.segment)) {
                if let Some((_, mut buffer)) = into.take_if(|(position, _)| *position == chunk.position) {
                    buffer.set_len(from.length as usize);
                    let mut sink = self.spare.pop().unwrap_or_default();
                    sink.push(buffer);
                    out.push(ReadRequest { id: WorkId(0), from, sink });
                    continue;
                }
                // The head must be one view, so the sink of a Position-Zero segment is one buffer.
                let piece = if chunk.position == 0 { SPAN_BYTES } else { sources.piece };
                self.reads_of(from, piece, sources, &mut out)?;
            }
        }
        Ok(out)
    }

    fn reads_of(
        &mut self,
        segment: Segment,
        piece: usize,
        sources: &Sources<'_>,
        out: &mut SmallVec<[ReadRequest; 2]>,
    ) -> Result<(), OutOfMemory> {
        let mut from = segment;
        let mut left = segment.length as usize;
        while left > 0 {
            let n = left.min(sources.max_transfer.max(1));
            let mut sink = self.spare.pop().unwrap_or_default();
            let mut room = n;
            while room > 0 {
                let b = sources.arena.alloc(room.min(piece))?;
                room -= b.len();
                sink.push(b);
            }
            from.length = n as u32;
            out.push(ReadRequest { id: WorkId(0), from, sink });
            from.offset = from.offset.wrapping_add(n as u64); // Does not wrap: the decoder checked the segment.
            left -= n;
        }
        Ok(())
    }

    /// Posts the planned Reads of a message.
    ///
    /// # Errors
    /// As [`QueuePair::post_read`].
    pub(crate) fn post(
        &mut self,
        of: T,
        inline: Option<View>,
        shape: Shape,
        reads: SmallVec<[ReadRequest; 2]>,
        qp: &mut dyn QueuePair,
    ) -> Result<(), PostError> {
        let sinks = reads.iter().map(|_| Vec::new()).collect();
        let pull = Pull { of, inline, shape, sinks, outstanding: reads.len() };
        let at = self.open.insert(pull) as u64;
        for (i, mut read) in reads.into_iter().enumerate() {
            read.id = WorkId(at << 32 | i as u64);
            qp.post_read(read)?;
        }
        Ok(())
    }

    /// A Read is done; the whole message when it was the last of its Reads.
    pub(crate) fn completed(
        &mut self,
        id: WorkId,
        sink: Vec<Buffer>,
        arena: &Arena,
    ) -> Option<(T, Result<Message, OutOfMemory>)> {
        let (at, index) = ((id.0 >> 32) as usize, (id.0 & 0xffff_ffff) as usize);
        let pull = self.open.get_mut(at)?;
        if let Some(slot) = pull.sinks.get_mut(index).filter(|s| s.is_empty()) {
            *slot = sink;
            pull.outstanding = pull.outstanding.saturating_sub(1);
        }
        if pull.outstanding > 0 {
            return None;
        }
        let mut pull = self.open.try_remove(at)?;
        let mut sinks = std::mem::take(&mut pull.sinks);
        let message = pull.assemble(sinks.iter_mut().flat_map(|s| s.drain(..)), arena);
        self.spare.extend(sinks);
        self.spare.truncate(SPARE_SINKS);
        Some((pull.of, message))
    }
}

impl<T> Pull<T> {
    /// The whole message from its inline part and the filled sinks.
    fn assemble(
        &mut self,
        mut buffers: impl Iterator<Item = Buffer>,
        arena: &Arena,
    ) -> Result<Message, OutOfMemory> {
        let mut message = Message::default();
        match (self.shape.head, self.inline.take()) {
            (Some(len), _) => {
                let parts = gather(&mut buffers, len as u64);
                message.head = if parts.iter().count() == 1 { parts } else { join(&parts, arena)? };
            }
            (None, Some(inline)) => message.head = inline.into(),
            (None, None) => {}
        }
        for p in &self.shape.payloads {
            message.payloads.push(Payload { position: p.at, data: gather(&mut buffers, p.len) });
        }
        Ok(message)
    }
}

/// The next `len` bytes of `buffers`; Reads end where chunks end, so this takes whole buffers.
fn gather(buffers: &mut impl Iterator<Item = Buffer>, len: u64) -> Views {
    let mut out = Views::new();
    while (out.len() as u64) < len {
        let Some(b) = buffers.next() else { break };
        out.push(b.freeze());
    }
    out
}

/// One view of a head that came in several segments (a copy; heads of long messages are small, and seldom cut).
fn join(parts: &Views, arena: &Arena) -> Result<Views, OutOfMemory> {
    let mut b = arena.alloc(parts.len())?;
    parts.copy_to(&mut b);
    Ok(b.freeze().into())
}
