//! Record marking (RFC 5531 section 11) without I/O: bytes in and records out, and the other way round.
//!
//! A record is one or more fragments; each begins with four bytes: the top bit marks the last fragment of the record,
//! the other 31 are the number of bytes that follow.

use std::{
    collections::VecDeque,
    io::{IoSlice, IoSliceMut},
};

use millrace_buffer::SPAN_BYTES;
use millrace_xdr::{Arena, Buffer, Message, View, Views};
use smallvec::SmallVec;

use crate::serving::slot_bytes;

const LAST: u32 = 1 << 31;
/// Bytes read past the end of a record that is small or almost here: some hundred small calls or four replies with 4 KiB
/// come with one read. They are copied, which for so few costs less than further reads.
const STASH_BYTES: usize = 16384;
/// Bytes read past the end of a record of which more than [`STASH_BYTES`] are to come. Most often another large one
/// follows, and all but this of it can be read to its place; of one that follows a small record, [`STASH_BYTES`] are
/// copied at most.
const PAST_BULK: usize = 512;
/// Bytes of each buffer of a record that grows as its bytes come. The largest head of a call is shorter.
const PIECE: usize = 64 << 10;
/// Slices in one vectored read without an allocation: a record with 1 MiB of data in pieces of 64 KiB has 17, and the stash
/// is one more.
const ROOM_SLICES: usize = 20;
/// Fragments without bytes that are taken in a row. No sender has a reason for even one.
const MAX_EMPTY_FRAGMENTS: u32 = 16;

/// Why a stream is not one of records that we accept. The connection is of no further use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is longer than the limit.
    #[error("a record of {len} bytes or more, where {max} is the limit")]
    TooLong {
        /// Its length, as far as it is known.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Fragments without bytes, in an endless row.
    #[error("too many empty record fragments in a row")]
    EmptyFragments,
}

/// What [`RecordReader::next_record`] found.
#[derive(Debug)]
pub enum Next {
    /// A whole record.
    Record(Message),
    /// Nothing before more bytes are read.
    NeedBytes,
    /// A record has begun that takes so many more bytes of memory, until they are granted with [`RecordReader::admit`].
    /// Nothing may be read before.
    NeedRoom(usize),
    /// A record has begun for which the arena has no room. Nothing may be read; try again later.
    NoMemory,
}

enum State {
    Header,
    Body { left: usize, last: bool },
}

/// Cuts a stream into records.
///
/// Call [`Self::next_record`] until it needs bytes, read into [`Self::space`], tell [`Self::advance`] how many, and begin
/// again. The bytes are read directly into the record's own buffers, but for the few that came with the record before. A
/// record lies in one buffer (in several only when it is longer than [`SPAN_BYTES`]), or, of a reader made by
/// [`Self::growing`], in buffers of 64 KiB: one at first, the others when that one is full.
pub struct RecordReader {
    arena: Arena,
    max_record: usize,
    /// Bytes of a record's buffers.
    piece: usize,
    /// Bytes of memory that the record may take.
    admitted: usize,
    stash: Box<[u8]>,
    stash_start: usize,
    stash_end: usize,
    state: State,
    parts: SmallVec<[Buffer; 2]>,
    filled: usize,
    empty_fragments: u32,
}

impl RecordReader {
    /// A reader at the start of a stream, for records of at most `max_record` bytes.
    pub fn new(arena: &Arena, max_record: usize) -> Self {
        Self::with(arena, max_record, SPAN_BYTES, usize::MAX)
    }

    /// The same for peers that are not trusted: the memory of the whole record must be admitted first ([`Next::NeedRoom`]),
    /// and all but its first 64 KiB are taken only when these have come, so that an announced length alone takes no more.
    pub fn growing(arena: &Arena, max_record: usize) -> Self {
        Self::with(arena, max_record, PIECE, 0)
    }

    fn with(arena: &Arena, max_record: usize, piece: usize, admitted: usize) -> Self {
        Self {
            arena: arena.clone(),
            max_record,
            piece,
            admitted,
            stash: vec![0; STASH_BYTES].into(),
            stash_start: 0,
            stash_end: 0,
            state: State::Header,
            parts: SmallVec::new(),
            filled: 0,
            empty_fragments: 0,
        }
    }

    /// The next record, if its bytes are here.
    ///
    /// # Errors
    /// [`RecordError`]; the stream is of no use then.
    pub fn next_record(&mut self) -> Result<Next, RecordError> {
        loop {
            match self.state {
                State::Header => {
                    let Some(word) = self.stash[self.stash_start..self.stash_end].first_chunk() else {
                        return Ok(Next::NeedBytes);
                    };
                    let word = u32::from_be_bytes(*word);
                    self.stash_start += 4;
                    self.begin_fragment((word & !LAST) as usize, word & LAST != 0)?;
                }
                State::Body { left, last } => {
                    if let Some(more) = self.lacks(left, last) {
                        return Ok(Next::NeedRoom(more));
                    }
                    if !self.make_room(self.filled + left) {
                        return Ok(Next::NoMemory);
                    }
                    let rest = self.take_from_stash(left);
                    self.state = State::Body { left: rest, last };
                    if rest > 0 && self.stash_start < self.stash_end {
                        continue; // The record grows.
                    }
                    if rest > 0 && self.is_full() {
                        continue;
                    }
                    if rest > 0 {
                        return Ok(Next::NeedBytes);
                    }
                    self.state = State::Header;
                    if last {
                        return Ok(Next::Record(self.finish()));
                    }
                }
            }
        }
    }

    fn begin_fragment(&mut self, len: usize, last: bool) -> Result<(), RecordError> {
        let total = self.filled.saturating_add(len);
        if total > self.max_record {
            return Err(RecordError::TooLong { len: total, max: self.max_record });
        }
        if len == 0 && !last {
            self.empty_fragments += 1;
            if self.empty_fragments > MAX_EMPTY_FRAGMENTS {
                return Err(RecordError::EmptyFragments);
            }
        } else {
            self.empty_fragments = 0;
        }
        self.state = State::Body { left: len, last };
        Ok(())
    }

    /// Memory that the record still has to be admitted for. Of a record that is not in its last fragment the length is not
    /// known: the largest.
    fn lacks(&self, left: usize, last: bool) -> Option<usize> {
        let total = if last { self.filled + left } else { self.max_record };
        let needed = memory_for(total, self.piece);
        needed.checked_sub(self.admitted).filter(|more| *more > 0)
    }

    /// The record that has begun may take `bytes` more of memory.
    pub fn admit(&mut self, bytes: usize) {
        self.admitted = self.admitted.saturating_add(bytes);
    }

    /// What was admitted of memory for the last record, or for the one that has begun if that is to be given up. The next
    /// record is to be admitted anew.
    pub fn take_admitted(&mut self) -> usize {
        std::mem::take(&mut self.admitted)
    }

    fn is_full(&self) -> bool {
        self.parts.iter().map(|p| p.len()).sum::<usize>() == self.filled
    }

    /// Makes the parts hold `total` bytes, or those of the first part until it is full. What further fragments bring may
    /// have to move to a larger buffer; a record in one fragment never moves.
    fn make_room(&mut self, total: usize) -> bool {
        let total = if self.filled < self.piece { total.min(self.piece) } else { total };
        let mut have: usize = self.parts.iter().map(|p| p.len()).sum();
        while have < total {
            let small = match self.parts.last() {
                Some(last) if last.len() < self.piece => {
                    self.parts.pop().map(|small| (small, self.parts.len() * self.piece))
                }
                _ => None,
            };
            let start = self.parts.len() * self.piece;
            let Ok(mut buffer) = self.arena.alloc((total - start).min(self.piece)) else {
                self.parts.extend(small.map(|(small, _)| small));
                return false;
            };
            buffer.set_len(buffer.capacity());
            if let Some((small, _)) = small {
                millrace_buffer::copy(
                    &mut buffer,
                    &small[..self.filled.saturating_sub(start).min(small.len())],
                );
                have -= small.len();
            }
            have += buffer.len();
            self.parts.push(buffer);
        }
        true
    }

    /// The unfilled room of the record, at most `left` bytes, in order.
    fn room(parts: &mut [Buffer], filled: usize, left: usize) -> impl Iterator<Item = &mut [u8]> {
        let (mut skip, mut left) = (filled, left);
        parts.iter_mut().filter_map(move |part| {
            let from = skip.min(part.len());
            skip -= from;
            let room = &mut part[from..];
            let take = room.len().min(left);
            left -= take;
            (take > 0).then(move || &mut room[..take])
        })
    }

    /// Moves what the stash has of the fragment into the record; how much of the fragment is still to come.
    fn take_from_stash(&mut self, left: usize) -> usize {
        let most = left.min(self.stash_end - self.stash_start);
        let mut taken = 0;
        for room in Self::room(&mut self.parts, self.filled, most) {
            millrace_buffer::copy(room, &self.stash[self.stash_start..self.stash_start + room.len()]);
            self.stash_start += room.len();
            taken += room.len();
        }
        self.filled += taken;
        left - taken
    }

    fn finish(&mut self) -> Message {
        let mut head = Views::new();
        let mut left = std::mem::take(&mut self.filled);
        for mut part in self.parts.drain(..) {
            let len = left.min(part.len());
            part.set_len(len);
            head.push(part.freeze());
            left -= len;
        }
        Message { head, ..Message::default() }
    }

    /// Where to read to: the rest of the record at hand first, as far as there is room for it, then the stash. Valid after
    /// [`Self::next_record`] has said [`Next::NeedBytes`]; never empty.
    pub fn space(&mut self) -> SmallVec<[IoSliceMut<'_>; ROOM_SLICES]> {
        if self.stash_start > 0 {
            // At most the three bytes of an incomplete header are moved.
            self.stash.copy_within(self.stash_start..self.stash_end, 0);
            self.stash_end -= self.stash_start;
            self.stash_start = 0;
        }
        let left = match self.state {
            State::Header => 0,
            State::Body { left, .. } => left,
        };
        let mut out: SmallVec<[IoSliceMut<'_>; ROOM_SLICES]> =
            Self::room(&mut self.parts, self.filled, left).map(IoSliceMut::new).collect();
        // The stash takes what follows the record, so only where there is room for all of the record.
        if out.iter().map(|room| room.len()).sum::<usize>() == left {
            let end = if left > STASH_BYTES { PAST_BULK.max(self.stash_end) } else { STASH_BYTES };
            out.push(IoSliceMut::new(&mut self.stash[self.stash_end..end]));
        }
        out
    }

    /// Tells that `n` bytes were read into [`Self::space`].
    pub fn advance(&mut self, n: usize) {
        let mut rest = n;
        if let State::Body { left, .. } = &mut self.state {
            let taken = rest.min(*left);
            *left -= taken;
            self.filled += taken;
            rest -= taken;
        }
        self.stash_end = (self.stash_end + rest).min(self.stash.len());
    }

    /// Gives up the record that has begun, and its memory. The stream is of no use then.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.filled = 0;
    }

    /// Whether the stream may end here: no record has begun.
    pub fn at_record_start(&self) -> bool {
        let begun = !self.parts.is_empty() || self.empty_fragments > 0;
        matches!(self.state, State::Header) && !begun && self.stash_start == self.stash_end
    }
}

/// Bytes of memory that a record of `len` bytes takes in buffers of `piece` bytes.
fn memory_for(len: usize, piece: usize) -> usize {
    let rest = len % piece;
    let last = if rest > 0 { slot_bytes(rest) } else { 0 };
    len - rest + last
}

/// Views in one vectored write. Linux takes 1024; a read of 1 MiB from the memory file system has about 20.
const MAX_SLICES: usize = 64;

struct Outgoing {
    /// The record mark, and the XID where it replaces that of the message.
    prefix: SmallVec<[u8; 8]>,
    views: Views,
    /// Bytes of `views` that the prefix replaces.
    replaced: usize,
}

impl Outgoing {
    fn len(&self) -> usize {
        self.prefix.len() + self.views.len() - self.replaced
    }
}

/// Queues messages as records, and gathers many of them into one vectored write.
///
/// Write [`Self::slices`], tell [`Self::advance`] how many bytes went, until [`Self::queued`] is 0.
pub struct RecordWriter {
    zeros: View,
    queue: VecDeque<Outgoing>,
    /// Bytes of the first record that are written.
    sent: usize,
    queued: usize,
}

impl RecordWriter {
    /// A writer; `zeros` supplies XDR padding and holds at least 3 zero bytes (one view serves any number of writers).
    pub fn new(zeros: View) -> Self {
        Self { zeros, queue: VecDeque::new(), sent: 0, queued: 0 }
    }

    /// Queues `message` as one record of one fragment. With an `xid`, it is sent in the place of the message's own.
    ///
    /// # Errors
    /// [`RecordError::TooLong`] when one fragment cannot hold it (2 GiB); nothing is queued then.
    pub fn push(&mut self, message: &Message, xid: Option<u32>) -> Result<(), RecordError> {
        let views = message.gather(&self.zeros);
        let max = (LAST - 1) as usize;
        if views.len() > max {
            return Err(RecordError::TooLong { len: views.len(), max });
        }
        let mut prefix = SmallVec::from(((views.len() as u32) | LAST).to_be_bytes().as_slice());
        let replaced = if xid.is_some() { views.len().min(4) } else { 0 };
        prefix.extend_from_slice(&xid.unwrap_or_default().to_be_bytes()[..replaced]);
        let out = Outgoing { prefix, views, replaced };
        self.queued += out.len();
        self.queue.push_back(out);
        Ok(())
    }

    /// Bytes that are not written yet.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// What to write next, in order; empty when nothing is queued.
    pub fn slices(&self) -> SmallVec<[IoSlice<'_>; MAX_SLICES]> {
        let mut out = SmallVec::new();
        let mut skip = self.sent;
        for record in &self.queue {
            let mut replaced = record.replaced;
            let views = record.views.iter().map(|v| {
                let cut = replaced.min(v.len());
                replaced -= cut;
                &v[cut..]
            });
            for bytes in std::iter::once(&record.prefix[..]).chain(views) {
                let cut = skip.min(bytes.len());
                skip -= cut;
                if cut < bytes.len() {
                    out.push(IoSlice::new(&bytes[cut..]));
                    if out.len() == MAX_SLICES {
                        return out;
                    }
                }
            }
        }
        out
    }

    /// Tells that the first `n` bytes of [`Self::slices`] were written; memory of records that went whole is released.
    pub fn advance(&mut self, n: usize) {
        let n = n.min(self.queued);
        self.queued -= n;
        self.sent += n;
        while let Some(len) = self.queue.front().map(Outgoing::len).filter(|len| *len <= self.sent) {
            self.sent -= len;
            self.queue.pop_front();
        }
    }

    /// Forgets everything that is queued.
    pub fn clear(&mut self) {
        self.queue.clear();
        (self.sent, self.queued) = (0, 0);
    }
}
