//! The receiving direction of a connection.

use std::{
    io::{self, IoSliceMut},
    task::{Context, Poll, ready},
};

use millrace_buffer::copied;
use millrace_iscsi::pdu::{BHS_BYTES, Part, PduReader};
use millrace_runtime::ByteStream;
use smallvec::SmallVec;

use crate::end::End;

/// Bytes that are received at once while no data of commands is expected.
const AHEAD: usize = 4096;
/// Bytes after a data segment that are received with it: padding, digest, and the next header with its digest.
const AFTER_DATA: usize = 4 + 4 + BHS_BYTES + 4;

/// Divides the received bytes into PDUs. Data goes directly to memory of the caller, except for the first bytes that
/// were received together with a header.
pub(super) struct Input {
    pub(super) reader: PduReader,
    ahead: Box<[u8; AHEAD]>,
    start: usize,
    end: usize,
    /// Whether the last PDU had data of a command: then the next one is likely to have some.
    pub(super) bulk: bool,
    /// Bytes received from the stream.
    pub(super) received: u64,
}

impl Input {
    pub(super) fn new(reader: PduReader) -> Self {
        Self { reader, ahead: Box::new([0; AHEAD]), start: 0, end: 0, bulk: false, received: 0 }
    }

    /// Whether no part of the next PDU was received.
    pub(super) fn at_start(&self) -> bool {
        self.start == self.end && self.reader.next() == (Part::Header, BHS_BYTES)
    }

    /// Receives bytes of the current part, at least 1, and returns their number; 0 if bytes were received that must
    /// be taken by another call. Data is stored in `to`, whose length is at most that of the part; other parts, and
    /// data that is not kept, have an empty `to`.
    pub(super) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        to: &mut [&mut [u8]],
    ) -> Poll<Result<usize, End>> {
        if self.start < self.end {
            return Poll::Ready(self.take_buffered(to));
        }
        let (part, missing) = self.reader.next();
        let room = match (part, to.is_empty()) {
            (Part::Data, false) => AFTER_DATA,
            (Part::Data, true) => missing.min(AHEAD),
            _ if self.bulk => missing.min(AHEAD),
            _ => AHEAD,
        };
        let direct: usize = to.iter().map(|slice| slice.len()).sum();
        let mut slices: SmallVec<[IoSliceMut<'_>; 8]> = to.iter_mut().map(|s| IoSliceMut::new(s)).collect();
        slices.push(IoSliceMut::new(&mut self.ahead[..room]));
        let n = ready!(stream.poll_read(cx, &mut slices)).map_err(End::Stream)?;
        drop(slices);
        if n == 0 {
            return Poll::Ready(Err(End::Stream(io::ErrorKind::UnexpectedEof.into())));
        }
        self.received += n as u64;
        let mut left = n.min(direct);
        (self.start, self.end) = (0, n - left);
        let placed = left;
        for slice in to {
            let taken = left.min(slice.len());
            self.reader.supply(&slice[..taken]).map_err(End::Invalid)?;
            left -= taken;
        }
        Poll::Ready(Ok(placed))
    }

    fn take_buffered(&mut self, to: &mut [&mut [u8]]) -> Result<usize, End> {
        let (_, missing) = self.reader.next();
        let direct: usize = to.iter().map(|slice| slice.len()).sum();
        let limit = if to.is_empty() { missing } else { direct.min(missing) };
        let n = limit.min(self.end - self.start);
        let bytes = &self.ahead[self.start..self.start + n];
        let mut rest = bytes;
        for slice in to {
            let (now, later) = rest.split_at(rest.len().min(slice.len()));
            copied::copy(&mut slice[..now.len()], now);
            rest = later;
        }
        self.start += n;
        self.reader.supply(bytes).map_err(End::Invalid)?;
        Ok(n)
    }
}
