//! One piece of posted work, and how a frame is cut from it.

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

/// What a message is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Write or Read Response to this place of the peer.
    Tagged { opcode: Opcode, tag: u32, offset: u64 },
    /// Send, Read Request or Terminate.
    Untagged { opcode: Opcode, msn: u32, invalidate: u32 },
}

/// Where the bytes of a message are.
#[derive(Debug)]
pub(super) enum Data {
    /// Ours, shared.
    Views(Views),
    /// In the exposed region that the peer's Read Request names.
    Source { header: Untagged, body: ReadRequestBody },
    /// A Read Request's body.
    Read([u8; ReadRequestBody::BYTES]),
    /// A Terminate's payload.
    Bytes(Vec<u8>),
}

/// The bytes of a message, found.
#[derive(Clone, Copy)]
pub(super) enum Found<'a> {
    Bytes(&'a [u8]),
    /// The message begins at this position of the views.
    Views(&'a Views, usize),
}

/// A message in the queue.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) kind: Kind,
    /// Bytes of the message.
    pub(super) len: usize,
    /// Of which this many are in frames.
    done: usize,
    /// Where in the views the next frame begins: which view, where in it.
    cursor: (usize, usize),
    pub(super) data: Data,
    pub(super) signal: Option<WorkId>,
    /// Only its half-sent frame is of interest any more.
    pub(super) abandoned: bool,
}

impl Work {
    pub(super) fn new(kind: Kind, len: usize, data: Data, signal: Option<WorkId>) -> Self {
        Self { kind, len, done: 0, cursor: (0, 0), data, signal, abandoned: false }
    }

    pub(super) fn is_response(&self) -> bool {
        matches!(self.data, Data::Source { .. })
    }

    /// The bytes of the message. A Read Response's are found only while its region is exposed.
    pub(super) fn find<'a>(&'a self, table: Option<&'a StagTable>) -> Result<Found<'a>, Fault> {
        self.data.find(self.len, table)
    }
}

impl Data {
    /// As [`Work::find`], for a message of `len` bytes.
    fn find<'a>(&'a self, len: usize, table: Option<&'a StagTable>) -> Result<Found<'a>, Fault> {
        match self {
            Self::Views(v) => Ok(Found::Views(v, 0)),
            Self::Read(b) => Ok(Found::Bytes(b)),
            Self::Bytes(b) => Ok(Found::Bytes(b)),
            Self::Source { .. } if len == 0 => Ok(Found::Bytes(&[])),
            Self::Source { header, body } => {
                let denied = match table {
                    Some(t) => match t.source(body.source_tag, body.source_offset, len) {
                        Ok(Source::Bytes(b)) => return Ok(Found::Bytes(b)),
                        Ok(Source::Views(v, at)) => return Ok(Found::Views(v, at)),
                        Err(denied) => denied,
                    },
                    None => AccessError::Stag,
                };
                Err(Fault::read_source(denied, header, body.encode().to_vec()))
            }
        }
    }
}

/// Calls `f` with the pieces of `len` bytes from `start` of the message, until it returns false. `cursor` says where
/// in views that is; gives where the next piece begins.
pub(super) fn pieces<'a>(
    found: Found<'a>,
    start: usize,
    cursor: (usize, usize),
    len: usize,
    mut f: impl FnMut(&'a [u8]) -> bool,
) -> (usize, usize) {
    match found {
        Found::Bytes(b) => {
            f(b.get(start..start + len).unwrap_or_default());
            cursor
        }
        Found::Views(v, _) => {
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

/// The position `at` of `views`: which view, and where in it.
fn cursor_at(views: &Views, mut at: usize) -> (usize, usize) {
    for (i, v) in views.iter().enumerate() {
        if at < v.len() {
            return (i, at);
        }
        at -= v.len();
    }
    (views.iter().len(), 0)
}

/// Cuts work into frames until a batch is full.
pub(super) struct Cutter<'a> {
    /// The most payload of a frame.
    pub(super) max_payload: usize,
    /// Headers, inlined payload and trailers go to its end.
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) crc: Option<&'a mut Crc>,
    pub(super) table: Option<&'a StagTable>,
    /// Where the frames go.
    pub(super) frames: &'a mut VecDeque<Frame>,
    /// Bytes of a full batch, and of the present one.
    pub(super) limit: usize,
    pub(super) bytes: usize,
}

impl Cutter<'_> {
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= self.limit || self.frames.len() >= BATCH_FRAMES
    }

    /// Cuts frames from `work`, at least one; true when it has all of them.
    pub(super) fn cut(&mut self, work: &mut Work, number: u64) -> Result<bool, Fault> {
        let Work { kind, len: total, done, cursor, data, .. } = work;
        let most = match data {
            Data::Views(_) | Data::Source { .. } => self.max_payload,
            Data::Read(_) | Data::Bytes(_) => usize::MAX, // One segment by rule.
        };
        let found = data.find(*total, self.table)?;
        if let Found::Views(v, at) = found
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

    /// The frame for `len` bytes from `start` of a message, and where in the message's views the next one begins.
    fn frame(
        &mut self,
        kind: &Kind,
        found: Found<'_>,
        (start, len, last): (usize, usize, bool),
        cursor: (usize, usize),
    ) -> (Frame, (usize, usize)) {
        let scratch = &mut *self.scratch;
        let ulpdu = kind.header_bytes() + len;
        let began = scratch.len();
        scratch.extend_from_slice(&(ulpdu as u16).to_be_bytes()); // max_payload keeps it in range.
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
