//! The receiving direction of a connection.

use std::{
    io::{self, IoSliceMut},
    task::{Context, Poll, ready},
};

use millrace_buffer::{Buffer, copied};
use millrace_runtime::ByteStream;
use smallvec::SmallVec;

use crate::wire::REQUEST_BYTES;

/// Bytes that are received at once while no data of a write is expected.
const AHEAD: usize = 4096;

/// Received bytes. The data of writes goes directly to the device's buffers, except for bytes that were received together
/// with a header.
pub(crate) struct Input {
    ahead: Box<[u8; AHEAD]>,
    start: usize,
    end: usize,
    received: u64,
}

/// The buffers of a write, and the number of bytes that they have.
pub(crate) struct Payload {
    pub(crate) buffers: Vec<Buffer>,
    filled: usize,
    length: usize,
}

impl Payload {
    pub(crate) fn new(buffers: Vec<Buffer>) -> Self {
        let length = buffers.iter().map(|buffer| buffer.len()).sum();
        Self { buffers, filled: 0, length }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.filled == self.length
    }

    /// The memory that has no data yet.
    fn missing(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut skip = self.filled;
        self.buffers.iter_mut().filter_map(move |buffer| {
            let from = skip.min(buffer.len());
            skip -= from;
            Some(&mut buffer[from..]).filter(|rest| !rest.is_empty())
        })
    }
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { ahead: Box::new([0; AHEAD]), start: 0, end: 0, received: 0 }
    }

    /// Number of bytes received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Whether received bytes wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Receives bytes until `N` wait, and takes them; `None` is the end of the stream before the first byte. `only`:
    /// receives no bytes after these.
    ///
    /// # Errors
    /// The stream failed, or ended within the bytes.
    pub(crate) fn poll_take<const N: usize>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        only: bool,
    ) -> Poll<io::Result<Option<[u8; N]>>> {
        loop {
            if let Some(bytes) = self.ahead[self.start..self.end].first_chunk::<N>() {
                let bytes = *bytes;
                self.start += N;
                return Poll::Ready(Ok(Some(bytes)));
            }
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let limit = if only { N } else { AHEAD };
            let room = IoSliceMut::new(&mut self.ahead[self.end..limit]);
            match ready!(stream.poll_read(cx, &mut [room]))? {
                0 if self.is_empty() => return Poll::Ready(Ok(None)),
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                n => {
                    self.end += n;
                    self.received += n as u64;
                }
            }
        }
    }

    /// Receives at least one of the next `length` bytes, which are not 0, into its own memory. The next
    /// [`Self::take`] returns them.
    ///
    /// # Errors
    /// The stream failed or ended.
    pub(crate) fn poll_some(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        length: usize,
    ) -> Poll<io::Result<()>> {
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            let room = IoSliceMut::new(&mut self.ahead[..length.min(AHEAD)]);
            self.end = ready!(stream.poll_read(cx, &mut [room]))?;
            if self.end == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.received += self.end as u64;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes at most `length` bytes that wait.
    pub(crate) fn take(&mut self, length: usize) -> &[u8] {
        let from = self.start;
        self.start += length.min(self.end - from);
        &self.ahead[from..self.start]
    }

    /// Receives data of a write until it is complete, and with its end perhaps the next header.
    ///
    /// # Errors
    /// The stream failed, or ended before the data was complete.
    pub(crate) fn poll_payload(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn ByteStream,
        payload: &mut Payload,
    ) -> Poll<io::Result<()>> {
        while !payload.is_complete() {
            if !self.is_empty() {
                let waiting = &self.ahead[self.start..self.end];
                let to = payload.missing().next().unwrap_or_default();
                let n = to.len().min(waiting.len());
                copied::copy(&mut to[..n], &waiting[..n]);
                (self.start, payload.filled) = (self.start + n, payload.filled + n);
                continue;
            }
            let missing = payload.length - payload.filled;
            let mut slices: SmallVec<[IoSliceMut<'_>; 8]> = payload.missing().map(IoSliceMut::new).collect();
            slices.push(IoSliceMut::new(&mut self.ahead[..REQUEST_BYTES]));
            let n = ready!(stream.poll_read(cx, &mut slices))?;
            drop(slices);
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.received += n as u64;
            payload.filled += n.min(missing);
            (self.start, self.end) = (0, n.saturating_sub(missing));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, io::IoSlice};

    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_runtime::memory_stream;

    use super::*;

    #[tokio::test]
    async fn data_is_placed_whatever_the_segments_of_the_stream() {
        let arena = Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false });
        let header = [7; REQUEST_BYTES];
        let data: Vec<u8> = (0..10_000_u32).map(|i| (i % 249) as u8).collect();
        let sent = [&header[..], &data, &header, &data, &header].concat();
        for segment in [1, 27, 28, 100, 4096, 5000, 100_000] {
            for only in [false, true] {
                let (mut ours, mut peer) = memory_stream(1 << 20, segment);
                poll_fn(|cx| peer.poll_write(cx, &[IoSlice::new(&sent)])).await.unwrap();
                peer.shutdown();
                let mut input = Input::new();
                for _ in 0..2 {
                    let taken = poll_fn(|cx| input.poll_take(cx, &mut ours, only)).await.unwrap();
                    assert_eq!(taken, Some(header));
                    let buffers = [6000, 4000].map(|length| arena.alloc(length).unwrap());
                    let mut payload = Payload::new(buffers.into());
                    poll_fn(|cx| input.poll_payload(cx, &mut ours, &mut payload)).await.unwrap();
                    assert!(payload.is_complete());
                    assert!(payload.buffers[0][..] == data[..6000] && payload.buffers[1][..] == data[6000..]);
                }
                assert_eq!(poll_fn(|cx| input.poll_take(cx, &mut ours, only)).await.unwrap(), Some(header));
                let end = poll_fn(|cx| input.poll_take::<REQUEST_BYTES>(cx, &mut ours, only)).await;
                assert_eq!(end.unwrap(), None);
            }
        }
    }

    #[tokio::test]
    async fn an_end_within_a_header_or_data_is_an_error() {
        let arena = Arena::new(ArenaConfig { limit: 4 << 20, huge_pages: false });
        let eof = |result: io::Error| assert_eq!(result.kind(), io::ErrorKind::UnexpectedEof);
        let (mut ours, mut peer) = memory_stream(1 << 20, 100);
        poll_fn(|cx| peer.poll_write(cx, &[IoSlice::new(&[0; 27])])).await.unwrap();
        peer.shutdown();
        let mut input = Input::new();
        eof(poll_fn(|cx| input.poll_take::<REQUEST_BYTES>(cx, &mut ours, false)).await.unwrap_err());
        let mut payload = Payload::new(vec![arena.alloc(4096).unwrap()]);
        eof(poll_fn(|cx| input.poll_payload(cx, &mut ours, &mut payload)).await.unwrap_err());
    }
}
