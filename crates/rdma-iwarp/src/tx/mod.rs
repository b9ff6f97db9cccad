//! The transmitter: turns posted work into FPDUs and writes them to the stream.
//!
//! Work is divided into frames (FPDUs) just before they are sent. Headers and trailers are stored in one
//! scratch buffer in stream order, so that the trailer of one frame and the header of the next are one piece
//! of the gather list; payload is gathered in place. One `writev` sends up to [`BATCH_BYTES`] from several
//! frames.
//!
//! The source of a Read Response is looked up, under the lock of the STag table, for each access, so a region
//! is not read after its owner has revoked it.

mod frame;
mod gather;
mod work;

use std::{
    collections::VecDeque,
    io::IoSlice,
    task::{Context, Poll, ready},
};

use millrace_buffer::Views;
use millrace_rdma::{
    Completion, ConnectionError, Counters, WorkId,
    stag::{StagDomain, StagTable},
};
use millrace_runtime::ByteStream;
use smallvec::SmallVec;

use self::{
    frame::{Frame, MAX_PIECES},
    gather::{Unsent, gather},
    work::{Data, Framer, Kind, Work},
};
use super::{
    fault::Fault,
    wire::{
        crc::Crc,
        ddp::{Tagged, Untagged},
        fpdu,
        rdmap::{Opcode, ReadRequestBody},
        terminate::Terminate,
    },
};

/// Bytes gathered for one write: a record of the usual maximum NFS transfer size, its headers, and the Send
/// of the reply after it.
const BATCH_BYTES: usize = (1 << 20) + (16 << 10);
/// The same with CRC: the data is still in the processor cache when it is copied to the stream.
const CRC_BATCH_BYTES: usize = 256 << 10;
/// Maximum number of writes per [`Tx::flush`], so that sending does not starve receiving.
const WRITES_PER_FLUSH: usize = 4;
/// Bytes of sent headers at the start of scratch from which on the rest is moved to the start.
const SCRATCH_SLACK: usize = 16 << 10;
/// Default maximum payload of an FPDU: whole pages within the 65521 bytes that an FPDU can carry.
pub(crate) const BEST_PAYLOAD: usize = 60 << 10;
/// Maximum payload that every FPDU can carry.
const MAX_PAYLOAD: usize = fpdu::MAX_ULPDU - Untagged::BYTES;

/// Result of [`Tx::flush`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// All work was sent.
    All,
    /// Work remains, and the stream may accept more.
    Some,
}

/// The transmitter of a queue pair.
#[derive(Debug)]
pub(crate) struct Tx {
    queue: VecDeque<Work>,
    /// Number of the first work in `queue`.
    first_work: u64,
    /// Number of works in `queue` that are completely divided into frames.
    framed: usize,
    frames: VecDeque<Frame>,
    /// Bytes of the first frame that were sent.
    sent: usize,
    scratch: Vec<u8>,
    /// Position in scratch of the first frame's header.
    scratch_at: usize,
    max_payload: usize,
    crc: Option<Crc>,
    send_msn: u32,
    read_msn: u32,
    responses: usize,
    /// Sending is not yet permitted: a responder must receive an FPDU first (RFC 5044 section 7.1.2).
    held: bool,
}

impl Tx {
    /// Creates an idle transmitter. `max_payload` limits the payload of an FPDU; `held` delays sending until
    /// [`Self::release`].
    pub(crate) fn new(crc: bool, max_payload: Option<usize>, held: bool) -> Self {
        Self {
            queue: VecDeque::new(),
            first_work: 0,
            framed: 0,
            frames: VecDeque::new(),
            sent: 0,
            scratch: Vec::new(),
            scratch_at: 0,
            max_payload: max_payload.unwrap_or(BEST_PAYLOAD).clamp(1, MAX_PAYLOAD),
            crc: crc.then(Crc::new),
            send_msn: 1,
            read_msn: 1,
            responses: 0,
            held,
        }
    }

    /// Permits sending, after the peer's first FPDU has arrived.
    pub(crate) fn release(&mut self) {
        self.held = false;
    }

    /// Whether there is no work that may be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.held || self.queue.is_empty()
    }

    /// Number of Read Responses that are not completely sent.
    pub(crate) fn responses(&self) -> usize {
        self.responses
    }

    /// Queues a Send.
    pub(crate) fn send(
        &mut self,
        data: Views,
        invalidate: Option<u32>,
        solicited: bool,
        signal: Option<WorkId>,
    ) {
        let opcode = match (invalidate.is_some(), solicited) {
            (false, false) => Opcode::Send,
            (true, false) => Opcode::SendInvalidate,
            (false, true) => Opcode::SendSolicited,
            (true, true) => Opcode::SendSolicitedInvalidate,
        };
        let msn = self.send_msn;
        self.send_msn = msn.wrapping_add(1);
        let kind = Kind::Untagged { opcode, msn, invalidate: invalidate.unwrap_or(0) };
        self.queue.push_back(Work::new(kind, data.len(), Data::Views(data), signal));
    }

    /// Queues an RDMA Write.
    pub(crate) fn write(&mut self, data: Views, tag: u32, offset: u64) {
        let kind = Kind::Tagged { opcode: Opcode::Write, tag, offset };
        self.queue.push_back(Work::new(kind, data.len(), Data::Views(data), None));
    }

    /// Queues an RDMA Read Request.
    pub(crate) fn read(&mut self, body: &ReadRequestBody) {
        let msn = self.read_msn;
        self.read_msn = msn.wrapping_add(1);
        let kind = Kind::Untagged { opcode: Opcode::ReadRequest, msn, invalidate: 0 };
        self.queue.push_back(Work::new(kind, ReadRequestBody::BYTES, Data::Read(body.encode()), None));
    }

    /// Queues the response to the peer's Read Request `header` with `body`.
    pub(crate) fn respond(&mut self, header: Untagged, body: ReadRequestBody) {
        let kind =
            Kind::Tagged { opcode: Opcode::ReadResponse, tag: body.sink_tag, offset: body.sink_offset };
        let data = Data::Source { header, body };
        self.responses += 1;
        self.queue.push_back(Work::new(kind, body.size as usize, data, None));
    }

    /// Drops all work except a partly sent frame, and queues `message` as the last message.
    pub(crate) fn terminate(&mut self, message: &Terminate) {
        self.abandon();
        let payload = message.encode();
        let kind = Kind::Untagged { opcode: Opcode::Terminate, msn: 1, invalidate: 0 };
        self.queue.push_back(Work::new(kind, payload.len(), Data::Bytes(payload), None));
    }

    /// Drops all work except a partly sent frame.
    pub(crate) fn abandon(&mut self) {
        let partly_sent = self.sent > 0 && !self.frames.is_empty();
        self.frames.truncate(usize::from(partly_sent));
        self.queue.truncate(usize::from(partly_sent));
        self.framed = self.queue.len();
        self.responses = 0;
        match (self.frames.front_mut(), self.queue.front_mut()) {
            (Some(f), Some(w)) => {
                f.last = true;
                w.abandoned = true;
                self.scratch.truncate(self.scratch_at + f.head + f.tail);
            }
            _ => {
                self.scratch.clear();
                self.scratch_at = 0;
            }
        }
    }

    /// Drops all work and releases its memory.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.frames.clear();
        self.scratch = Vec::new();
        (self.framed, self.sent, self.scratch_at, self.responses) = (0, 0, 0, 0);
    }

    /// Sends until the stream accepts no more, and flushes it if nothing is left. Appends completions of signaled Sends to `done`.
    pub(crate) fn flush(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        domain: &StagDomain,
        done: &mut Vec<Completion>,
        counters: &mut Counters,
    ) -> Poll<Result<Flushed, Fault>> {
        for _ in 0..WRITES_PER_FLUSH {
            if self.held || self.queue.is_empty() {
                return poll_flushed(cx, stream);
            }
            let n = match ready!(self.write_batch(cx, stream, domain)) {
                Ok(0) => return Poll::Ready(Err(Fault::without_terminate(ConnectionError::Closed))),
                Ok(n) => n,
                Err(fault) => return Poll::Ready(Err(fault)),
            };
            counters.syscalls += 1;
            self.advance(n, done, counters);
        }
        if self.queue.is_empty() { poll_flushed(cx, stream) } else { Poll::Ready(Ok(Flushed::Some)) }
    }

    fn write_batch(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        domain: &StagDomain,
    ) -> Poll<Result<usize, Fault>> {
        // The lock is held until the stream has copied the bytes; see the module documentation.
        let table =
            (self.responses > 0 || self.queue.front().is_some_and(Work::is_response)).then(|| domain.lock());
        if let Err(fault) = self.build_frames(table.as_deref()) {
            return Poll::Ready(Err(fault));
        }
        let mut pieces: SmallVec<[IoSlice<'_>; MAX_PIECES]> = SmallVec::new();
        let unsent = Unsent {
            frames: &self.frames,
            sent: self.sent,
            queue: &self.queue,
            first_work: self.first_work,
            scratch: &self.scratch,
            scratch_at: self.scratch_at,
        };
        if let Err(fault) = gather(&unsent, table.as_deref(), &mut pieces) {
            return Poll::Ready(Err(fault));
        }
        stream.poll_write(cx, &pieces).map_err(|e| Fault::io(&e))
    }

    /// Divides work into frames until a batch is full.
    fn build_frames(&mut self, table: Option<&StagTable>) -> Result<(), Fault> {
        let Self { queue, frames, scratch, crc, max_payload, .. } = self;
        let bytes = frames.iter().map(Frame::total).sum::<usize>().saturating_sub(self.sent);
        let limit = if crc.is_some() { CRC_BATCH_BYTES } else { BATCH_BYTES };
        let crc = crc.as_mut();
        let mut framer = Framer { max_payload: *max_payload, scratch, crc, table, frames, limit, bytes };
        while !framer.is_full() {
            let Some(work) = queue.get_mut(self.framed) else { break };
            self.framed += usize::from(framer.add_work(work, self.first_work + self.framed as u64)?);
        }
        Ok(())
    }

    /// Accounts for `n` sent bytes.
    fn advance(&mut self, n: usize, done: &mut Vec<Completion>, counters: &mut Counters) {
        self.sent += n;
        while let Some(f) = self.frames.front() {
            if self.sent < f.total() {
                break;
            }
            self.sent -= f.total();
            self.scratch_at += f.head + f.tail;
            let last = f.last;
            self.frames.pop_front();
            if last {
                self.finish_first(done, counters);
            }
        }
        if self.frames.is_empty() {
            self.scratch.clear();
            self.scratch_at = 0;
        } else if self.scratch_at > SCRATCH_SLACK {
            self.scratch.drain(..self.scratch_at);
            self.scratch_at = 0;
        }
    }

    fn finish_first(&mut self, done: &mut Vec<Completion>, counters: &mut Counters) {
        let Some(work) = self.queue.pop_front() else { return };
        self.first_work += 1;
        self.framed -= 1;
        if work.abandoned {
            return;
        }
        if let Kind::Tagged { opcode, .. } = work.kind {
            counters.tagged_bytes_out += work.len as u64;
            if opcode == Opcode::ReadResponse {
                self.responses -= 1;
                counters.peer_reads += 1;
            }
        }
        done.extend(work.signal.map(Completion::Sent));
    }
}

fn poll_flushed(cx: &mut Context<'_>, stream: &mut dyn ByteStream) -> Poll<Result<Flushed, Fault>> {
    stream.poll_flush(cx).map_ok(|()| Flushed::All).map_err(|e| Fault::io(&e))
}

impl Kind {
    /// Appends the DDP header of the segment at the position `at` of the message.
    fn header(&self, at: usize, last: bool, out: &mut Vec<u8>) {
        match *self {
            Self::Tagged { opcode, tag, offset } => {
                let offset = offset.wrapping_add(at as u64);
                out.extend_from_slice(&Tagged { opcode, last, tag, offset }.encode());
            }
            Self::Untagged { opcode, msn, invalidate } => {
                let header = Untagged {
                    opcode,
                    last,
                    invalidate,
                    queue: opcode.queue(),
                    msn,
                    offset: at as u32, // At most 1 GiB: checked when posted.
                };
                out.extend_from_slice(&header.encode());
            }
        }
    }

    const fn header_bytes(&self) -> usize {
        match self {
            Self::Tagged { .. } => Tagged::BYTES,
            Self::Untagged { .. } => Untagged::BYTES,
        }
    }
}
