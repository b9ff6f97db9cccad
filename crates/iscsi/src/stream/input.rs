//! The receiving direction of a connection.

use std::{
    future::poll_fn,
    io::{self, IoSliceMut},
    task::{Context, Poll, ready},
};

use crate::pdu::{BHS_BYTES, Bhs, Invalid, Part, PduReader};
use millrace_buffer::copied;
use millrace_runtime::ByteStream;
use smallvec::SmallVec;

/// Bytes that are received at once while no data of commands is expected.
const AHEAD: usize = 4096;
/// Bytes after a data segment that are received with it: padding, digest, and the next header with its digest.
const AFTER_DATA: usize = 4 + 4 + BHS_BYTES + 4;

/// Why a stream has no further PDU.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The stream failed or ended.
    #[error(transparent)]
    Stream(#[from] io::Error),
    /// The peer sent an invalid PDU.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Divides the received bytes into PDUs. Data goes directly to memory of the caller, except for the first bytes that
/// were received together with a header.
pub struct Input {
    /// The division of the stream into PDUs.
    pub reader: PduReader,
    ahead: Box<[u8; AHEAD]>,
    start: usize,
    end: usize,
    /// Whether the last PDU had data of a command: then the next one is likely to have some.
    pub bulk: bool,
    /// Bytes received from the stream.
    pub received: u64,
}

impl Input {
    /// An input without received bytes.
    pub fn new(reader: PduReader) -> Self {
        Self { reader, ahead: Box::new([0; AHEAD]), start: 0, end: 0, bulk: false, received: 0 }
    }

    /// Whether no part of the next PDU was received.
    pub fn at_start(&self) -> bool {
        self.start == self.end && self.reader.next() == (Part::Header, BHS_BYTES)
    }

    /// Receives bytes of the current part, at least 1, and returns their number; 0 if bytes were received that must
    /// be taken by another call. Data is stored in `to`, whose length is at most that of the part; other parts, and
    /// data that is not kept, have an empty `to`.
    pub fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        to: &mut [&mut [u8]],
    ) -> Poll<Result<usize, Broken>> {
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
        let n = ready!(stream.poll_read(cx, &mut slices))?;
        drop(slices);
        if n == 0 {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
        }
        self.received += n as u64;
        let mut left = n.min(direct);
        (self.start, self.end) = (0, n - left);
        let placed = left;
        for slice in to {
            let taken = left.min(slice.len());
            self.reader.supply(&slice[..taken])?;
            left -= taken;
        }
        Poll::Ready(Ok(placed))
    }

    /// Receives a PDU of the login phase, whose reader bounds the data segment.
    ///
    /// # Errors
    /// The stream failed or ended, or the PDU is invalid.
    pub async fn receive(&mut self, stream: &mut dyn ByteStream) -> Result<(Bhs, Vec<u8>), Broken> {
        let mut data = Vec::new();
        loop {
            let (part, missing) = self.reader.next();
            match part {
                Part::End => break,
                Part::Data => {
                    let at = data.len();
                    data.resize(at + missing, 0);
                    let to = &mut data[at..];
                    let n = poll_fn(|cx| self.poll_part(cx, stream, &mut [to])).await?;
                    data.truncate(at + n);
                }
                _ => {
                    poll_fn(|cx| self.poll_part(cx, stream, &mut [])).await?;
                }
            }
        }
        let bhs = self.reader.header().copied().unwrap_or([0; BHS_BYTES]);
        self.reader.finish();
        Ok((bhs, data))
    }

    fn take_buffered(&mut self, to: &mut [&mut [u8]]) -> Result<usize, Broken> {
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
        self.reader.supply(bytes)?;
        Ok(n)
    }
}
