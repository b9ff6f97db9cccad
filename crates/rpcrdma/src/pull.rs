//! Messages whose chunks are pulled by RDMA Read: calls at the responder (RFC 8166 sections 3.4.5, 3.5.5), and replies
//! at the requester of the Read-Read design.

use std::collections::VecDeque;

use millrace_buffer::{Arena, Buffer, OutOfMemory, SPAN_BYTES, View, Views};
use millrace_oncrpc::serving::slot_bytes;
use millrace_rdma::{ReadRequest, Segment, WorkId};
use millrace_xdr::{Message, Payload};
use slab::Slab;
use smallvec::SmallVec;

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
    /// Bytes of the buffers into which chunks are placed.
    pub(crate) piece: usize,
}

/// A Read that is not posted yet.
pub(crate) struct Planned {
    from: Segment,
    /// The buffer into which it is read, if that is given.
    into: Option<Buffer>,
}

impl Planned {
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.from.length as usize
    }

    /// Bytes of memory that its sink takes.
    pub(crate) fn memory(&self, piece: usize) -> usize {
        let rest = self.len() % piece;
        self.len() - rest + if rest > 0 { slot_bytes(rest) } else { 0 }
    }
}

/// The Reads of a checked list, in stream order. The one segment at the position of `into` is read into that buffer; it
/// is not longer.
pub(crate) fn plan(
    reads: &[ReadSegment],
    mut into: Option<(u32, Buffer)>,
    max_transfer: usize,
) -> SmallVec<[Planned; 2]> {
    let mut out = SmallVec::new();
    for chunk in read_chunks(reads) {
        for mut from in joined(chunk.segments.iter().map(|r| r.segment)) {
            if let Some((_, buffer)) = into.take_if(|(position, _)| *position == chunk.position) {
                out.push(Planned { from, into: Some(buffer) });
                continue;
            }
            let mut left = from.length as usize;
            while left > 0 {
                let n = left.min(max_transfer.max(1));
                from.length = n as u32;
                out.push(Planned { from, into: None });
                from.offset = from.offset.wrapping_add(n as u64); // Does not wrap: the decoder checked the segment.
                left -= n;
            }
        }
    }
    out
}

/// Bytes of memory that the message needs beside its sinks.
pub(crate) fn memory_to_join(planned: &[Planned], shape: &Shape, contiguous: usize) -> usize {
    let one = planned.first().map_or(0, Planned::len);
    shape.head.map_or(0, |len| if one < len.min(contiguous) { slot_bytes(len.min(contiguous)) } else { 0 })
}

/// A message with Reads in flight.
struct Pull<T> {
    of: T,
    inline: Option<View>,
    shape: Shape,
    /// Its Reads that are not posted yet, in stream order from the end.
    planned: SmallVec<[Planned; 2]>,
    /// The sink of each Read in stream order; empty until it is back.
    sinks: SmallVec<[Vec<Buffer>; 2]>,
    /// Reads that are not back.
    outstanding: usize,
}

/// Messages with Reads in flight; `T` says what each belongs to.
pub(crate) struct Pulls<T> {
    open: Slab<Pull<T>>,
    /// Those with Reads that are not posted yet, in order.
    waiting: VecDeque<usize>,
    in_flight: usize,
    /// How many bytes of a head must be in one view.
    contiguous: usize,
    /// Emptied sink lists, for reuse.
    spare: Vec<Vec<Buffer>>,
}

impl<T> Pulls<T> {
    /// No message. Of the head of each, so many bytes will be in one view.
    pub(crate) fn new(contiguous: usize) -> Self {
        Self { open: Slab::new(), waiting: VecDeque::new(), in_flight: 0, contiguous, spare: Vec::new() }
    }

    /// Reads that are posted and not back.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether Reads are to be posted.
    pub(crate) fn has_planned(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Begins a message. Its Reads are posted with [`Self::next_read`]; it has at least one.
    pub(crate) fn open(
        &mut self,
        of: T,
        inline: Option<View>,
        shape: Shape,
        mut planned: SmallVec<[Planned; 2]>,
    ) {
        let sinks = planned.iter().map(|_| Vec::new()).collect();
        let outstanding = planned.len();
        planned.reverse();
        self.waiting.push_back(self.open.insert(Pull { of, inline, shape, planned, sinks, outstanding }));
    }

    /// The next Read to post, with memory for it, and what it belongs to.
    ///
    /// # Errors
    /// When there is no memory; it is still the next one then.
    pub(crate) fn next_read(
        &mut self,
        sources: &Sources<'_>,
    ) -> Result<Option<(ReadRequest, &mut T)>, OutOfMemory> {
        let Self { open, waiting, spare, in_flight, .. } = self;
        let Some(at) = waiting.front().copied() else { return Ok(None) };
        let Some(pull) = open.get_mut(at) else { return Ok(None) };
        let index = pull.sinks.len() - pull.planned.len();
        let Some(planned) = pull.planned.last_mut() else { return Ok(None) };
        let mut sink = spare.pop().unwrap_or_default();
        match planned.into.take() {
            Some(mut buffer) => {
                buffer.set_len(planned.len());
                sink.push(buffer);
            }
            None => fill(&mut sink, planned.len(), sources)?,
        }
        let from = planned.from;
        pull.planned.pop();
        if pull.planned.is_empty() {
            waiting.pop_front();
        }
        *in_flight += 1;
        Ok(Some((ReadRequest { id: WorkId((at as u64) << 32 | index as u64), from, sink }, &mut pull.of)))
    }

    /// A Read is back; the number of its message when that is all here.
    pub(crate) fn completed(&mut self, id: WorkId, sink: Vec<Buffer>) -> Option<usize> {
        let (at, index) = ((id.0 >> 32) as usize, (id.0 & 0xffff_ffff) as usize);
        self.in_flight = self.in_flight.saturating_sub(1);
        let pull = self.open.get_mut(at)?;
        if let Some(slot) = pull.sinks.get_mut(index).filter(|s| s.is_empty()) {
            *slot = sink;
            pull.outstanding = pull.outstanding.saturating_sub(1);
        }
        (pull.outstanding == 0).then_some(at)
    }

    /// Gives up the message that was begun last, of which `reads` Reads were taken and not posted.
    pub(crate) fn abandon(&mut self, reads: usize) {
        self.in_flight -= reads;
        if let Some(at) = self.waiting.pop_back() {
            self.open.try_remove(at);
        }
    }

    /// Gives up a message that is all here.
    pub(crate) fn drop_at(&mut self, at: usize) -> Option<T> {
        self.open.try_remove(at).map(|pull| pull.of)
    }

    /// Takes a message that is all here.
    ///
    /// # Errors
    /// When there is no memory to put its head together; it can be tried again. `None`: there is no such message.
    pub(crate) fn take(&mut self, at: usize, arena: &Arena) -> Option<Result<(T, Message), OutOfMemory>> {
        let pull = self.open.get_mut(at)?;
        let joined = match pull.head_to_join(self.contiguous) {
            Some(len) => match arena.alloc(len) {
                Ok(buffer) => Some(buffer),
                Err(e) => return Some(Err(e)),
            },
            None => None,
        };
        let mut pull = self.open.try_remove(at)?;
        let mut sinks = std::mem::take(&mut pull.sinks);
        let message = pull.assemble(sinks.iter_mut().flat_map(|s| s.drain(..)), joined);
        self.spare.extend(sinks);
        self.spare.truncate(SPARE_SINKS);
        Some(Ok((pull.of, message)))
    }
}

/// Takes buffers for `len` bytes, or none.
fn fill(sink: &mut Vec<Buffer>, len: usize, sources: &Sources<'_>) -> Result<(), OutOfMemory> {
    let mut room = len;
    while room > 0 {
        match sources.arena.alloc(room.min(sources.piece)) {
            Ok(b) => {
                room -= b.len();
                sink.push(b);
            }
            Err(e) => {
                sink.clear();
                return Err(e);
            }
        }
    }
    Ok(())
}

impl<T> Pull<T> {
    /// How much of the head has to be copied so that its first `contiguous` bytes are in one view.
    fn head_to_join(&self, contiguous: usize) -> Option<usize> {
        let needed = self.shape.head?.min(contiguous);
        let first = self.sinks.iter().flatten().next().map_or(0, |b| b.len());
        (first < needed).then_some(needed)
    }

    /// The whole message from its inline part and the filled sinks. The beginning of the head goes to `joined`, if that is
    /// given.
    fn assemble(&mut self, mut buffers: impl Iterator<Item = Buffer>, joined: Option<Buffer>) -> Message {
        let mut message = Message::default();
        match (self.shape.head, self.inline.take()) {
            (Some(len), _) => {
                let parts = gather(&mut buffers, len as u64);
                message.head = match joined {
                    Some(buffer) => join(&parts, buffer),
                    None => parts,
                };
            }
            (None, Some(inline)) => message.head = inline.into(),
            (None, None) => {}
        }
        for p in &self.shape.payloads {
            message.payloads.push(Payload { position: p.at, data: gather(&mut buffers, p.len) });
        }
        message
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

/// A head whose beginning came in several segments, with as much of it in one view as `buffer` holds (a copy; heads are
/// small, and seldom cut).
fn join(parts: &Views, mut buffer: Buffer) -> Views {
    let len = buffer.len();
    parts.slice(0, len).copy_to(&mut buffer);
    let mut out = Views::from(buffer.freeze());
    out.extend(parts.slice(len, parts.len() - len).iter().cloned());
    out
}
