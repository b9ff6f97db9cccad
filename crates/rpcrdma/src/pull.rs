//! Messages whose chunks are pulled by RDMA Read: calls at the responder (RFC 8166 sections 3.4.5 and 3.5.5),
//! and replies at a requester, if a responder exposes them.

use std::collections::VecDeque;

use millrace_buffer::{Arena, Buffer, BufferLengths, OutOfMemory, SPAN_BYTES, View, Views, slot_bytes};
use millrace_rdma::{ReadRequest, Segment, WorkId};
use millrace_xdr::{Message, Payload};
use slab::Slab;
use smallvec::SmallVec;

use crate::{
    chunks::{PayloadPosition, head_offsets, merged, read_chunks},
    header::ReadSegment,
};

/// Maximum number of empty sink lists that are retained for reuse.
const SPARE_SINKS: usize = 64;

/// Layout of a message with Read chunks, validated before the first RDMA Read.
pub struct MessageLayout {
    /// Bytes of the Position-Zero chunk, which contains the head; `None` for an inline message.
    head: Option<usize>,
    /// Positions of the other chunks in the head.
    payloads: SmallVec<[PayloadPosition; 2]>,
}

impl MessageLayout {
    /// Checks that a head in a chunk has at most `head` bytes, and that there is at most one payload, of at
    /// most `payload` bytes.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn fits(&self, head: usize, payload: usize) -> Result<(), &'static str> {
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

/// Sorts and validates a message's Read list. `inline` is the message after the header, `None` for
/// RDMA_NOMSG. `max` is the maximum number of bytes of all chunks together.
///
/// # Errors
/// The reason why the list is invalid.
pub fn check(
    reads: &mut [ReadSegment],
    inline: Option<&View>,
    max: u64,
) -> Result<MessageLayout, &'static str> {
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
    Ok(MessageLayout { head, payloads: head_offsets(reads, head_len as u64)? })
}

/// Allocates the sinks of RDMA Reads.
pub struct Sources<'a> {
    /// Memory for the sinks.
    pub arena: &'a Arena,
    /// Bytes of the buffers in which chunks are placed.
    pub piece: usize,
}

/// An RDMA Read that is not yet posted.
pub struct PlannedRead {
    from: Segment,
    /// The sink, if the caller supplies it.
    into: Option<Buffer>,
}

impl PlannedRead {
    /// Bytes to read.
    fn len(&self) -> usize {
        self.from.length as usize
    }

    /// Bytes of memory that the sink uses.
    pub fn memory(&self, piece: usize) -> usize {
        let rest = self.len() % piece;
        self.len() - rest + if rest > 0 { slot_bytes(rest) } else { 0 }
    }
}

/// The RDMA Reads for a validated list, in stream order. The segment at the position of `into` is read into
/// that buffer; the segment is unique and fits in the buffer.
pub fn plan(
    reads: &[ReadSegment],
    mut into: Option<(u32, Buffer)>,
    max_transfer: usize,
) -> SmallVec<[PlannedRead; 2]> {
    let mut out = SmallVec::new();
    for chunk in read_chunks(reads) {
        for mut from in merged(chunk.segments.iter().map(|r| r.segment)) {
            if let Some((_, buffer)) = into.take_if(|(position, _)| *position == chunk.position) {
                out.push(PlannedRead { from, into: Some(buffer) });
                continue;
            }
            let mut left = from.length as usize;
            while left > 0 {
                let n = left.min(max_transfer.max(1));
                from.length = n as u32;
                out.push(PlannedRead { from, into: None });
                from.offset = from.offset.wrapping_add(n as u64); // Does not wrap: the decoder checked the segment.
                left -= n;
            }
        }
    }
    out
}

/// Bytes of memory that the message needs in addition to its sinks.
pub fn memory_to_join(planned: &[PlannedRead], shape: &MessageLayout, contiguous: usize) -> usize {
    let one = planned.first().map_or(0, PlannedRead::len);
    shape.head.map_or(0, |len| if one < len.min(contiguous) { slot_bytes(len.min(contiguous)) } else { 0 })
}

/// A message with RDMA Reads in flight.
struct Pull<T> {
    of: T,
    inline: Option<View>,
    shape: MessageLayout,
    /// RDMA Reads that are not yet posted, in reverse stream order.
    planned: SmallVec<[PlannedRead; 2]>,
    /// The sink of each RDMA Read in stream order; empty until the RDMA Read completes.
    sinks: SmallVec<[Vec<Buffer>; 2]>,
    /// Number of RDMA Reads that are not complete.
    outstanding: usize,
}

/// Messages with RDMA Reads in flight; `T` is the context of each message.
pub struct Pulls<T> {
    open: Slab<Pull<T>>,
    /// Messages with RDMA Reads that are not yet posted, in order.
    waiting: VecDeque<usize>,
    in_flight: usize,
    /// Bytes at the start of a head that must be contiguous.
    contiguous: usize,
    /// Empty sink lists for reuse.
    spare: Vec<Vec<Buffer>>,
}

impl<T> Pulls<T> {
    /// An empty set. The first `contiguous` bytes of every head will be in one view.
    pub fn new(contiguous: usize) -> Self {
        Self { open: Slab::new(), waiting: VecDeque::new(), in_flight: 0, contiguous, spare: Vec::new() }
    }

    /// RDMA Reads that are posted and not complete.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether there are RDMA Reads to post.
    pub fn has_planned(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds a message with at least one RDMA Read. [`Self::next_read`] returns its RDMA Reads.
    pub fn open(
        &mut self,
        of: T,
        inline: Option<View>,
        shape: MessageLayout,
        mut planned: SmallVec<[PlannedRead; 2]>,
    ) {
        let sinks = planned.iter().map(|_| Vec::new()).collect();
        let outstanding = planned.len();
        planned.reverse();
        self.waiting.push_back(self.open.insert(Pull { of, inline, shape, planned, sinks, outstanding }));
    }

    /// Returns the next RDMA Read to post, with its sink, and the context of its message.
    ///
    /// # Errors
    /// There is no memory. The next call returns the same RDMA Read.
    pub fn next_read(&mut self, sources: &Sources<'_>) -> Result<Option<(ReadRequest, &mut T)>, OutOfMemory> {
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

    /// Records the completion of an RDMA Read. Returns the message's number if all its RDMA Reads are
    /// complete.
    pub fn completed(&mut self, id: WorkId, sink: Vec<Buffer>) -> Option<usize> {
        let (at, index) = ((id.0 >> 32) as usize, (id.0 & 0xffff_ffff) as usize);
        self.in_flight = self.in_flight.saturating_sub(1);
        let pull = self.open.get_mut(at)?;
        if let Some(slot) = pull.sinks.get_mut(index).filter(|s| s.is_empty()) {
            *slot = sink;
            pull.outstanding = pull.outstanding.saturating_sub(1);
        }
        (pull.outstanding == 0).then_some(at)
    }

    /// Removes the message that was added last, for which `reads` RDMA Reads were returned and not posted.
    pub fn cancel_last(&mut self, reads: usize) {
        self.in_flight -= reads;
        if let Some(at) = self.waiting.pop_back() {
            self.open.try_remove(at);
        }
    }

    /// Removes a message whose RDMA Reads are complete.
    pub fn drop_at(&mut self, at: usize) -> Option<T> {
        self.open.try_remove(at).map(|pull| pull.of)
    }

    /// Takes a message whose RDMA Reads are complete; `None` if it does not exist.
    ///
    /// # Errors
    /// There is no memory to make the start of its head contiguous. The message remains; the caller can try
    /// again.
    pub fn take(&mut self, at: usize, arena: &Arena) -> Option<Result<(T, Message), OutOfMemory>> {
        let pull = self.open.get_mut(at)?;
        let merged = match pull.head_to_join(self.contiguous) {
            Some(len) => match arena.alloc(len) {
                Ok(buffer) => Some(buffer),
                Err(e) => return Some(Err(e)),
            },
            None => None,
        };
        let mut pull = self.open.try_remove(at)?;
        let mut sinks = std::mem::take(&mut pull.sinks);
        let message = pull.assemble(sinks.iter_mut().flat_map(|s| s.drain(..)), merged);
        self.spare.extend(sinks);
        self.spare.truncate(SPARE_SINKS);
        Some(Ok((pull.of, message)))
    }
}

/// Allocates buffers for `len` bytes, or none.
fn fill(sink: &mut Vec<Buffer>, len: usize, sources: &Sources<'_>) -> Result<(), OutOfMemory> {
    for buffer in sources.arena.alloc_all(BufferLengths::new(len, sources.piece)) {
        let buffer = buffer.inspect_err(|_| sink.clear())?;
        sink.push(buffer);
    }
    Ok(())
}

impl<T> Pull<T> {
    /// Bytes of the head to copy so that its first `contiguous` bytes are in one view; `None` if they are.
    fn head_to_join(&self, contiguous: usize) -> Option<usize> {
        let needed = self.shape.head?.min(contiguous);
        let first = self.sinks.iter().flatten().next().map_or(0, |b| b.len());
        (first < needed).then_some(needed)
    }

    /// Builds the message from its inline part and the filled sinks. `merged` receives a copy of the start of
    /// the head.
    fn assemble(&mut self, mut buffers: impl Iterator<Item = Buffer>, merged: Option<Buffer>) -> Message {
        let mut message = Message::default();
        match (self.shape.head, self.inline.take()) {
            (Some(len), _) => {
                let parts = take_bytes(&mut buffers, len as u64);
                message.head = match merged {
                    Some(buffer) => join(&parts, buffer),
                    None => parts,
                };
            }
            (None, Some(inline)) => message.head = inline.into(),
            (None, None) => {}
        }
        for p in &self.shape.payloads {
            message.payloads.push(Payload { position: p.at, data: take_bytes(&mut buffers, p.len) });
        }
        message
    }
}

/// The next `len` bytes of `buffers`. RDMA Reads end at chunk boundaries, so this takes whole buffers.
fn take_bytes(buffers: &mut impl Iterator<Item = Buffer>, len: u64) -> Views {
    let mut out = Views::new();
    while (out.len() as u64) < len {
        let Some(b) = buffers.next() else { break };
        out.push(b.freeze());
    }
    out
}

/// Copies the start of a head that spans several segments into `buffer`. Heads are small and rarely split.
fn join(parts: &Views, mut buffer: Buffer) -> Views {
    let len = buffer.len();
    parts.slice(0, len).copy_to(&mut buffer);
    let mut out = Views::from(buffer.freeze());
    out.extend(parts.slice(len, parts.len() - len).iter().cloned());
    out
}
