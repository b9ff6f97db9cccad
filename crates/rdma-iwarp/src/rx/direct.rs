//! Placement of payload directly from the stream into its region, and prediction of the FPDUs that follow.
//!
//! ```text
//! readv: [rest of the payload -> region] ([trailer, next header -> scratch] [next payload -> region])*
//! [stash]
//! ```
//!
//! A *prediction* is the expected header of a following FPDU: same message, consecutive offset, and the same
//! length or the remainder of the region or Read. After the read, each received header is compared with its
//! prediction before its payload counts as placed. At the first difference, all bytes from that header on are
//! moved, in stream order, to the stash and processed there. So a wrong prediction costs a copy but never
//! misplaces data: predictions refer only to memory in which no data was placed (for Writes, beyond the
//! region's high-water mark; for Reads, sinks whose data is outstanding), always within the region of the
//! same tag, and bytes that a wrong prediction left there are zeroed.

use std::{
    io::IoSliceMut,
    task::{Context, Poll, ready},
};

use millrace_buffer::{Stash, scratch};
use millrace_runtime::ByteStream;
use smallvec::SmallVec;

use super::{Rx, RxContext, tagged::OpenFpdu};
use crate::{
    fault::Fault,
    reads::{Reads, parts_from},
    wire::{crc::Crc, ddp::Tagged, fpdu, rdmap::Opcode, terminate::ErrorCode},
};

/// Maximum number of pieces in one read: IOV_MAX of the kernel.
const MAX_PIECES: usize = 1024;
/// Maximum number of predicted FPDUs per read. The actual limit adapts to the number of FPDUs that arrive per
/// read, because each prediction costs time whether or not it is right.
const MAX_PREDICTIONS: usize = MAX_PIECES / 2;
const MIN_PREDICTIONS: usize = 32;
/// Maximum payload bytes to predict per read: the usual maximum NFS transfer size.
const MAX_DEPTH: usize = 1 << 20;
/// The same with CRC: the data is still in the processor cache when its CRC is computed.
const MAX_CRC_DEPTH: usize = 256 << 10;
const MIN_DEPTH: usize = 8 << 10;
/// Length field and header of a tagged FPDU.
const HEAD: usize = fpdu::LENGTH_BYTES + Tagged::BYTES;
/// Size of the scratch memory for trailers and headers of all predictions.
const SCRATCH: usize = MAX_PREDICTIONS * (fpdu::MAX_TRAILER + HEAD);
/// Number of consecutive Read Responses, each directly after another, from which on the next one is predicted
/// to follow directly too; likewise of Writes that continue at the end of the previous one.
const CHAIN: u32 = 2;

type Pieces<'a> = SmallVec<[IoSliceMut<'a>; MAX_PIECES]>;

/// State of the prediction.
#[derive(Debug)]
pub(super) struct Direct {
    predictions: Vec<OpenFpdu>,
    /// Whether more data of the message is expected after the last prediction.
    more: bool,
    spill: Vec<u8>,
    /// Payload bytes to predict. Grows while predictions are (or would have been) right.
    depth: usize,
    max_depth: usize,
    /// Maximum number of predictions per read.
    breadth: usize,
    /// Expected header and payload length after the last FPDU.
    expected_next: Option<(Tagged, usize)>,
    /// The last message was a complete Read Response, and nothing has arrived since.
    response_just_ended: bool,
    /// Number of consecutive Read Responses that directly followed another one.
    chained_responses: u32,
    /// Recent frequency of Writes that begin where the previous one ended, such as those to the segments of a
    /// chunk whose requester registers page by page.
    adjacent_writes: u32,
}

impl Direct {
    pub(super) fn new(crc: bool) -> Self {
        Self {
            predictions: Vec::new(),
            more: false,
            spill: Vec::new(),
            depth: MAX_CRC_DEPTH,
            max_depth: if crc { MAX_CRC_DEPTH } else { MAX_DEPTH },
            breadth: MAX_PREDICTIONS / 4,
            expected_next: None,
            response_just_ended: false,
            chained_responses: 0,
            adjacent_writes: 0,
        }
    }

    /// Records the end of a Read Response.
    pub(super) fn response_ended(&mut self) {
        self.response_just_ended = true;
    }

    /// Records the start of an FPDU. On most connections, either each Read Response is directly followed by
    /// the next one, or each is followed by a Send: that of a requester that sends a new call after each
    /// reply.
    pub(super) fn fpdu_started(&mut self, response: bool) {
        if std::mem::take(&mut self.response_just_ended) {
            self.chained_responses = if response { self.chained_responses.saturating_add(1) } else { 0 };
        }
    }

    /// Records a tagged FPDU that was not predicted.
    pub(super) fn unpredicted(&mut self, header: &Tagged, len: usize) {
        self.fpdu_started(header.opcode == Opcode::ReadResponse);
        if let Some((h, l)) = self.expected_next {
            let continues = h.tag == header.tag && h.offset == header.offset;
            if continues && l == len {
                self.increase_depth();
            }
            if h.opcode == Opcode::Write && h.last {
                // No Write continues the last one of a chunk, so halve the count instead of clearing it.
                self.adjacent_writes =
                    if continues { self.adjacent_writes.saturating_add(1) } else { self.adjacent_writes / 2 };
            }
        }
        self.expected_next = Some((OpenFpdu { header: *header, len, placed: 0 }.next(), len));
    }

    fn increase_depth(&mut self) {
        self.depth = (2 * self.depth).min(self.max_depth);
    }

    /// Adapts the number of predictions after a read with `used` predictions that completed `completed`
    /// FPDUs.
    fn adapt_breadth(&mut self, used: usize, completed: usize) {
        if completed >= used && used >= self.breadth {
            self.breadth = (2 * self.breadth).min(MAX_PREDICTIONS);
        } else if used >= self.breadth && completed < used / 4 {
            self.breadth = (self.breadth / 2).max(MIN_PREDICTIONS);
        }
    }

    /// Predicts the FPDUs after the segment `open` of a Write. `fresh` is the number of bytes after the
    /// segment in its region, if no data was placed there; otherwise 0.
    fn predict_write(&mut self, open: &OpenFpdu, fresh: usize) {
        self.predictions.clear();
        let continues = !open.header.last;
        self.more = continues;
        if open.len == 0 || !continues && self.adjacent_writes < CHAIN {
            return;
        }
        let (mut last, mut left, mut budget) = (*open, fresh, self.depth);
        while left > 0 {
            let len = left.min(open.len);
            if len > budget || self.predictions.len() >= self.breadth {
                return;
            }
            last = OpenFpdu { header: last.next(), len, placed: 0 };
            self.predictions.push(last);
            left -= len;
            budget -= len;
        }
        self.more = continues && fresh == 0;
    }

    /// Predicts the FPDUs after the segment `open` of the response to the first of `reads`.
    fn predict_response(&mut self, open: &OpenFpdu, reads: &Reads) {
        self.predictions.clear();
        self.more = true;
        let mut budget = self.depth;
        for (i, read) in reads.sent.iter().enumerate() {
            let mut at = if i == 0 { read.placed + open.len } else { 0 };
            if i > 0 && read.size == 0 {
                return;
            }
            if i > 0 && self.chained_responses < CHAIN {
                break;
            }
            while at < read.size {
                let len = (read.size - at).min(open.len.max(1));
                if len > budget || self.predictions.len() >= self.breadth {
                    return;
                }
                let last = at + len == read.size;
                let header = Tagged { opcode: Opcode::ReadResponse, last, tag: read.tag, offset: at as u64 };
                self.predictions.push(OpenFpdu { header, len, placed: 0 });
                at += len;
                budget -= len;
            }
        }
        self.more = false;
    }
}

/// Result of a direct read.
struct ReadOutcome {
    /// Bytes read.
    n: usize,
    /// Number of FPDUs that the read completed: first the open one, then predicted ones.
    complete: usize,
    /// The incomplete FPDU.
    open: Option<OpenFpdu>,
    /// Payload bytes that were placed directly.
    placed: usize,
    /// Error in the first incomplete FPDU.
    fault: Option<Fault>,
}

impl Rx {
    /// Reads while payload of the tagged FPDU `open` is missing. The stash must be empty.
    pub(super) fn read_direct(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        context: &mut RxContext<'_>,
        open: OpenFpdu,
    ) -> Poll<Result<usize, Fault>> {
        let write = open.header.opcode == Opcode::Write;
        if write && context.table.lock().is_released(open.header.tag) {
            return self.read_stash(cx, stream, context); // The memory of the released tag has another owner.
        }
        let Self { direct, stash, crc, window, .. } = self;
        let mut reading = Reading { cx, stream, direct, stash, crc, window: *window, open };
        let outcome = if write {
            let offset = open.header.offset.wrapping_add(open.placed as u64);
            let table = context.table.lock();
            let (memory, fresh) = match table.place(open.header.tag, offset, open.missing()) {
                Ok(found) => found,
                Err(d) => return Poll::Ready(Err(Fault::write_target(d, &open.header, open.len))),
            };
            let fresh = if fresh { memory.len() - open.missing() } else { 0 };
            reading.direct.predict_write(&open, fresh);
            let outcome = ready!(reading.read(std::iter::once(memory)));
            if let Ok(s) = &outcome {
                let predictions = &reading.direct.predictions;
                let last = s.open.as_ref().or_else(|| predictions.get(s.complete.checked_sub(2)?));
                if let Some(o) = last {
                    // The data up to the end of that segment now counts as placed. The access was checked
                    // with the prediction.
                    let _ = table.place(o.header.tag, o.header.offset, o.len);
                }
            }
            outcome
        } else {
            reading.direct.predict_response(&open, context.reads);
            let skip = context.reads.sent.front().map_or(0, |r| r.placed) + open.placed;
            let sinks = context.reads.sent.iter_mut().flat_map(|r| r.sink.iter_mut());
            ready!(reading.read(parts_from(sinks, skip)))
        };
        context.counters.syscalls += 1;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(fault) => return Poll::Ready(Err(fault)),
        };
        context.counters.placed_directly += outcome.placed as u64;
        self.adapt_window(self.stash.bytes().len(), outcome.placed);
        self.open = outcome.open;
        for i in 0..outcome.complete {
            let fpdu = if i == 0 { open } else { self.direct.predictions[i - 1] };
            if i > 0 {
                self.direct.fpdu_started(fpdu.header.opcode == Opcode::ReadResponse);
            }
            self.complete(context, &fpdu);
        }
        if let Some(o) = self.open.filter(|_| outcome.complete > 0) {
            self.direct.fpdu_started(o.header.opcode == Opcode::ReadResponse);
        }
        Poll::Ready(outcome.fault.map_or(Ok(outcome.n), Err))
    }
}

/// The state of one direct read, except for the destination memory.
struct Reading<'r, 'c, 'w> {
    cx: &'c mut Context<'w>,
    stream: &'r mut dyn ByteStream,
    direct: &'r mut Direct,
    stash: &'r mut Stash,
    crc: &'r mut Option<Crc>,
    window: usize,
    open: OpenFpdu,
}

impl Reading<'_, '_, '_> {
    /// Reads into `parts`, the memory from the next missing byte on according to the predictions, and
    /// compares.
    fn read<'m>(&mut self, parts: impl Iterator<Item = &'m mut [u8]>) -> Poll<Result<ReadOutcome, Fault>> {
        let mut scratch = scratch::take(SCRATCH);
        let outcome = self.read_with(&mut scratch[..SCRATCH], parts);
        scratch::put(scratch);
        if outcome.is_pending() {
            self.stash.shrink();
        }
        outcome
    }

    fn read_with<'m>(
        &mut self,
        mut scratch: &mut [u8],
        parts: impl Iterator<Item = &'m mut [u8]>,
    ) -> Poll<Result<ReadOutcome, Fault>> {
        let Direct { predictions, more, spill, depth, max_depth, .. } = &mut *self.direct;
        let mut memory = Scatter { parts, current: &mut [] };
        let mut pieces: Pieces<'_> = SmallVec::new();

        let mut trailer = self.open.trailer();
        let mut whole = memory.take(self.open.missing(), &mut pieces) == self.open.missing();
        let mut used = 0;
        for g in predictions.iter() {
            // A prediction needs at least two pieces, and the stash one.
            if !whole || pieces.len() + 3 > MAX_PIECES || scratch.len() < trailer + HEAD {
                break;
            }
            let (head, rest) = scratch.split_at_mut(trailer + HEAD);
            scratch = rest;
            pieces.push(IoSliceMut::new(head));
            whole = memory.take(g.len, &mut pieces) == g.len;
            trailer = g.trailer();
            used += 1;
        }
        *more |= used < predictions.len();
        predictions.truncate(used);
        if whole && pieces.len() < MAX_PIECES {
            // If more data of the message is expected, read only its header, so that its payload is not
            // bounced.
            let room = if *more { trailer + HEAD } else { self.window.max(trailer + HEAD) };
            pieces.push(IoSliceMut::new(self.stash.room(room)));
        }

        let n = match ready!(self.stream.poll_read(self.cx, &mut pieces)) {
            Ok(n) => n,
            Err(e) => return Poll::Ready(Err(Fault::io(&e))),
        };
        spill.clear();
        let mut cursor = PieceCursor { pieces: &mut pieces, left: n, piece: 0, at: 0 };
        let (mut outcome, all) =
            compare_with_predictions(&mut cursor, self.open, predictions, self.crc.as_mut(), spill);
        outcome.n = n;
        let left = cursor.left;
        drop(pieces);
        if !spill.is_empty() {
            // A complete header was compared and differed, unless the bytes ended within it. Whether another
            // message follows is predicted separately.
            let other_message =
                |g: &OpenFpdu| g.header.opcode == Opcode::ReadResponse && g.header.offset == 0;
            let failed = outcome.complete.checked_sub(1).and_then(|i| predictions.get(i));
            if spill.len() >= HEAD && !failed.is_some_and(other_message) {
                *depth = (*depth / 2).max(MIN_DEPTH);
            }
            self.stash.append(spill);
        } else if all {
            self.stash.commit(left);
            if used > 0 {
                *depth = (2 * *depth).min(*max_depth);
            }
        }
        self.direct.adapt_breadth(used, outcome.complete);
        if let (Some(o), true) = (&outcome.open, outcome.complete > 0) {
            self.direct.expected_next = Some((o.next(), o.len));
        }
        Poll::Ready(Ok(outcome))
    }
}

/// Compares the received bytes with the predictions. Bytes other than payload of a right prediction are moved
/// to `spill`; if the second result is true, they are already in the stash.
fn compare_with_predictions(
    cursor: &mut PieceCursor<'_, '_>,
    mut open: OpenFpdu,
    predictions: &mut [OpenFpdu],
    mut crc: Option<&mut Crc>,
    spill: &mut Vec<u8>,
) -> (ReadOutcome, bool) {
    let mut outcome = ReadOutcome { n: 0, complete: 0, open: None, placed: 0, fault: None };
    let mut predictions = predictions.iter_mut();
    loop {
        let n = cursor.take(open.missing(), |p| {
            if let Some(crc) = crc.as_deref_mut() {
                crc.update(p);
            }
        });
        open.placed += n;
        outcome.placed += n;
        outcome.open = Some(open);
        if open.missing() > 0 {
            return (outcome, true);
        }
        let Some(prediction) = predictions.next() else { return (outcome, true) };
        let trailer = open.trailer();
        let Some(head) = cursor.peek(trailer + HEAD) else {
            cursor.spill(spill);
            return (outcome, false);
        };
        let (trailer_bytes, head) = head.split_at(trailer);
        if let Some(crc) = crc.as_deref_mut() {
            let (pad, sum) = trailer_bytes.split_at(trailer - fpdu::CRC_BYTES);
            crc.update(pad);
            if crc.wire() != sum {
                outcome.fault = Some(Fault::peer(ErrorCode::CRC, open.header));
                return (outcome, true);
            }
        }
        outcome.complete += 1;
        outcome.open = None;
        if !matches_prediction(head, prediction) {
            cursor.take(trailer, |_| ());
            cursor.spill(spill);
            return (outcome, false);
        }
        if let Some(crc) = crc.as_deref_mut() {
            crc.reset();
            crc.update(head);
        }
        cursor.take(trailer + HEAD, |_| ());
        open = *prediction;
    }
}

/// Whether `head` equals the prediction. (Whether a Write's segment is the last of its message is not
/// predicted but taken from `head`.)
fn matches_prediction(head: &[u8], prediction: &mut OpenFpdu) -> bool {
    let (length, ulpdu) = head.split_at(fpdu::LENGTH_BYTES);
    if length != ((Tagged::BYTES + prediction.len) as u16).to_be_bytes() {
        return false;
    }
    if prediction.header.opcode == Opcode::Write {
        prediction.header.last = Tagged::decode(ulpdu).is_some_and(|h| h.last);
    }
    // Reserved bits may have any value; a difference there only makes the prediction fail.
    ulpdu == prediction.header.encode()
}

/// Memory to be used in order.
struct Scatter<'m, I> {
    parts: I,
    current: &'m mut [u8],
}

impl<'m, I: Iterator<Item = &'m mut [u8]>> Scatter<'m, I> {
    /// Appends the next `want` bytes of memory to `pieces`, as far as there are memory and pieces left.
    /// Returns the number of bytes.
    fn take<'p>(&mut self, want: usize, pieces: &mut Pieces<'p>) -> usize
    where
        'm: 'p,
    {
        let mut taken = 0;
        while taken < want && pieces.len() < MAX_PIECES {
            if self.current.is_empty() {
                let Some(next) = self.parts.next() else { break };
                self.current = next;
            }
            let n = (want - taken).min(self.current.len());
            let (piece, rest) = std::mem::take(&mut self.current).split_at_mut(n);
            pieces.push(IoSliceMut::new(piece));
            self.current = rest;
            taken += n;
        }
        taken
    }
}

/// A cursor over the received bytes in stream order.
struct PieceCursor<'w, 'p> {
    pieces: &'w mut [IoSliceMut<'p>],
    /// Bytes after the cursor.
    left: usize,
    piece: usize,
    at: usize,
}

impl PieceCursor<'_, '_> {
    /// Passes the next bytes, at most `want`, to `f`. Returns their number.
    fn take(&mut self, want: usize, mut f: impl FnMut(&mut [u8])) -> usize {
        let want = want.min(self.left);
        let mut taken = 0;
        while taken < want {
            let Some(piece) = self.pieces.get_mut(self.piece) else { break };
            let n = (want - taken).min(piece.len() - self.at);
            f(&mut piece[self.at..self.at + n]);
            taken += n;
            self.at += n;
            if self.at == piece.len() {
                (self.piece, self.at) = (self.piece + 1, 0);
            }
        }
        self.left -= taken;
        taken
    }

    /// The next `n` bytes, which are in one piece, if they were received.
    fn peek(&self, n: usize) -> Option<&[u8]> {
        if n > self.left {
            return None;
        }
        self.pieces.get(self.piece)?.get(self.at..self.at + n)
    }

    /// Moves all remaining bytes to `out`, and zeroes their memory.
    fn spill(&mut self, out: &mut Vec<u8>) {
        self.take(self.left, |p| {
            out.extend_from_slice(p);
            p.fill(0);
        });
    }
}
