//! Bytes that wait for a stream.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use smallvec::SmallVec;

use crate::ByteStream;

/// Maximum number of slices of one write.
const MAX_SLICES: usize = 64;

/// Pieces of bytes that wait for a stream, which takes them in order and without a copy.
pub struct SendQueue<P> {
    pieces: VecDeque<P>,
    /// Bytes of the first piece that are sent.
    at: usize,
    queued: usize,
    sent: u64,
    /// Marks, each with the number of sent bytes at which it is reached.
    marks: VecDeque<(u64, usize)>,
}

impl<P> Default for SendQueue<P> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), at: 0, queued: 0, sent: 0, marks: VecDeque::new() }
    }
}

impl<P: AsRef<[u8]>> SendQueue<P> {
    /// Number of bytes that wait.
    pub const fn queued(&self) -> usize {
        self.queued
    }

    /// Number of bytes that the stream has accepted.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: P) {
        let length = piece.as_ref().len();
        if length > 0 {
            self.queued += length;
            self.pieces.push_back(piece);
        }
    }

    /// Appends a mark, which [`Self::next_mark`] returns when all pieces before it are sent.
    pub fn mark(&mut self, mark: usize) {
        self.marks.push_back((self.sent + self.queued as u64, mark));
    }

    /// The next mark before which all pieces are sent.
    pub fn next_mark(&mut self) -> Option<usize> {
        self.marks.pop_front_if(|(end, _)| *end <= self.sent).map(|(_, mark)| mark)
    }

    /// Writes until nothing waits, and flushes the stream.
    ///
    /// # Errors
    /// The stream failed.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>, stream: &mut dyn ByteStream) -> Poll<io::Result<()>> {
        while self.queued > 0 {
            let mut slices: SmallVec<[IoSlice<'_>; MAX_SLICES]> = SmallVec::new();
            for (i, piece) in self.pieces.iter().take(MAX_SLICES).enumerate() {
                let from = if i == 0 { self.at } else { 0 };
                slices.push(IoSlice::new(&piece.as_ref()[from..]));
            }
            let n = ready!(stream.poll_write(cx, &slices))?;
            drop(slices);
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(n);
        }
        stream.poll_flush(cx)
    }

    fn advance(&mut self, n: usize) {
        self.sent += n as u64;
        self.queued -= n;
        self.at += n;
        while let Some(first) = self.pieces.front() {
            let length = first.as_ref().len();
            if self.at < length {
                break;
            }
            self.at -= length;
            self.pieces.pop_front();
        }
    }

    /// Discards what waits, and returns the marks.
    pub fn clear(&mut self) -> impl Iterator<Item = usize> {
        self.pieces.clear();
        (self.at, self.queued) = (0, 0);
        self.marks.drain(..).map(|(_, mark)| mark)
    }
}
