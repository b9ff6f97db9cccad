//! Write-behind of the stream of a [`crate::File`].

use std::{
    future::poll_fn,
    ops::Range,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use millrace_buffer::{Buffer, Views};
use millrace_runtime::sync::Mutex;

use crate::{Error, handles, paths::DEPTH};

/// Size of the first WRITE after a flush, in bytes; it doubles with each further one, up to `wsize`.
const FIRST_WRITE: usize = 64 << 10;

/// Coalesces the bytes of a stream into WRITEs, and executes up to [`DEPTH`] of them concurrently as tasks of
/// the client's runtime. WRITEs to overlapping ranges are serialised.
pub(super) struct WriteBehind {
    file: handles::File,
    /// Client with the credentials of the writer.
    caller: handles::Client,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Accepted data that has not been sent.
    chunk: Option<Chunk>,
    /// The capacity of the next chunk.
    next_size: usize,
    /// The ranges of the WRITEs in flight.
    in_flight: Vec<Range<u64>>,
    /// The first error that has not been reported.
    error: Option<Error>,
    /// Tasks that wait for the completion of a WRITE.
    wakers: Vec<Waker>,
}

/// Contiguous data for one WRITE.
struct Chunk {
    offset: u64,
    memory: Buffer,
    filled: usize,
}

impl Chunk {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.filled as u64
    }

    fn is_full(&self) -> bool {
        self.filled == self.memory.len()
    }
}

impl State {
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|w| w.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }

    /// Takes the chunk if it can be sent.
    fn poll_take(&mut self, cx: &Context<'_>) -> Poll<Option<Chunk>> {
        let Some(chunk) = &self.chunk else { return Poll::Ready(None) };
        let range = chunk.range();
        let overlaps = self.in_flight.iter().any(|r| r.start < range.end && range.start < r.end);
        if overlaps || self.in_flight.len() >= DEPTH {
            self.wait(cx);
            return Poll::Pending;
        }
        self.in_flight.push(range);
        Poll::Ready(self.chunk.take())
    }
}

/// A WRITE in flight. Drop records its end, also if the runtime drops the task.
struct InFlight {
    owner: Arc<WriteBehind>,
    range: Range<u64>,
    result: Result<(), Error>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.owner.state.lock();
        if let Some(at) = state.in_flight.iter().position(|r| *r == self.range) {
            state.in_flight.swap_remove(at);
        }
        if let Err(e) = std::mem::replace(&mut self.result, Ok(())) {
            state.error.get_or_insert(e);
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl WriteBehind {
    pub(super) fn new(file: handles::File, caller: handles::Client) -> Arc<Self> {
        Arc::new(Self { file, caller, state: Mutex::default() })
    }

    /// Whether all accepted data has been written.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.chunk.is_none() && state.in_flight.is_empty()
    }

    /// Accepts data for `offset` and returns its length: all of `data` or a first part. No data is accepted
    /// while this is pending. Returns an earlier error first.
    pub(super) fn poll_write(
        self: &Arc<Self>,
        cx: &Context<'_>,
        offset: u64,
        data: &[u8],
    ) -> Poll<Result<usize, Error>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if offset.checked_add(data.len() as u64).is_none() {
            return Poll::Ready(Err(Error::InvalidInput("the range exceeds 2^64 bytes".into())));
        }
        if let Some(e) = self.state.lock().error.take() {
            return Poll::Ready(Err(e));
        }
        let continues = |c: &Chunk| c.range().end == offset && !c.is_full();
        let in_the_way = self.state.lock().chunk.as_ref().is_some_and(|c| !continues(c));
        if in_the_way {
            ready!(self.poll_send(cx));
        }
        let mut state = self.state.lock();
        let mut chunk = match state.chunk.take() {
            Some(chunk) => chunk,
            None => self.new_chunk(&mut state, offset, data.len())?,
        };
        let len = data.len().min(chunk.memory.len() - chunk.filled);
        millrace_buffer::copy(&mut chunk.memory[chunk.filled..], &data[..len]);
        chunk.filled += len;
        let is_full = chunk.is_full();
        state.chunk = Some(chunk);
        drop(state);
        if is_full {
            // A later call sends the chunk if it cannot be sent now.
            let _ = self.poll_send(cx);
        }
        Poll::Ready(Ok(len))
    }

    fn new_chunk(&self, state: &mut State, offset: u64, wanted: usize) -> Result<Chunk, Error> {
        let wsize = self.caller.wsize() as usize;
        let size = state.next_size.max(FIRST_WRITE).max(wanted).min(wsize);
        state.next_size = (size * 2).min(wsize);
        Ok(Chunk { offset, memory: self.caller.buffer(size)?, filled: 0 })
    }

    /// Sends the chunk, if any.
    fn poll_send(self: &Arc<Self>, cx: &Context<'_>) -> Poll<()> {
        let taken = self.state.lock().poll_take(cx);
        if let Some(mut chunk) = ready!(taken) {
            chunk.memory.set_len(chunk.filled);
            self.launch(chunk.range(), chunk.memory.freeze().into());
        }
        Poll::Ready(())
    }

    /// Spawns a task that writes. The state must not be locked, because a runtime that has shut down drops
    /// the task here.
    fn launch(self: &Arc<Self>, range: Range<u64>, data: Views) {
        let mut write = InFlight { owner: Arc::clone(self), range, result: Err(Error::Closed) };
        let task = async move {
            let this = Arc::clone(&write.owner);
            write.result = this.file.write_from_as(&this.caller, write.range.start, data).await.map(drop);
            drop(write);
        };
        self.caller.runtime().spawn("write behind", Box::pin(task));
    }

    /// Sends all data and waits for the replies. Keeps errors for a later report.
    pub(super) fn poll_drained(self: &Arc<Self>, cx: &Context<'_>) -> Poll<()> {
        ready!(self.poll_send(cx));
        let mut state = self.state.lock();
        if !state.in_flight.is_empty() {
            state.wait(cx);
            return Poll::Pending;
        }
        state.next_size = 0;
        Poll::Ready(())
    }

    /// As [`Self::poll_drained`], and returns an earlier error.
    pub(super) fn poll_flush(self: &Arc<Self>, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_drained(cx));
        Poll::Ready(self.state.lock().error.take().map_or(Ok(()), Err))
    }

    pub(super) async fn drained(self: &Arc<Self>) {
        poll_fn(|cx| self.poll_drained(cx)).await;
    }

    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), Error> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }
}
