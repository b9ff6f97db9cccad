//! The sending direction of a connection.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use millrace_buffer::{View, Views};
use millrace_iscsi::pdu::{Bhs, Digest, digest, padding};
use millrace_runtime::ByteStream;
use smallvec::SmallVec;

/// Maximum number of slices of one write.
const MAX_SLICES: usize = 64;

/// The data segment of a PDU.
pub enum Segment {
    /// Bytes; empty if the PDU has no data.
    Bytes(Vec<u8>),
    /// Data by reference.
    Views(Views),
}

enum Piece {
    Bytes(SmallVec<[u8; 56]>),
    Text(Vec<u8>),
    View(View),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Text(bytes) => bytes,
            Self::View(view) => view,
        }
    }
}

/// PDUs that wait for the stream.
#[derive(Default)]
pub struct Output {
    /// Whether headers have a digest.
    pub header_digest: bool,
    /// Whether data segments have a digest.
    pub data_digest: bool,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    at: usize,
    queued: usize,
    /// Bytes that the stream has accepted.
    pub sent: u64,
    /// Charges to release, each with the number of sent bytes at which it is released.
    charges: VecDeque<(u64, usize)>,
}

impl Output {
    /// Bytes that wait.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Appends a PDU; `charge` bytes are released when it is sent.
    pub fn push(&mut self, bhs: &Bhs, data: Segment, charge: usize) {
        let mut head: SmallVec<[u8; 56]> = SmallVec::from_slice(bhs);
        if self.header_digest {
            head.extend_from_slice(&digest(&[bhs]));
        }
        self.add(Piece::Bytes(head));
        let mut sum = Digest::new();
        let length = match data {
            Segment::Bytes(bytes) => {
                let length = bytes.len();
                if self.data_digest {
                    sum.update(&bytes);
                }
                self.add(Piece::Text(bytes));
                length
            }
            Segment::Views(views) => {
                for view in views.iter() {
                    if self.data_digest {
                        sum.update(view);
                    }
                    self.add(Piece::View(view.clone()));
                }
                views.len()
            }
        };
        // DataSegmentLength has 24 bits.
        let mut tail: SmallVec<[u8; 56]> = SmallVec::from_elem(0, padding(length as u32));
        if self.data_digest && length > 0 {
            sum.update(&tail);
            tail.extend_from_slice(&sum.wire());
        }
        self.add(Piece::Bytes(tail));
        if charge > 0 {
            self.charges.push_back((self.sent + self.queued as u64, charge));
        }
    }

    fn add(&mut self, piece: Piece) {
        let length = piece.bytes().len();
        if length > 0 {
            self.queued += length;
            self.pieces.push_back(piece);
        }
    }

    /// Writes until nothing waits.
    ///
    /// # Errors
    /// The stream failed.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>, stream: &mut dyn ByteStream) -> Poll<io::Result<()>> {
        while self.queued > 0 {
            let mut slices: SmallVec<[IoSlice<'_>; MAX_SLICES]> = SmallVec::new();
            for (i, piece) in self.pieces.iter().take(MAX_SLICES).enumerate() {
                let from = if i == 0 { self.at } else { 0 };
                slices.push(IoSlice::new(&piece.bytes()[from..]));
            }
            let n = ready!(stream.poll_write(cx, &slices))?;
            drop(slices);
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(n);
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, n: usize) {
        self.sent += n as u64;
        self.queued -= n;
        self.at += n;
        while let Some(first) = self.pieces.front() {
            let length = first.bytes().len();
            if self.at < length {
                break;
            }
            self.at -= length;
            self.pieces.pop_front();
        }
    }

    /// The charges of PDUs that are sent since the last call.
    pub fn take_sent(&mut self) -> usize {
        let mut sum = 0;
        while let Some((_, charge)) = self.charges.pop_front_if(|(end, _)| *end <= self.sent) {
            sum += charge;
        }
        sum
    }

    /// Discards what waits, and returns the charges.
    pub fn clear(&mut self) -> usize {
        self.pieces.clear();
        (self.at, self.queued) = (0, 0);
        self.charges.drain(..).map(|(_, charge)| charge).sum()
    }
}
