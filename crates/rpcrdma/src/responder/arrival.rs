//! A call whose arguments are pulled by RDMA Read (RFC 8166 section 3.4.5, 3.5.5).

use buffer::{Arena, Buffer, OutOfMemory, SPAN_BYTES, View, Views};
use rdma::{ReadRequest, Segment, WorkId};
use smallvec::SmallVec;
use xdr::{Message, Payload};

use super::{ReplyTo, ResponderConfig};
use crate::chunks::{HeadOffset, head_offsets, read_chunks};

/// What a call's Reads amount to, checked before the first of them is posted.
pub(super) struct Shape {
    /// Bytes of the Position-Zero chunk, which then is the head.
    head: Option<usize>,
    /// Where the other chunks belong in the head.
    payloads: SmallVec<[HeadOffset; 2]>,
}

/// A call with Reads in flight.
pub(super) struct Arrival {
    to: ReplyTo,
    inline: Option<View>,
    shape: Shape,
    /// The sink of each Read in stream order; empty until it is back.
    sinks: SmallVec<[Vec<Buffer>; 2]>,
    /// Reads that are not back.
    outstanding: usize,
}

/// Sorts the call's Read list and checks it: `inline` is the message after the header, `None` for RDMA_NOMSG.
///
/// # Errors
/// What is wrong; the answer is ERR_CHUNK.
pub(super) fn check(
    to: &mut ReplyTo,
    inline: Option<&View>,
    config: &ResponderConfig,
) -> Result<Shape, &'static str> {
    let reads = &mut to.lists.reads;
    reads.sort_by_key(|r| r.position); // Stable: list order is kept within a chunk.
    let total: u64 = reads.iter().map(|r| u64::from(r.segment.length)).sum();
    if total > config.max_read() {
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

/// Plans the Reads of a checked call, in stream order: takes the memory for all of them, or for none.
///
/// # Errors
/// When there is not enough.
pub(super) fn plan(
    to: &ReplyTo,
    sources: &mut Sources<'_>,
) -> Result<SmallVec<[ReadRequest; 2]>, OutOfMemory> {
    let mut reads: SmallVec<[ReadRequest; 2]> = SmallVec::new();
    for r in &to.lists.reads {
        // The head must be one view, so the sink of a Position-Zero segment is one buffer.
        let piece = if r.position == 0 { SPAN_BYTES } else { sources.piece };
        sources.reads_of(r.segment, piece, &mut reads)?;
    }
    Ok(reads)
}

/// Where sinks come from.
pub(super) struct Sources<'a> {
    pub(super) arena: &'a Arena,
    /// Emptied sink lists, for reuse.
    pub(super) spare: &'a mut Vec<Vec<Buffer>>,
    pub(super) piece: usize,
    /// Bytes of the largest RDMA Read.
    pub(super) max_transfer: usize,
}

impl Sources<'_> {
    fn reads_of(
        &mut self,
        segment: Segment,
        piece: usize,
        out: &mut SmallVec<[ReadRequest; 2]>,
    ) -> Result<(), OutOfMemory> {
        let mut from = segment;
        let mut left = segment.length as usize;
        while left > 0 {
            let n = left.min(self.max_transfer.max(1));
            let mut sink = self.spare.pop().unwrap_or_default();
            let mut room = n;
            while room > 0 {
                let b = self.arena.alloc(room.min(piece))?;
                room -= b.len();
                sink.push(b);
            }
            from.length = n as u32;
            out.push(ReadRequest { id: WorkId(out.len() as u64), from, sink });
            from.offset = from.offset.wrapping_add(n as u64); // Does not wrap: the decoder checked the segment.
            left -= n;
        }
        Ok(())
    }
}

impl Arrival {
    /// A call with `reads` Reads to come.
    pub(super) fn new(to: ReplyTo, inline: Option<View>, shape: Shape, reads: usize) -> Self {
        let sinks = (0..reads).map(|_| Vec::new()).collect();
        Self { to, inline, shape, sinks, outstanding: reads }
    }

    /// Takes the sink of Read `index`; true when it was the last one.
    pub(super) fn arrived(&mut self, index: usize, sink: Vec<Buffer>) -> bool {
        if let Some(slot) = self.sinks.get_mut(index).filter(|s| s.is_empty()) {
            *slot = sink;
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        self.outstanding == 0
    }

    /// The whole call, once all Reads are back.
    pub(super) fn assemble(
        mut self,
        arena: &Arena,
        spare: &mut Vec<Vec<Buffer>>,
    ) -> (ReplyTo, Result<Message, OutOfMemory>) {
        let mut sinks = std::mem::take(&mut self.sinks);
        let mut buffers = sinks.iter_mut().flat_map(|s| s.drain(..));
        let mut message = Message::default();
        match (self.shape.head, self.inline.take()) {
            (Some(len), _) => {
                let parts = gather(&mut buffers, len as u64);
                let one = if parts.iter().count() == 1 { Ok(parts) } else { join(&parts, arena) };
                match one {
                    Ok(head) => message.head = head,
                    Err(e) => return (self.to, Err(e)),
                }
            }
            (None, Some(inline)) => message.head = inline.into(),
            (None, None) => {}
        }
        for p in &self.shape.payloads {
            message.payloads.push(Payload { position: p.at, data: gather(&mut buffers, p.len) });
        }
        drop(buffers);
        spare.extend(sinks);
        (self.to, Ok(message))
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

/// One view of a head that came in several segments (a copy; heads of Long Calls are small, and seldom cut).
fn join(parts: &Views, arena: &Arena) -> Result<Views, OutOfMemory> {
    let mut b = arena.alloc(parts.len())?;
    parts.copy_to(&mut b);
    Ok(b.freeze().into())
}
