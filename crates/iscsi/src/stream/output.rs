//! The sending direction of a connection.

use std::{
    io,
    task::{Context, Poll},
};

use crate::pdu::{Bhs, Digest, digest, padding};
use millrace_buffer::{View, Views};
use millrace_runtime::{ByteStream, SendQueue};
use smallvec::SmallVec;

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

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
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
    /// The marks are charges to release.
    queue: SendQueue<Piece>,
}

impl Output {
    /// Bytes that wait.
    pub fn queued(&self) -> usize {
        self.queue.queued()
    }

    /// Number of bytes that the stream has accepted.
    pub fn sent(&self) -> u64 {
        self.queue.sent()
    }

    /// Appends a PDU; `charge` bytes are released when it is sent.
    pub fn push(&mut self, bhs: &Bhs, data: Segment, charge: usize) {
        let mut head: SmallVec<[u8; 56]> = SmallVec::from_slice(bhs);
        if self.header_digest {
            head.extend_from_slice(&digest(&[bhs]));
        }
        self.queue.push(Piece::Bytes(head));
        let mut sum = Digest::new();
        let length = match data {
            Segment::Bytes(bytes) => {
                let length = bytes.len();
                if self.data_digest {
                    sum.update(&bytes);
                }
                self.queue.push(Piece::Text(bytes));
                length
            }
            Segment::Views(views) => {
                for view in views.iter() {
                    if self.data_digest {
                        sum.update(view);
                    }
                    self.queue.push(Piece::View(view.clone()));
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
        self.queue.push(Piece::Bytes(tail));
        if charge > 0 {
            self.queue.mark(charge);
        }
    }

    /// Writes until nothing waits.
    ///
    /// # Errors
    /// The stream failed.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>, stream: &mut dyn ByteStream) -> Poll<io::Result<()>> {
        self.queue.poll_flush(cx, stream)
    }

    /// The charges of PDUs that are sent since the last call.
    pub fn take_sent(&mut self) -> usize {
        std::iter::from_fn(|| self.queue.next_mark()).sum()
    }

    /// Discards what waits, and returns the charges.
    pub fn clear(&mut self) -> usize {
        self.queue.clear().sum()
    }
}
