//! Record marking (RFC 5531 section 11) without I/O.
//!
//! A record consists of one or more fragments. Each starts with four bytes: the top bit marks the last
//! fragment of the record, the other 31 bits are the length of the fragment in bytes.

use std::{
    collections::VecDeque,
    io::{IoSlice, IoSliceMut},
};

use millrace_xdr::{Arena, Buffer, Message, View, Views};
use smallvec::SmallVec;

use millrace_buffer::{BufferLengths, OutOfMemory, SPAN_BYTES, Stash, slot_bytes};

const LAST: u32 = 1 << 31;
/// Bytes read beyond the end of a small or nearly complete record: at a server one read returns about a hundred small calls.
/// Copying them costs less than further reads.
pub(super) const STASH_BYTES: usize = 16384;
/// Bytes that a client reads beyond the end of a record of at most [`STASH_BYTES`] once there were more than that many:
/// sixteen replies of 4 KiB. After a larger record it reads less again, because another large one may follow, whose data is
/// not to be copied.
const PAST_SMALL: usize = 72 << 10;
/// Bytes read beyond the end of a record of which more than [`STASH_BYTES`] are missing. Usually another
/// large record follows, and all but these bytes of it can be read directly to their destination. Of a
/// record after a small one, the bytes that were read with that one are copied.
const PAST_BULK: usize = 512;
/// Bytes of each buffer of a growing record. The largest head of a call is shorter.
const PIECE: usize = 64 << 10;
/// Bytes of a record that [`Next::Large`] provides: more than a reply to READ, or usually a call of WRITE, has before its
/// data, and less than `PAST_BULK`, so that in a sequence of large records they are received with the preceding one.
pub const START_BYTES: usize = 256;
/// Slices of one vectored read without an allocation: a record with 1 MiB of data in pieces of 64 KiB has 18,
/// and the stash is one more.
const READ_SLICES: usize = 20;
/// Maximum number of consecutive empty fragments. Senders have no reason for any.
const MAX_EMPTY_FRAGMENTS: u32 = 16;

/// An invalid stream. The connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is longer than the limit.
    #[error("a record of {len} bytes or more, where {max} is the limit")]
    TooLong {
        /// Length of the received fragments in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The stream has text where a record begins: it belongs to another protocol, such as HTTP or SSH.
    #[error("the peer does not speak RPC: it sends {:?}", String::from_utf8_lossy(text))]
    Text {
        /// The first bytes.
        text: [u8; 4],
    },
    /// Too many consecutive empty fragments.
    #[error("too many empty record fragments in a row")]
    EmptyFragments,
}

/// Result of [`RecordReader::next_record`].
#[derive(Debug)]
pub enum Next {
    /// A complete record.
    Record(Message),
    /// More bytes must be read.
    NeedBytes,
    /// The record that starts has this many bytes, and the first [`START_BYTES`] of them are received
    /// ([`RecordReader::start`]). The caller may provide memory for a part of it ([`RecordReader::place`]) in a reader of
    /// [`RecordReader::placing`], and choose where its second buffer starts ([`RecordReader::align`]) in one of
    /// [`RecordReader::growing`]. Others do not return it.
    Large(usize),
    /// A record needs this many more bytes of memory. No bytes may be read before [`RecordReader::admit`].
    NeedAdmission(usize),
    /// The arena has no memory for the record. No bytes may be read; try again later.
    NoMemory(OutOfMemory),
}

enum State {
    Header,
    Body { left: usize, last: bool },
}

/// Decodes the records of a stream.
///
/// Call [`Self::next_record`] until it needs bytes, read into [`Self::space`], pass the number of bytes to
/// [`Self::advance`], and repeat. Bytes are read directly into the record's buffers, except those that were
/// read with the preceding record. A record occupies one buffer (several if it is longer than
/// [`SPAN_BYTES`]), or, in a reader from [`Self::growing`], buffers of 64 KiB: initially one, and the others
/// when that one is full, and the caller can choose where the second one starts in a large record. In a reader from
/// [`Self::placing`] the caller can provide the buffer for a part of a large one.
pub struct RecordReader {
    arena: Arena,
    max_record: usize,
    /// Bytes of each buffer of a record.
    piece: usize,
    /// Bytes of memory that the record may use.
    admitted: usize,
    /// A record of one fragment is large if it has more bytes than this: the caller decides on its memory.
    large: usize,
    /// Whether it is to be asked for the current one.
    unasked: bool,
    /// The memory that it has provided, and its position in the record.
    placed: Option<(usize, Buffer)>,
    /// Bytes of the record's first buffer, if the caller has chosen where the second one starts; 0 otherwise.
    before: usize,
    stash: Stash,
    /// Bytes to read beyond the end of a record of at most [`STASH_BYTES`]: this number, or `most_past_small` after a read that
    /// was full.
    past_small: usize,
    most_past_small: usize,
    /// Bytes to read beyond the end of the current record.
    past_end: usize,
    state: State,
    parts: SmallVec<[Buffer; 3]>,
    filled: usize,
    empty_fragments: u32,
}

impl RecordReader {
    /// Creates a reader at the start of a stream, for records of at most `max_record` bytes.
    pub fn new(arena: &Arena, max_record: usize) -> Self {
        Self::with(arena, max_record, SPAN_BYTES, usize::MAX)
    }

    /// As [`Self::new`], for untrusted peers: the memory of the whole record must be admitted first
    /// ([`Next::NeedAdmission`]), and memory beyond the first 64 KiB is allocated when those are received, so
    /// an announced length alone allocates at most 64 KiB. Returns [`Next::Large`] for each record of one fragment that has
    /// several buffers.
    pub fn growing(arena: &Arena, max_record: usize) -> Self {
        Self { large: PIECE, ..Self::with(arena, max_record, PIECE, 0) }
    }

    /// As [`Self::new`], and returns [`Next::Large`] for each record of one fragment that is longer than 16 KiB.
    pub fn placing(arena: &Arena, max_record: usize) -> Self {
        Self { large: STASH_BYTES, most_past_small: PAST_SMALL, ..Self::new(arena, max_record) }
    }

    fn with(arena: &Arena, max_record: usize, piece: usize, admitted: usize) -> Self {
        Self {
            arena: arena.clone(),
            max_record,
            piece,
            admitted,
            large: usize::MAX,
            unasked: false,
            placed: None,
            before: 0,
            stash: Stash::default(),
            past_small: STASH_BYTES,
            most_past_small: STASH_BYTES,
            past_end: STASH_BYTES,
            state: State::Header,
            parts: SmallVec::new(),
            filled: 0,
            empty_fragments: 0,
        }
    }

    /// Returns the next record if it is completely received.
    ///
    /// # Errors
    /// [`RecordError`]; the stream must be closed.
    pub fn next_record(&mut self) -> Result<Next, RecordError> {
        loop {
            match self.state {
                State::Header => {
                    let Some(word) = self.stash.bytes().first_chunk() else {
                        return Ok(Next::NeedBytes);
                    };
                    let word = u32::from_be_bytes(*word);
                    self.stash.consume(4);
                    self.begin_fragment((word & !LAST) as usize, word & LAST != 0)?;
                }
                State::Body { left, .. } if self.unasked => {
                    if self.start().len() < START_BYTES {
                        return Ok(Next::NeedBytes);
                    }
                    self.unasked = false;
                    return Ok(Next::Large(left));
                }
                State::Body { left, last } => {
                    if let Some(more) = self.missing_admission(left, last) {
                        return Ok(Next::NeedAdmission(more));
                    }
                    if let Err(e) = self.reserve(self.filled + left) {
                        return Ok(Next::NoMemory(e));
                    }
                    let rest = self.take_from_stash(left);
                    self.state = State::Body { left: rest, last };
                    if rest > 0 && !self.stash.is_empty() {
                        continue; // The record gets another buffer.
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
            let text = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
            if self.filled == 0 && !last && text.iter().all(|b| matches!(b, b' '..=b'~')) {
                return Err(RecordError::Text { text });
            }
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
        if len > STASH_BYTES {
            self.past_small = STASH_BYTES;
        }
        self.past_end = self.past_small;
        self.unasked = last && self.filled == 0 && len > self.large;
        self.state = State::Body { left: len, last };
        Ok(())
    }

    /// After [`Next::Large`]: the received bytes of the record, at least [`START_BYTES`].
    pub fn start(&self) -> &[u8] {
        let len = match self.state {
            State::Body { left, .. } => left,
            State::Header => 0,
        };
        &self.stash.bytes()[..self.stash.len().min(len)]
    }

    /// After [`Next::Large`]: has the record's bytes from `offset` on received in `buffer`, as many as its length. In the
    /// returned message they are a view of it. Ignored if the record has fewer bytes.
    pub fn place(&mut self, offset: usize, buffer: Buffer) {
        let State::Body { left, .. } = self.state else { return };
        if offset.checked_add(buffer.len()).is_some_and(|end| end <= left) {
            self.placed = Some((offset, buffer));
        }
    }

    /// After [`Next::Large`] of a reader of [`Self::growing`]: has the record's second buffer start with the byte at `offset`,
    /// so that a file system can keep the data from there on without a copy. Ignored if the record has fewer bytes, or
    /// `offset` is 0 or above 64 KiB.
    pub fn align(&mut self, offset: usize) {
        if let State::Body { left, .. } = self.state
            && offset < left
            && offset <= PIECE
        {
            self.before = offset;
        }
    }

    /// Memory that must still be admitted for the record. Before the last fragment the length is unknown, and
    /// the maximum is assumed.
    fn missing_admission(&self, left: usize, last: bool) -> Option<usize> {
        let total = if last { self.filled + left } else { self.max_record };
        let needed = memory_for(self.before, self.piece) + memory_for(total - self.before, self.piece);
        needed.checked_sub(self.admitted).filter(|more| *more > 0)
    }

    /// Admits `bytes` more of memory for the current record.
    pub fn admit(&mut self, bytes: usize) {
        self.admitted = self.admitted.saturating_add(bytes);
    }

    /// Takes the admitted bytes of the last record, or of the current one if it is to be dropped. The next
    /// record must be admitted again.
    pub fn take_admitted(&mut self) -> usize {
        std::mem::take(&mut self.admitted)
    }

    fn is_full(&self) -> bool {
        self.parts.iter().map(|p| p.len()).sum::<usize>() == self.filled
    }

    /// Reserves buffers for `total` bytes, or for the first buffer until it is full. Further fragments may
    /// move to a larger buffer; a record in one fragment never moves.
    fn reserve(&mut self, total: usize) -> Result<(), OutOfMemory> {
        if let Some((offset, buffer)) = self.placed.take() {
            return self.reserve_around(offset, buffer, total);
        }
        let first = self.before + self.piece;
        let total = if self.filled < first { total.min(first) } else { total };
        let mut have: usize = self.parts.iter().map(|p| p.len()).sum();
        while have < total {
            let small = self.pop_incomplete();
            have -= small.as_ref().map_or(0, |small| small.len());
            let end = if have < self.before { self.before } else { total.min(have + self.piece) };
            let mut buffer = match self.arena.alloc(end - have) {
                Ok(buffer) => buffer,
                Err(e) => {
                    self.parts.extend(small);
                    return Err(e);
                }
            };
            buffer.set_len(if end == self.before { end } else { buffer.capacity() });
            if let Some(small) = small {
                let received = self.filled.saturating_sub(have).min(small.len());
                millrace_buffer::copy(&mut buffer, &small[..received]);
            }
            have += buffer.len();
            self.parts.push(buffer);
        }
        Ok(())
    }

    /// Takes the last buffer if a larger one replaces it when the record grows.
    fn pop_incomplete(&mut self) -> Option<Buffer> {
        let kept = usize::from(self.before > 0);
        let incomplete =
            self.parts.len() > kept && self.parts.last().is_some_and(|last| last.len() < self.piece);
        if incomplete { self.parts.pop() } else { None }
    }

    /// Reserves buffers for the parts of a record of `total` bytes before and after `placed`, which is at `offset`.
    fn reserve_around(&mut self, offset: usize, placed: Buffer, total: usize) -> Result<(), OutOfMemory> {
        let rest = total - offset - placed.len();
        let first = if offset > 0 { offset } else { rest };
        let around = BufferLengths::starting(first, offset + rest, rest);
        match self.arena.alloc_all(around).collect::<Result<SmallVec<[Buffer; 3]>, _>>() {
            Ok(mut parts) => {
                if !placed.is_empty() {
                    parts.insert(usize::from(offset > 0), placed);
                }
                self.parts.append(&mut parts);
                Ok(())
            }
            Err(e) => {
                self.placed = Some((offset, placed));
                Err(e)
            }
        }
    }

    /// The unfilled memory of the record, at most `left` bytes, in order.
    fn unfilled(parts: &mut [Buffer], filled: usize, left: usize) -> impl Iterator<Item = &mut [u8]> {
        let (mut skip, mut left) = (filled, left);
        parts.iter_mut().filter_map(move |part| {
            let from = skip.min(part.len());
            skip -= from;
            let unfilled = &mut part[from..];
            let take = unfilled.len().min(left);
            left -= take;
            (take > 0).then(move || &mut unfilled[..take])
        })
    }

    /// Moves bytes of the current fragment from the stash to the record. Returns the number of missing bytes.
    fn take_from_stash(&mut self, left: usize) -> usize {
        let most = left.min(self.stash.len());
        let mut taken = 0;
        for unfilled in Self::unfilled(&mut self.parts, self.filled, most) {
            let end = taken + unfilled.len();
            millrace_buffer::copy(unfilled, &self.stash.bytes()[taken..end]);
            taken = end;
        }
        self.stash.consume(taken);
        self.filled += taken;
        left - taken
    }

    fn finish(&mut self) -> Message {
        let mut head = Views::new();
        let mut left = std::mem::take(&mut self.filled);
        self.before = 0;
        for mut part in self.parts.drain(..) {
            let len = left.min(part.len());
            part.set_len(len);
            head.push(part.freeze());
            left -= len;
        }
        Message { head, ..Message::default() }
    }

    /// Memory for the next read: the rest of the current record as far as it has buffers, then the stash.
    /// Valid after [`Next::NeedBytes`]; never empty.
    pub fn space(&mut self) -> SmallVec<[IoSliceMut<'_>; READ_SLICES]> {
        let left = match self.state {
            State::Header => 0,
            // Few bytes, as between large records: the others are read to their destination.
            State::Body { .. } if self.unasked => {
                let room = PAST_BULK - self.stash.len();
                return [IoSliceMut::new(self.stash.room(room))].into_iter().collect();
            }
            State::Body { left, .. } => left,
        };
        let mut out: SmallVec<[IoSliceMut<'_>; READ_SLICES]> =
            Self::unfilled(&mut self.parts, self.filled, left).map(IoSliceMut::new).collect();
        // The stash receives bytes after the record, so only if the record has all its buffers.
        if out.iter().map(|unfilled| unfilled.len()).sum::<usize>() == left {
            let most = if left > STASH_BYTES { PAST_BULK } else { self.past_end };
            out.push(IoSliceMut::new(self.stash.room(most.saturating_sub(self.stash.len()))));
        }
        out
    }

    /// Records that `n` bytes were read into [`Self::space`].
    pub fn advance(&mut self, n: usize) {
        let mut rest = n;
        if let State::Body { left, .. } = &mut self.state
            && !self.unasked
        {
            let taken = rest.min(*left);
            *left -= taken;
            self.filled += taken;
            rest -= taken;
        }
        self.stash.commit(rest);
        if self.stash.len() >= STASH_BYTES {
            self.past_small = self.most_past_small;
        }
    }

    /// Returns memory that is not needed while the peer sends nothing.
    pub fn shrink(&mut self) {
        self.stash.shrink();
    }

    /// Drops the current record and its memory. The stream must be closed.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.placed = None;
        self.before = 0;
        self.filled = 0;
    }

    /// Whether the stream may end here, because no record has started.
    pub fn at_record_start(&self) -> bool {
        let begun = !self.parts.is_empty() || self.empty_fragments > 0;
        matches!(self.state, State::Header) && !begun && self.stash.is_empty()
    }
}

/// Bytes of memory that a record of `len` bytes uses in buffers of `piece` bytes.
fn memory_for(len: usize, piece: usize) -> usize {
    let rest = len % piece;
    let last = if rest > 0 { slot_bytes(rest) } else { 0 };
    len - rest + last
}

/// Maximum number of views in one vectored write. Linux accepts 1024; a READ of 1 MiB from the memory file
/// system has about 20.
const MAX_SLICES: usize = 64;

struct QueuedRecord {
    /// The record mark, and the XID if it replaces that of the message.
    prefix: SmallVec<[u8; 8]>,
    views: Views,
    /// Bytes of `views` that the prefix replaces.
    replaced: usize,
}

impl QueuedRecord {
    fn len(&self) -> usize {
        self.prefix.len() + self.views.len() - self.replaced
    }
}

/// Queues messages as records, and combines them into vectored writes.
///
/// Write [`Self::slices`] and pass the number of written bytes to [`Self::advance`], until [`Self::queued`]
/// is 0.
pub struct RecordWriter {
    zeros: View,
    queue: VecDeque<QueuedRecord>,
    /// Written bytes of the first record.
    sent: usize,
    queued: usize,
}

impl RecordWriter {
    /// Creates a writer. `zeros` supplies XDR padding and contains at least 3 zero bytes; writers may share
    /// one view.
    pub fn new(zeros: View) -> Self {
        Self { zeros, queue: VecDeque::new(), sent: 0, queued: 0 }
    }

    /// Queues `message` as one record of one fragment. An `xid` replaces that of the message.
    ///
    /// # Errors
    /// [`RecordError::TooLong`] if the message does not fit in one fragment (2 GiB); it is not queued.
    pub fn push(&mut self, message: &Message, xid: Option<u32>) -> Result<(), RecordError> {
        let views = message.gather(&self.zeros);
        let max = (LAST - 1) as usize;
        if views.len() > max {
            return Err(RecordError::TooLong { len: views.len(), max });
        }
        let mut prefix = SmallVec::from(((views.len() as u32) | LAST).to_be_bytes().as_slice());
        let replaced = if xid.is_some() { views.len().min(4) } else { 0 };
        prefix.extend_from_slice(&xid.unwrap_or_default().to_be_bytes()[..replaced]);
        let out = QueuedRecord { prefix, views, replaced };
        self.queued += out.len();
        self.queue.push_back(out);
        Ok(())
    }

    /// Bytes that are not written yet.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// The next bytes to write, in order; empty if the queue is empty.
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

    /// Records that the first `n` bytes of [`Self::slices`] were written, and releases completely written
    /// records.
    pub fn advance(&mut self, n: usize) {
        let n = n.min(self.queued);
        self.queued -= n;
        self.sent += n;
        while let Some(len) = self.queue.front().map(QueuedRecord::len).filter(|len| *len <= self.sent) {
            self.sent -= len;
            self.queue.pop_front();
        }
    }

    /// Drops all queued records.
    pub fn clear(&mut self) {
        self.queue.clear();
        (self.sent, self.queued) = (0, 0);
    }
}
