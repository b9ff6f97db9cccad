//! The receiver: bytes in, memory filled, completions out.
//!
//! It has two ways of reading. In *header* mode it reads into the [stash](stash) and takes whole FPDUs from there;
//! small messages end there, copied once. When the payload of a tagged FPDU is not yet complete, it reads in
//! *[direct](direct)* mode: the rest of the payload goes from the stream straight into its region, and so do the
//! payloads of the FPDUs that will probably follow.
//!
//! Order of calls: [`Rx::receive`] until it says `Pending`. It is the only door; after a [`Fault`] nothing more is
//! received.

mod direct;
mod stash;
mod tagged;
mod untagged;

use std::{
    collections::VecDeque,
    io::IoSliceMut,
    task::{Context, Poll, ready},
};

use millrace_buffer::Buffer;
use millrace_rdma::{Completion, ConnectionError, Counters, stag::StagDomain};
use millrace_runtime::ByteStream;

use self::{direct::Direct, stash::Stash, tagged::OpenFpdu, untagged::OpenSend};
use super::{
    fault::Fault,
    reads::Reads,
    tx::Tx,
    wire::{
        be,
        crc::Crc,
        ddp::{Control, Tagged, Untagged},
        fpdu,
        terminate::ErrorCode,
    },
};

/// Bytes read at a time while large tagged payload comes: little of it is bounced then.
const SMALL_WINDOW: usize = 4 << 10;
/// Bytes read at a time while small messages come.
const LARGE_WINDOW: usize = 64 << 10;
/// A direct read that places this much shows that large tagged payload comes.
const LARGE_PAYLOAD: usize = 16 << 10;

/// What the receiver works on beside its own state.
pub(crate) struct Ends<'a> {
    /// The tags.
    pub(crate) domain: &'a StagDomain,
    /// Posted receives, in order.
    pub(crate) receives: &'a mut VecDeque<Buffer>,
    /// Our RDMA Reads.
    pub(crate) reads: &'a mut Reads,
    /// Where Read Responses are queued.
    pub(crate) tx: &'a mut Tx,
    /// Where completions go.
    pub(crate) out: &'a mut Vec<Completion>,
    /// What is counted.
    pub(crate) counters: &'a mut Counters,
}

/// The receiver of a queue pair.
#[derive(Debug)]
pub(crate) struct Rx {
    stash: Stash,
    /// The tagged FPDU whose payload or trailer is not complete.
    open: Option<OpenFpdu>,
    /// The tagged message that is not complete: the header that its next segment must have.
    message: Option<Tagged>,
    /// The Send that is not complete.
    send: Option<OpenSend>,
    send_msn: u32,
    read_msn: u32,
    /// Reads of the peer that we serve at once.
    ird: usize,
    /// The CRC of the FPDU that is open, if CRCs are checked.
    crc: Option<Crc>,
    direct: Direct,
    window: usize,
    received: bool,
    /// The first message is an RTR by empty Send: not for the upper layer.
    rtr_send: bool,
}

impl Rx {
    /// A receiver at the start of the FPDU phase.
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
            rtr_send,
        }
    }

    /// Whether an FPDU has come.
    pub(crate) const fn has_received(&self) -> bool {
        self.received
    }

    /// Reads once, and handles all that is complete then.
    pub(crate) fn receive(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        ends: &mut Ends<'_>,
    ) -> Poll<Result<(), Fault>> {
        let read = match self.open {
            Some(open) if open.missing() > 0 => self.read_direct(cx, stream, ends, open),
            _ => self.read_stash(cx, stream, ends),
        };
        let n = match ready!(read) {
            Ok(n) => n,
            Err(fault) => return Poll::Ready(Err(fault)),
        };
        if n == 0 {
            return Poll::Ready(Err(self.end_of_stream()));
        }
        Poll::Ready(self.take_all(ends))
    }

    fn read_stash(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        ends: &mut Ends<'_>,
    ) -> Poll<Result<usize, Fault>> {
        let room = self.stash.room(self.window);
        let n = match ready!(stream.poll_read(cx, &mut [IoSliceMut::new(room)])) {
            Ok(n) => n,
            Err(e) => return Poll::Ready(Err(Fault::io(&e))),
        };
        ends.counters.syscalls += 1;
        self.stash.commit(n);
        self.adapt_window(n, 0);
        Poll::Ready(Ok(n))
    }

    /// After a read that put `stashed` bytes into the stash and `placed` into regions.
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
        Fault::silent(if inside {
            ConnectionError::Io("the peer closed the connection in the middle of a message".into())
        } else {
            ConnectionError::Closed
        })
    }

    /// Handles everything in the stash that is complete.
    fn take_all(&mut self, ends: &mut Ends<'_>) -> Result<(), Fault> {
        while self.take_one(ends)? {}
        self.stash.shrink();
        Ok(())
    }

    /// Handles the next piece of the stash; false if more bytes are needed.
    fn take_one(&mut self, ends: &mut Ends<'_>) -> Result<bool, Fault> {
        if let Some(open) = self.open {
            return self.continue_tagged(ends, open);
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
            return self.open_tagged(ends, header, length - Tagged::BYTES).map(|()| true);
        }
        if length < Untagged::BYTES {
            return Err(Fault::peer(ErrorCode::FPDU, format_args!("ULPDU of {length} bytes")));
        }
        if bytes.len() < fpdu::total_bytes(length) {
            return Ok(false);
        }
        self.take_untagged(ends, length)?;
        Ok(true)
    }

    /// A valid FPDU is here.
    fn note_fpdu(&mut self, ends: &mut Ends<'_>) {
        if !self.received {
            self.received = true;
            ends.tx.release();
        }
    }
}

/// Judges the control bytes: versions, operation, and whether it belongs on a tagged segment.
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
