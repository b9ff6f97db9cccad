//! The receiver: reads the stream, places data, and reports completions.
//!
//! It has two modes. In *header* mode it reads into the stash and processes complete FPDUs from
//! there; small messages are copied once. While the payload of a tagged FPDU is incomplete, it reads in
//! *[direct]* mode: the rest of the payload, and payloads of predicted FPDUs, go from the stream
//! directly into their regions.
//!
//! Callers call [`Rx::receive`] until it returns `Pending`. After a [`Fault`] it must not be called again.

mod direct;
mod tagged;
mod untagged;

use std::{
    io::IoSliceMut,
    task::{Context, Poll, ready},
};

use millrace_buffer::Stash;
use millrace_rdma::{
    Completion, ConnectionError, Counters,
    stag::{StagDomain, StagTable},
};
use millrace_runtime::{ByteStream, sync::MutexGuard};

use self::{direct::Direct, tagged::OpenFpdu, untagged::OpenSend};
use super::{
    fault::Fault,
    reads::Reads,
    receives::Receives,
    tx::Tx,
    wire::{
        be,
        crc::Crc,
        ddp::{Control, Tagged, Untagged},
        fpdu,
        terminate::ErrorCode,
    },
};

/// Read size while large tagged payload arrives, which keeps the bounced part small.
const SMALL_WINDOW: usize = 4 << 10;
/// Read size while small messages arrive.
const LARGE_WINDOW: usize = 64 << 10;
/// A direct read that places at least this much indicates large tagged payload.
const LARGE_PAYLOAD: usize = 16 << 10;

/// The parts of the queue pair that the receiver uses.
pub(crate) struct RxContext<'a> {
    /// The STag table.
    pub(crate) table: LazyTable<'a>,
    /// Posted receives, in order.
    pub(crate) receives: &'a mut Receives,
    /// RDMA Reads of this end.
    pub(crate) reads: &'a mut Reads,
    /// Transmitter, in which Read Responses are queued.
    pub(crate) tx: &'a mut Tx,
    /// Destination of completions.
    pub(crate) out: &'a mut Vec<Completion>,
    /// Counters of the queue pair.
    pub(crate) counters: &'a mut Counters,
}

/// The STag table of a domain. It is locked at its first use, and until this value is dropped, so that the messages of
/// one read lock it once.
pub(crate) struct LazyTable<'a> {
    domain: &'a StagDomain,
    locked: Option<MutexGuard<'a, StagTable>>,
}

impl<'a> LazyTable<'a> {
    pub(crate) fn new(domain: &'a StagDomain) -> Self {
        Self { domain, locked: None }
    }

    fn lock(&mut self) -> &mut StagTable {
        self.locked.get_or_insert_with(|| self.domain.lock())
    }
}

/// The receiver of a queue pair.
#[derive(Debug)]
pub(crate) struct Rx {
    stash: Stash,
    /// The tagged FPDU whose payload or trailer is incomplete.
    open: Option<OpenFpdu>,
    /// The incomplete tagged message: expected header of its next segment.
    message: Option<Tagged>,
    /// The incomplete Send.
    send: Option<OpenSend>,
    send_msn: u32,
    read_msn: u32,
    /// Maximum number of RDMA Reads of the peer in progress.
    ird: usize,
    /// The CRC of the open FPDU, if CRCs are used.
    crc: Option<Crc>,
    direct: Direct,
    window: usize,
    received: bool,
    /// The message at the start of the stash waits for memory.
    waits_for_memory: bool,
    /// The first message is an empty Send as RTR, which is not delivered to the upper layer.
    rtr_send: bool,
}

impl Rx {
    /// Creates a receiver for the FPDUs after MPA startup.
    pub(crate) fn new(crc: bool, ird: usize, rtr_send: bool) -> Self {
        Self {
            stash: Stash::default(),
            open: None,
            message: None,
            send: None,
            send_msn: 1,
            read_msn: 1,
            ird,
            crc: crc.then(Crc::new),
            direct: Direct::new(crc),
            window: SMALL_WINDOW,
            received: false,
            waits_for_memory: false,
            rtr_send,
        }
    }

    /// Whether an FPDU was received.
    pub(crate) const fn has_received(&self) -> bool {
        self.received
    }

    /// Whether a message waits for memory for its receive. Then [`Self::receive`] is to be called again later.
    pub(crate) const fn waits_for_memory(&self) -> bool {
        self.waits_for_memory
    }

    /// Reads once, unless a message waits for memory, and processes everything that is complete.
    pub(crate) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        context: &mut RxContext<'_>,
    ) -> Poll<Result<(), Fault>> {
        if self.waits_for_memory {
            let taken = self.take_all(context);
            return if self.waits_for_memory && taken.is_ok() { Poll::Pending } else { Poll::Ready(taken) };
        }
        let read = match self.open {
            Some(open) if open.missing() > 0 => self.read_direct(cx, stream, context, open),
            _ => self.read_stash(cx, stream, context),
        };
        let n = match ready!(read) {
            Ok(n) => n,
            Err(fault) => return Poll::Ready(Err(fault)),
        };
        if n == 0 {
            return Poll::Ready(Err(self.end_of_stream()));
        }
        Poll::Ready(self.take_all(context))
    }

    fn read_stash(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        context: &mut RxContext<'_>,
    ) -> Poll<Result<usize, Fault>> {
        let room = self.stash.room(self.window);
        let read = stream.poll_read(cx, &mut [IoSliceMut::new(room)]);
        if read.is_pending() {
            self.stash.shrink();
        }
        let n = match ready!(read) {
            Ok(n) => n,
            Err(e) => return Poll::Ready(Err(Fault::io(&e))),
        };
        context.counters.syscalls += 1;
        self.stash.commit(n);
        self.adapt_window(n, 0);
        Poll::Ready(Ok(n))
    }

    /// Adapts the read size after a read of `stashed` bytes into the stash and `placed` bytes into regions.
    fn adapt_window(&mut self, stashed: usize, placed: usize) {
        if placed >= LARGE_PAYLOAD {
            self.window = SMALL_WINDOW;
        } else if stashed >= self.window {
            self.window = (2 * self.window).min(LARGE_WINDOW);
        }
    }

    fn end_of_stream(&self) -> Fault {
        let inside =
            !self.stash.is_empty() || self.open.is_some() || self.message.is_some() || self.send.is_some();
        Fault::without_terminate(if inside {
            ConnectionError::Io("the peer closed the connection in the middle of a message".into())
        } else {
            ConnectionError::Closed
        })
    }

    /// Processes everything in the stash that is complete.
    fn take_all(&mut self, context: &mut RxContext<'_>) -> Result<(), Fault> {
        self.waits_for_memory = false;
        while self.take_one(context)? {}
        Ok(())
    }

    /// Processes the next part of the stash; false if more bytes are needed.
    fn take_one(&mut self, context: &mut RxContext<'_>) -> Result<bool, Fault> {
        if let Some(open) = self.open {
            return self.continue_tagged(context, open);
        }
        let bytes = self.stash.bytes();
        let Some(length) = be::u16(bytes, 0).map(usize::from) else { return Ok(false) };
        if length < Tagged::BYTES {
            return Err(Fault::peer(ErrorCode::FPDU, format_args!("ULPDU of {length} bytes")));
        }
        let ulpdu = &bytes[fpdu::LENGTH_BYTES..];
        let Some(control) = Control::decode(ulpdu) else { return Ok(false) };
        let opcode = check_control(control)?;
        if opcode.is_tagged() {
            let Some(header) = Tagged::decode(ulpdu) else { return Ok(false) };
            return self.open_tagged(context, header, length - Tagged::BYTES).map(|()| true);
        }
        if length < Untagged::BYTES {
            return Err(Fault::peer(ErrorCode::FPDU, format_args!("ULPDU of {length} bytes")));
        }
        if bytes.len() < fpdu::total_bytes(length) {
            return Ok(false);
        }
        self.take_untagged(context, length)?;
        Ok(!self.waits_for_memory)
    }

    /// Records the arrival of a valid FPDU.
    fn note_fpdu(&mut self, context: &mut RxContext<'_>) {
        if !self.received {
            self.received = true;
            context.tx.release();
        }
    }
}

/// Checks the control bytes: versions, operation, and tagged flag.
fn check_control(c: Control) -> Result<super::wire::rdmap::Opcode, Fault> {
    if !c.ddp_version_ok() {
        let code = if c.is_tagged() { ErrorCode::TAGGED_VERSION } else { ErrorCode::UNTAGGED_VERSION };
        return Err(Fault::peer(code, format_args!("{c:x?}")));
    }
    if !c.rdmap_version_ok() {
        return Err(Fault::peer(ErrorCode::RDMAP_VERSION, format_args!("{c:x?}")));
    }
    let opcode = c.opcode().ok_or_else(|| Fault::peer(ErrorCode::OPCODE, format_args!("{c:x?}")))?;
    if opcode.is_tagged() != c.is_tagged() {
        return Err(Fault::peer(ErrorCode::OPCODE, format_args!("{opcode:?} with the wrong tagged bit")));
    }
    Ok(opcode)
}
