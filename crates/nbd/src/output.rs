//! The sending direction of a connection.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use millrace_buffer::View;
use millrace_runtime::ByteStream;
use smallvec::SmallVec;

/// Maximum number of slices of one write.
const MAX_SLICES: usize = 64;

/// The header of a reply.
pub(crate) type Head = SmallVec<[u8; 32]>;

enum Piece {
    Head(Head),
    View(View),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Head(bytes) => bytes,
            Self::View(view) => view,
        }
    }
}

/// Replies that wait for the stream.
#[derive(Default)]
pub(crate) struct Output {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    at: usize,
    queued: usize,
    sent: u64,
    /// The number of sent bytes at which each reply is sent, with the length of its request.
    replies: VecDeque<(u64, usize)>,
}

impl Output {
    /// Appends bytes that answer no request.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.add(Piece::Head(Head::from_slice(bytes)));
    }

    /// Appends a reply to a request of `length` bytes.
    pub(crate) fn push_reply(&mut self, head: Head, data: Vec<View>, length: usize) {
        self.add(Piece::Head(head));
        data.into_iter().for_each(|view| self.add(Piece::View(view)));
        self.replies.push_back((self.sent + self.queued as u64, length));
    }

    fn add(&mut self, piece: Piece) {
        let length = piece.bytes().len();
        if length > 0 {
            self.queued += length;
            self.pieces.push_back(piece);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Writes until nothing waits.
    ///
    /// # Errors
    /// The stream failed.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
    ) -> Poll<io::Result<()>> {
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

    /// The lengths of the requests whose replies are sent since the last call.
    pub(crate) fn next_sent(&mut self) -> Option<usize> {
        self.replies.pop_front_if(|(end, _)| *end <= self.sent).map(|(_, length)| length)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, io::IoSliceMut};

    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_runtime::memory_stream;

    use super::*;

    #[tokio::test]
    async fn replies_are_sent_in_order_and_reported() {
        let arena = Arena::new(ArenaConfig { limit: 4 << 20, huge_pages: false });
        let (mut ours, mut peer) = memory_stream(1000, 1000);
        let mut output = Output::default();
        output.push_bytes(b"greeting");
        let data = vec![arena.copy_from(&[1; 600]).unwrap(), arena.copy_from(&[2; 600]).unwrap()];
        output.push_reply(Head::from_slice(b"head"), data, 1200);
        output.push_reply(Head::from_slice(b"next"), Vec::new(), 0);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(output.poll_flush(&mut cx, &mut ours).is_pending());
        assert_eq!(output.next_sent(), None, "the first reply is sent in part");
        let mut received = Vec::new();
        while !output.is_empty() || received.len() < 1216 {
            let mut buffer = [0; 1000];
            let n = poll_fn(|cx| peer.poll_read(cx, &mut [IoSliceMut::new(&mut buffer)]));
            let n = n.await.unwrap();
            received.extend_from_slice(&buffer[..n]);
            let _pending = output.poll_flush(&mut cx, &mut ours).map(Result::unwrap);
        }
        let expected = [&b"greetinghead"[..], &[1; 600], &[2; 600], b"next"].concat();
        assert_eq!(received, expected);
        assert_eq!([(); 3].map(|()| output.next_sent()), [Some(1200), Some(0), None]);
    }
}
