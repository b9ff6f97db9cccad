//! Posted work, and its division into frames.

use std::collections::VecDeque;

use millrace_buffer::Views;
use millrace_rdma::{
    WorkId,
    stag::{AccessError, Source, StagTable},
};

use super::frame::{BATCH_FRAMES, Frame, INLINE_BYTES};
use crate::{
    fault::Fault,
    wire::{
        crc::Crc,
        ddp::Untagged,
        fpdu,
        rdmap::{Opcode, ReadRequestBody},
    },
};

/// Kind of a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// A Write or a Read Response to this memory of the peer.
    Tagged { opcode: Opcode, tag: u32, offset: u64 },
    /// Send, Read Request or Terminate.
    Untagged { opcode: Opcode, msn: u32, invalidate: u32 },
}

/// Location of a message's data.
#[derive(Debug)]
pub(super) enum Data {
    /// Shared memory of this end.
    Views(Views),
    /// The exposed region that the peer's Read Request names.
    Source { header: Untagged, body: ReadRequestBody },
    /// The body of a Read Request.
    Read([u8; ReadRequestBody::BYTES]),
    /// The payload of a Terminate.
    Bytes(Vec<u8>),
}

/// The data of a message.
#[derive(Clone, Copy)]
pub(super) enum MessageData<'a> {
    Bytes(&'a [u8]),
    /// The message begins at this position of the views.
    Views(&'a Views, usize),
}

/// A message in the queue.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) kind: Kind,
    /// Length of the message in bytes.
    pub(super) len: usize,
    /// Bytes that are in frames.
    done: usize,
    /// Start of the next frame in the views: index of a view, and offset in it.
    cursor: (usize, usize),
    pub(super) data: Data,
    pub(super) signal: Option<WorkId>,
    /// The work was dropped except for its partly sent frame.
    pub(super) abandoned: bool,
}

impl Work {
    pub(super) fn new(kind: Kind, len: usize, data: Data, signal: Option<WorkId>) -> Self {
        Self { kind, len, done: 0, cursor: (0, 0), data, signal, abandoned: false }
    }

    pub(super) fn is_response(&self) -> bool {
        matches!(self.data, Data::Source { .. })
    }

    /// Locates the data. That of a Read Response is accessible only while its region is exposed.
    pub(super) fn find<'a>(&'a self, table: Option<&'a StagTable>) -> Result<MessageData<'a>, Fault> {
        self.data.find(self.len, table)
    }
}

impl Data {
    /// Like [`Work::find`], for a message of `len` bytes.
    fn find<'a>(&'a self, len: usize, table: Option<&'a StagTable>) -> Result<MessageData<'a>, Fault> {
        match self {
            Self::Views(v) => Ok(MessageData::Views(v, 0)),
            Self::Read(b) => Ok(MessageData::Bytes(b)),
            Self::Bytes(b) => Ok(MessageData::Bytes(b)),
            Self::Source { .. } if len == 0 => Ok(MessageData::Bytes(&[])),
            Self::Source { header, body } => {
                let denied = match table {
                    Some(t) => match t.source(body.source_tag, body.source_offset, len) {
                        Ok(Source::Bytes(b)) => return Ok(MessageData::Bytes(b)),
                        Ok(Source::Views(v, at)) => return Ok(MessageData::Views(v, at)),
                        Err(denied) => denied,
                    },
                    None => AccessError::Stag,
                };
                Err(Fault::read_source(denied, header, body.encode().to_vec()))
            }
        }
    }
}

/// Calls `f` with the pieces of `len` bytes from `start` of the message, until it returns false. `cursor` is
/// the position of `start` in the views; returns that of the end.
pub(super) fn pieces<'a>(
    found: MessageData<'a>,
    start: usize,
    cursor: (usize, usize),
    len: usize,
    mut f: impl FnMut(&'a [u8]) -> bool,
) -> (usize, usize) {
    match found {
        MessageData::Bytes(b) => {
            f(b.get(start..start + len).unwrap_or_default());
            cursor
        }
        MessageData::Views(v, _) => {
            let (mut view, mut at) = cursor;
            let mut left = len;
            for piece in v.iter().skip(view) {
                let n = left.min(piece.len() - at);
                if n > 0 && !f(&piece[at..at + n]) {
                    break;
                }
                left -= n;
                if at + n == piece.len() {
                    (view, at) = (view + 1, 0);
                } else {
                    at += n;
                }
                if left == 0 {
                    break;
                }
            }
            (view, at)
        }
    }
}

/// The position `at` of `views` as index of a view and offset in it.
fn cursor_at(views: &Views, mut at: usize) -> (usize, usize) {
    for (i, v) in views.iter().enumerate() {
        if at < v.len() {
            return (i, at);
        }
        at -= v.len();
    }
    (views.iter().len(), 0)
}

/// Divides work into frames until a batch is full.
pub(super) struct Framer<'a> {
    /// Maximum payload of a frame.
    pub(super) max_payload: usize,
    /// Buffer to which headers, inlined payload and trailers are appended.
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) crc: Option<&'a mut Crc>,
    pub(super) table: Option<&'a StagTable>,
    /// Destination of the frames.
    pub(super) frames: &'a mut VecDeque<Frame>,
    /// Size of a full batch in bytes, and of the current one.
    pub(super) limit: usize,
    pub(super) bytes: usize,
}

impl Framer<'_> {
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= self.limit || self.frames.len() >= BATCH_FRAMES
    }

    /// Creates frames from `work`, at least one. Returns true if `work` is complete.
    pub(super) fn add_work(&mut self, work: &mut Work, number: u64) -> Result<bool, Fault> {
        let Work { kind, len: total, done, cursor, data, .. } = work;
        let most = match data {
            Data::Views(_) | Data::Source { .. } => self.max_payload,
            Data::Read(_) | Data::Bytes(_) => usize::MAX, // Always one segment.
        };
        let found = data.find(*total, self.table)?;
        if let MessageData::Views(v, at) = found
            && *done == 0
            && at > 0
        {
            *cursor = cursor_at(v, at);
        }
        loop {
            let len = (*total - *done).min(most);
            let last = *done + len == *total;
            let (mut frame, next) = self.frame(kind, found, (*done, len, last), *cursor);
            frame.work = number;
            (*cursor, *done) = (next, *done + len);
            self.bytes += frame.total();
            self.frames.push_back(frame);
            if last || self.is_full() {
                return Ok(last);
            }
        }
    }

    /// Creates the frame for `len` bytes from `start` of a message. Returns it with the position after it in
    /// the message's views.
    fn frame(
        &mut self,
        kind: &Kind,
        found: MessageData<'_>,
        (start, len, last): (usize, usize, bool),
        cursor: (usize, usize),
    ) -> (Frame, (usize, usize)) {
        let scratch = &mut *self.scratch;
        let ulpdu = kind.header_bytes() + len;
        let began = scratch.len();
        scratch.extend_from_slice(&(ulpdu as u16).to_be_bytes()); // Limited by max_payload.
        kind.header(start, last, scratch);
        let header_end = scratch.len();
        let inline = len <= INLINE_BYTES;
        let next = pieces(found, start, cursor, len, |p| {
            if inline {
                scratch.extend_from_slice(p);
            }
            true
        });
        let head = scratch.len() - began;
        let pad = fpdu::pad_bytes(ulpdu);
        scratch.extend_from_slice(&[0; 3][..pad]);
        let sum = match self.crc.as_deref_mut() {
            Some(crc) => {
                crc.reset();
                crc.update(&scratch[began..header_end]);
                pieces(found, start, cursor, len, |p| {
                    crc.update(p);
                    true
                });
                crc.update(&[0; 3][..pad]);
                crc.wire()
            }
            None => [0; fpdu::CRC_BYTES],
        };
        scratch.extend_from_slice(&sum);
        let tail = pad + fpdu::CRC_BYTES;
        let len = if inline { 0 } else { len };
        (Frame { head, len, tail, start, cursor, work: 0, last }, next)
    }
}
