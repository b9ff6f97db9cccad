//! The sending direction of a connection.

use std::{
    io,
    task::{Context, Poll},
};

use millrace_buffer::View;
use millrace_runtime::{ByteStream, SendQueue};
use smallvec::SmallVec;

/// The header of a reply.
pub(crate) type Head = SmallVec<[u8; 32]>;

enum Piece {
    Head(Head),
    View(View),
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Head(bytes) => bytes,
            Self::View(view) => view,
        }
    }
}

/// Replies that wait for the stream.
#[derive(Default)]
pub(crate) struct Output {
    /// The marks are the lengths of the requests that are answered.
    queue: SendQueue<Piece>,
}

impl Output {
    /// Appends bytes that answer no request.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.queue.push(Piece::Head(Head::from_slice(bytes)));
    }

    /// Appends a reply to a request of `length` bytes.
    pub(crate) fn push_reply(&mut self, head: Head, data: Vec<View>, length: usize) {
        self.queue.push(Piece::Head(head));
        data.into_iter().for_each(|view| self.queue.push(Piece::View(view)));
        self.queue.mark(length);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.queued() == 0
    }

    /// Number of bytes that the stream has accepted.
    pub(crate) fn sent(&self) -> u64 {
        self.queue.sent()
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
        self.queue.poll_flush(cx, stream)
    }

    /// The lengths of the requests whose replies are sent since the last call.
    pub(crate) fn next_sent(&mut self) -> Option<usize> {
        self.queue.next_mark()
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
