//! Reading payload straight into its region, and guessing where the payload after it goes.
//!
//! ```text
//! readv: [rest of the payload -> region] ([trailer, next header -> scratch] [next payload -> region])* [stash]
//! ```
//!
//! A *guess* is the header that the next FPDU will probably have: same message, running offset, same length, or what
//! is left of the region or the read. After the read each header that arrived is compared with its guess before
//! anything of its payload counts as placed. At the first difference all bytes from that header on are moved, in
//! stream order, to the stash and handled there. So a wrong guess costs a move of bytes and never puts them in a
//! wrong place: guesses go only where nothing was ever placed before (for Writes, past the region's high-water mark;
//! for Reads, into sinks whose bytes are still to come), always inside the region of the same tag, and what a wrong
//! guess left there is wiped.

use std::{
    io::IoSliceMut,
    task::{Context, Poll, ready},
};

use millrace_runtime::ByteStream;
use smallvec::SmallVec;

use super::{Ends, Rx, stash::Stash, tagged::OpenFpdu};
use crate::{
    fault::Fault,
    reads::{Reads, parts_from},
    wire::{crc::Crc, ddp::Tagged, fpdu, rdmap::Opcode, terminate::ErrorCode},
};

/// The most pieces in one read: the kernel's own limit, IOV_MAX.
const MAX_PIECES: usize = 1024;
/// FPDUs guessed at for one read. In between it follows how many come in one read: each guess costs its share of the
/// read whether it comes or not.
const MAX_GUESSES: usize = MAX_PIECES / 2;
const MIN_GUESSES: usize = 32;
/// Payload bytes guessed at for one read: the usual largest NFS transfer.
const MAX_DEPTH: usize = 1 << 20;
/// The same where CRCs are checked afterwards: so much is still in the cache then.
const MAX_CRC_DEPTH: usize = 256 << 10;
const MIN_DEPTH: usize = 8 << 10;
/// Length and header of a tagged FPDU.
const HEAD: usize = fpdu::LENGTH_BYTES + Tagged::BYTES;
/// Scratch for the trailers and headers of as many guesses as fit the pieces.
const SCRATCH: usize = MAX_GUESSES * (fpdu::MAX_TRAILER + HEAD);
/// After so many Read Responses in a row that followed directly upon another, the next one is expected to do so too; and
/// after so many Writes that went on where another ended.
const CHAIN: u32 = 2;

type Pieces<'a> = SmallVec<[IoSliceMut<'a>; MAX_PIECES]>;

/// The state of guessing.
#[derive(Debug)]
pub(super) struct Direct {
    guesses: Vec<OpenFpdu>,
    /// Whether more of the message is expected behind the last guess.
    more: bool,
    scratch: Vec<u8>,
    spill: Vec<u8>,
    /// Payload bytes to guess at: grows while guesses are (or would have been) right.
    depth: usize,
    max_depth: usize,
    /// The most guesses for one read.
    breadth: usize,
    /// The header and payload length that the last FPDU makes probable.
    probable: Option<(Tagged, usize)>,
    /// The last message was a whole Read Response, and nothing came since.
    ended: bool,
    /// How many Read Responses followed directly upon another, up to now.
    chained: u32,
    /// How often, lately, a Write went on where the one before it ended: as those to the segments of a chunk do whose
    /// peer names its memory page by page.
    adjacent: u32,
}

impl Direct {
    pub(super) fn new(crc: bool) -> Self {
        Self {
            guesses: Vec::new(),
            more: false,
            scratch: Vec::new(),
            spill: Vec::new(),
            depth: MAX_CRC_DEPTH,
            max_depth: if crc { MAX_CRC_DEPTH } else { MAX_DEPTH },
            breadth: MAX_GUESSES / 4,
            probable: None,
            ended: false,
            chained: 0,
            adjacent: 0,
        }
    }

    /// A Read Response is complete.
    pub(super) fn response_ended(&mut self) {
        self.ended = true;
    }

    /// An FPDU begins. What comes behind a whole Read Response is usually always the next one, or usually a Send: a
    /// requester with one call after each answer sends them in turn.
    pub(super) fn begins(&mut self, response: bool) {
        if std::mem::take(&mut self.ended) {
            self.chained = if response { self.chained.saturating_add(1) } else { 0 };
        }
    }

    /// A tagged FPDU came that was not guessed at.
    pub(super) fn note(&mut self, header: &Tagged, len: usize) {
        self.begins(header.opcode == Opcode::ReadResponse);
        if let Some((h, l)) = self.probable {
            let goes_on = h.tag == header.tag && h.offset == header.offset;
            if goes_on && l == len {
                self.deeper();
            }
            if h.opcode == Opcode::Write && h.last {
                // At the end of a chunk there is one that does not go on: it does not make all others forgotten.
                self.adjacent = if goes_on { self.adjacent.saturating_add(1) } else { self.adjacent / 2 };
            }
        }
        self.probable = Some((OpenFpdu { header: *header, len, placed: 0 }.next(), len));
    }

    fn deeper(&mut self) {
        self.depth = (2 * self.depth).min(self.max_depth);
    }

    /// A read with `used` guesses completed `came` FPDUs.
    fn adapt_breadth(&mut self, used: usize, came: usize) {
        if came >= used && used >= self.breadth {
            self.breadth = (2 * self.breadth).min(MAX_GUESSES);
        } else if used >= self.breadth && came < used / 4 {
            self.breadth = (self.breadth / 2).max(MIN_GUESSES);
        }
    }

    /// Guesses what follows the segment `open` of a Write, with `fresh` bytes behind it in its region where nothing
    /// was placed yet.
    fn guess_write(&mut self, open: &OpenFpdu, fresh: usize) {
        self.guesses.clear();
        let goes_on = !open.header.last;
        self.more = goes_on;
        if open.len == 0 || !goes_on && self.adjacent < CHAIN {
            return;
        }
        let (mut last, mut left, mut budget) = (*open, fresh, self.depth);
        while left > 0 {
            let len = left.min(open.len);
            if len > budget || self.guesses.len() >= self.breadth {
                return;
            }
            last = OpenFpdu { header: last.next(), len, placed: 0 };
            self.guesses.push(last);
            left -= len;
            budget -= len;
        }
        self.more = goes_on && fresh == 0;
    }

    /// Guesses what follows the segment `open` of the response to the first of `reads`.
    fn guess_response(&mut self, open: &OpenFpdu, reads: &Reads) {
        self.guesses.clear();
        self.more = true;
        let mut budget = self.depth;
        for (i, read) in reads.sent.iter().enumerate() {
            let mut at = if i == 0 { read.placed + open.len } else { 0 };
            if i > 0 && read.size == 0 {
                return;
            }
            if i > 0 && self.chained < CHAIN {
                break;
            }
            while at < read.size {
                let len = (read.size - at).min(open.len.max(1));
                if len > budget || self.guesses.len() >= self.breadth {
                    return;
                }
                let last = at + len == read.size;
                let header = Tagged { opcode: Opcode::ReadResponse, last, tag: read.tag, offset: at as u64 };
                self.guesses.push(OpenFpdu { header, len, placed: 0 });
                at += len;
                budget -= len;
            }
        }
        self.more = false;
    }
}

/// What a direct read brought.
struct Sorted {
    /// Bytes read.
    n: usize,
    /// FPDUs that are complete: the open one, and then the first guesses.
    complete: usize,
    /// The FPDU that is open now.
    open: Option<OpenFpdu>,
    /// Payload that went straight to its place.
    placed: usize,
    /// What is wrong with the first incomplete FPDU.
    fault: Option<Fault>,
}

impl Rx {
    /// Reads while the tagged FPDU `open` misses payload. The stash is empty then.
    pub(super) fn read_direct(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        ends: &mut Ends<'_>,
        open: OpenFpdu,
    ) -> Poll<Result<usize, Fault>> {
        let write = open.header.opcode == Opcode::Write;
        if write && ends.domain.lock().is_released(open.header.tag) {
            return self.read_stash(cx, stream, ends); // Its memory is not ours to lend to the stream.
        }
        let Self { direct, stash, crc, window, .. } = self;
        let mut reading = Reading { cx, stream, direct, stash, crc, window: *window, open };
        let sorted = if write {
            let offset = open.header.offset.wrapping_add(open.placed as u64);
            let mut table = ends.domain.lock();
            let (memory, fresh) = match table.place(open.header.tag, offset, open.missing()) {
                Ok(found) => found,
                Err(d) => return Poll::Ready(Err(Fault::write_target(d, &open.header, open.len))),
            };
            let fresh = if fresh { memory.len() - open.missing() } else { 0 };
            reading.direct.guess_write(&open, fresh);
            let sorted = ready!(reading.read(std::iter::once(memory)));
            if let Ok(s) = &sorted {
                let guesses = &reading.direct.guesses;
                let last = s.open.as_ref().or_else(|| guesses.get(s.complete.checked_sub(2)?));
                if let Some(o) = last {
                    // Everything up to its end counts as placed from now on. It was checked together with the guess.
                    let _ = table.place(o.header.tag, o.header.offset, o.len);
                }
            }
            sorted
        } else {
            reading.direct.guess_response(&open, ends.reads);
            let skip = ends.reads.sent.front().map_or(0, |r| r.placed) + open.placed;
            let sinks = ends.reads.sent.iter_mut().flat_map(|r| r.sink.iter_mut());
            ready!(reading.read(parts_from(sinks, skip)))
        };
        ends.counters.syscalls += 1;
        let sorted = match sorted {
            Ok(sorted) => sorted,
            Err(fault) => return Poll::Ready(Err(fault)),
        };
        ends.counters.placed_directly += sorted.placed as u64;
        self.adapt_window(self.stash.bytes().len(), sorted.placed);
        self.open = sorted.open;
        for i in 0..sorted.complete {
            let fpdu = if i == 0 { open } else { self.direct.guesses[i - 1] };
            if i > 0 {
                self.direct.begins(fpdu.header.opcode == Opcode::ReadResponse);
            }
            self.complete(ends, &fpdu);
        }
        if let Some(o) = self.open.filter(|_| sorted.complete > 0) {
            self.direct.begins(o.header.opcode == Opcode::ReadResponse);
        }
        Poll::Ready(sorted.fault.map_or(Ok(sorted.n), Err))
    }
}

/// Everything that one direct read needs beside the memory.
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
    /// Reads into `parts`, the memory from the next missing byte on, as guessed, and sorts what came.
    fn read<'m>(&mut self, parts: impl Iterator<Item = &'m mut [u8]>) -> Poll<Result<Sorted, Fault>> {
        let Direct { guesses, more, scratch, spill, depth, max_depth, .. } = &mut *self.direct;
        scratch.resize(SCRATCH, 0);
        let mut memory = Scatter { parts, current: &mut [] };
        let mut scratch: &mut [u8] = scratch;
        let mut pieces: Pieces<'_> = SmallVec::new();

        let mut trailer = self.open.trailer();
        let mut whole = memory.take(self.open.missing(), &mut pieces) == self.open.missing();
        let mut used = 0;
        for g in guesses.iter() {
            // Two pieces at least for the guess and one for the stash.
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
        *more |= used < guesses.len();
        guesses.truncate(used);
        if whole && pieces.len() < MAX_PIECES {
            // If more of the message comes, read just its header, so that nothing of its payload is bounced.
            let room = if *more { trailer + HEAD } else { self.window.max(trailer + HEAD) };
            pieces.push(IoSliceMut::new(self.stash.room(room)));
        }

        let n = match ready!(self.stream.poll_read(self.cx, &mut pieces)) {
            Ok(n) => n,
            Err(e) => return Poll::Ready(Err(Fault::io(&e))),
        };
        spill.clear();
        let mut walk = Walk { pieces: &mut pieces, left: n, piece: 0, at: 0 };
        let (mut sorted, all) = sort(&mut walk, self.open, guesses, self.crc.as_mut(), spill);
        sorted.n = n;
        let left = walk.left;
        drop(pieces);
        if !spill.is_empty() {
            // A full head was compared and differed, unless the bytes ended within it.
            // Whether another message follows is learned apart.
            let other_message =
                |g: &OpenFpdu| g.header.opcode == Opcode::ReadResponse && g.header.offset == 0;
            let failed = sorted.complete.checked_sub(1).and_then(|i| guesses.get(i));
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
        self.direct.adapt_breadth(used, sorted.complete);
        if let (Some(o), true) = (&sorted.open, sorted.complete > 0) {
            self.direct.probable = Some((o.next(), o.len));
        }
        Poll::Ready(Ok(sorted))
    }
}

/// Compares what came with the guesses. Bytes that are not payload of a right guess go to `spill`, but for those that
/// lie in the stash already: then the second result is true.
fn sort(
    walk: &mut Walk<'_, '_>,
    mut open: OpenFpdu,
    guesses: &mut [OpenFpdu],
    mut crc: Option<&mut Crc>,
    spill: &mut Vec<u8>,
) -> (Sorted, bool) {
    let mut sorted = Sorted { n: 0, complete: 0, open: None, placed: 0, fault: None };
    let mut guesses = guesses.iter_mut();
    loop {
        let n = walk.take(open.missing(), |p| {
            if let Some(crc) = crc.as_deref_mut() {
                crc.update(p);
            }
        });
        open.placed += n;
        sorted.placed += n;
        sorted.open = Some(open);
        if open.missing() > 0 {
            return (sorted, true);
        }
        let Some(guess) = guesses.next() else { return (sorted, true) };
        let trailer = open.trailer();
        let Some(head) = walk.peek(trailer + HEAD) else {
            walk.spill(spill);
            return (sorted, false);
        };
        let (trailer_bytes, head) = head.split_at(trailer);
        if let Some(crc) = crc.as_deref_mut() {
            let (pad, sum) = trailer_bytes.split_at(trailer - fpdu::CRC_BYTES);
            crc.update(pad);
            if crc.wire() != sum {
                sorted.fault = Some(Fault::peer(ErrorCode::CRC, open.header));
                return (sorted, true);
            }
        }
        sorted.complete += 1;
        sorted.open = None;
        if !is_guess(head, guess) {
            walk.take(trailer, |_| ());
            walk.spill(spill);
            return (sorted, false);
        }
        if let Some(crc) = crc.as_deref_mut() {
            crc.reset();
            crc.update(head);
        }
        walk.take(trailer + HEAD, |_| ());
        open = *guess;
    }
}

/// Whether `head` is the head that was guessed. (Whether a Write's segment is the last of its message was not guessed
/// and is noted.)
fn is_guess(head: &[u8], guess: &mut OpenFpdu) -> bool {
    let (length, ulpdu) = head.split_at(fpdu::LENGTH_BYTES);
    if length != ((Tagged::BYTES + guess.len) as u16).to_be_bytes() {
        return false;
    }
    if guess.header.opcode == Opcode::Write {
        guess.header.last = Tagged::decode(ulpdu).is_some_and(|h| h.last);
    }
    // Reserved bits may have any value, so a difference there is only a guess that failed.
    ulpdu == guess.header.encode()
}

/// Memory to be given out in order.
struct Scatter<'m, I> {
    parts: I,
    current: &'m mut [u8],
}

impl<'m, I: Iterator<Item = &'m mut [u8]>> Scatter<'m, I> {
    /// Adds the next `want` bytes of memory to `pieces`, as far as there are memory and room; gives how many.
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

/// Goes over the bytes of a read in stream order.
struct Walk<'w, 'p> {
    pieces: &'w mut [IoSliceMut<'p>],
    /// Bytes not yet gone over.
    left: usize,
    piece: usize,
    at: usize,
}

impl Walk<'_, '_> {
    /// Hands the next bytes, `want` at most, to `f`; gives how many.
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

    /// The next `n` bytes, which lie in one piece, if they have come.
    fn peek(&self, n: usize) -> Option<&[u8]> {
        if n > self.left {
            return None;
        }
        self.pieces.get(self.piece)?.get(self.at..self.at + n)
    }

    /// Moves all bytes that are left to `out`, and wipes where they were.
    fn spill(&mut self, out: &mut Vec<u8>) {
        self.take(self.left, |p| {
            out.extend_from_slice(p);
            p.fill(0);
        });
    }
}
