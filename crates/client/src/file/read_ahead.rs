//! Sequential read-ahead of the stream of a [`crate::File`].

use std::{
    collections::VecDeque,
    task::{Context, Poll, ready},
};

use futures::{StreamExt, stream::FuturesOrdered};
use millrace_buffer::Views;
use millrace_runtime::BoxFuture;
use tokio::io::ReadBuf;

use crate::{Error, handles, paths::DEPTH};

/// Minimum size of a READ in bytes.
const LEAST_READ: u64 = 4 << 10;
/// Read-ahead window after the first sequential read, in bytes; it doubles with each further one.
const FIRST_WINDOW: u64 = 128 << 10;
/// Maximum number of consecutive re-reads because this client changed the file.
const MAX_DISCARDS: u32 = 4;

/// Result of a READ: offset, data, and whether the file ends after it.
type Read = Result<(u64, Views, bool), Error>;

/// Reads a file in order, with up to [`DEPTH`] READs in flight while the reader is sequential.
pub(super) struct ReadAhead {
    /// READs in flight, in the order of their offsets.
    calls: FuturesOrdered<BoxFuture<'static, Read>>,
    /// Results of completed READs.
    results: VecDeque<Read>,
    /// The rest of the current piece.
    data: Views,
    /// The offset of `data`, and of `results` and `calls` if it is empty.
    position: u64,
    /// Offset of the next READ.
    next: u64,
    /// Read-ahead window in bytes; 0 after a seek, until the second sequential read.
    window: u64,
    /// Whether data was read since the last seek.
    is_sequential: bool,
    /// Whether the file ends after `data`.
    eof: bool,
    /// Minimum size of the file: READs beyond it are sent one at a time.
    known_end: u64,
    /// [`handles::File::changes`] at the time of the first READ.
    changes: u64,
    discards: u32,
}

impl ReadAhead {
    /// Returns the read-ahead of a file of `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        Self {
            calls: FuturesOrdered::new(),
            results: VecDeque::new(),
            data: Views::new(),
            position: 0,
            next: 0,
            window: FIRST_WINDOW,
            is_sequential: false,
            eof: false,
            known_end: size,
            changes: 0,
            discards: 0,
        }
    }

    /// Discards prefetched data, and continues at `position`.
    fn restart(&mut self, position: u64) {
        self.calls = FuturesOrdered::new();
        self.results.clear();
        self.data = Views::new();
        (self.position, self.next) = (position, position);
        self.eof = false;
    }

    /// Reads data from `offset` into `out`. Returns the number of bytes; 0 at the end of the file. `Pending`
    /// has consumed no data.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        (file, caller): (&handles::File, &handles::Client),
        offset: u64,
        out: &mut ReadBuf<'_>,
    ) -> Poll<Result<usize, Error>> {
        let wanted = out.remaining();
        if wanted == 0 {
            return Poll::Ready(Ok(0));
        }
        if offset != self.position {
            self.restart(offset);
            (self.window, self.is_sequential) = (0, false);
        }
        loop {
            self.discard_changed(file);
            if !self.data.is_empty() {
                self.discards = 0;
                let len = self.give(out);
                self.read_on(cx, file, caller, 0);
                return Poll::Ready(Ok(len));
            }
            if std::mem::take(&mut self.eof) {
                self.restart(self.position);
                self.known_end = self.position;
                return Poll::Ready(Ok(0));
            }
            if self.is_sequential {
                self.window = self.window.max(FIRST_WINDOW);
            }
            self.read_on(cx, file, caller, wanted as u64);
            match ready!(self.poll_result(cx)) {
                Ok((_, data, eof)) => (self.data, self.eof) = (data, eof),
                Err(e) => {
                    self.restart(self.position);
                    return Poll::Ready(Err(e));
                }
            }
        }
    }

    /// Discards data that was read before this client changed the file. The number of re-reads is limited, so
    /// that frequent changes do not block the reader.
    fn discard_changed(&mut self, file: &handles::File) {
        let changes = file.changes();
        if changes == self.changes {
            return;
        }
        self.changes = changes;
        let is_empty = self.data.is_empty() && self.calls.is_empty() && self.results.is_empty() && !self.eof;
        if !is_empty && self.discards < MAX_DISCARDS {
            self.discards += 1;
            self.restart(self.position);
        }
    }

    /// Copies data to `out`.
    fn give(&mut self, out: &mut ReadBuf<'_>) -> usize {
        let len = self.data.len().min(out.remaining());
        let mut left = len;
        for view in self.data.iter() {
            let part = left.min(view.len());
            out.put_slice(&view[..part]);
            left -= part;
        }
        millrace_buffer::copied::count(len);
        self.data = self.data.slice(len, self.data.len() - len);
        self.position += len as u64;
        self.is_sequential = true;
        len
    }

    /// Sends READs for at least `wanted` bytes and the window.
    fn read_on(&mut self, cx: &mut Context<'_>, file: &handles::File, caller: &handles::Client, wanted: u64) {
        if self.eof {
            return;
        }
        let rsize = u64::from(caller.rsize());
        let span = self.window.max(wanted).max(if wanted > 0 { LEAST_READ } else { 0 });
        let ahead = self.next - self.position;
        if ahead > span / 2 {
            return;
        }
        let end = self.position.saturating_add(span);
        let mut sent = false;
        while self.next < end && self.calls.len() + self.results.len() < DEPTH {
            let needed = wanted > 0 && self.calls.is_empty() && self.results.is_empty();
            if self.next >= self.known_end && !needed {
                break;
            }
            let (at, len) = (self.next, (end - self.next).min(rsize));
            let (file, caller) = (file.clone(), caller.clone());
            self.calls.push_back(Box::pin(async move { file.read_piece(&caller, at, len as usize).await }));
            self.next += len;
            sent = true;
        }
        if sent {
            self.window = (self.window * 2).min(rsize * DEPTH as u64);
            // The first poll sends the call.
            while let Poll::Ready(Some(result)) = self.calls.poll_next_unpin(cx) {
                self.results.push_back(result);
            }
        }
    }

    fn poll_result(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        if let Some(result) = self.results.pop_front() {
            return Poll::Ready(result);
        }
        let result = ready!(self.calls.poll_next_unpin(cx));
        // `read_on` has sent a READ.
        Poll::Ready(result.unwrap_or_else(|| Ok((self.position, Views::new(), true))))
    }
}
