//! Waiting for memory, after an allocation has failed.
//!
//! A waiter is woken when memory for it has become free, and then allocates as any other: memory is not kept for it, because
//! what its owner needs may have changed. Waiters are woken one after another, in the order of their arrival, but a waiter
//! for which there is no memory yet does not delay those behind it: it may wait for memory that one of them holds.
//!
//! While a waiter can be satisfied and has not been woken, there is a woken one that has not been polled since, or dropped:
//! each free, each poll and each drop of a waiter wakes the next one that can be satisfied. While there are waiters, all
//! freed memory goes to the spans, and the caches of the threads stay empty: otherwise memory in the cache of an idle thread
//! would wake none of them. So a free costs nothing more unless there is a waiter; then it tries the allocations of those
//! that have not been woken, once for each different one.
//!
//! Buffers that are allocated together are waited for together: if a waiter were ready with memory for one of them, it would
//! allocate it, fail with the next, free it, and be ready again, without end.

use std::{
    fmt,
    task::{Context, Poll, Waker},
};

use crate::{
    Arena, BufferLengths, OutOfMemory, SPAN_BYTES,
    arena::{ArenaState, Inner},
    sync::{Arc, MutexGuard},
};

/// The place of one task among those that wait for memory of an arena. One for each connection suffices.
pub struct MemoryWait {
    arena: Arena,
    /// The largest allocation that has failed.
    failed: Option<OutOfMemory>,
    /// Its number among the waiters.
    place: Option<u64>,
}

impl MemoryWait {
    /// Waits for nothing yet.
    pub fn new(arena: &Arena) -> Self {
        Self { arena: arena.clone(), failed: None, place: None }
    }

    /// Records that an allocation has failed.
    pub fn begin(&mut self, e: &OutOfMemory) {
        if self.failed.is_none_or(|earlier| earlier.wanted < e.wanted) {
            self.failed = Some(*e);
        }
    }

    /// Whether an allocation has failed, and [`Self::poll`] has not been ready since.
    pub fn is_waiting(&self) -> bool {
        self.failed.is_some()
    }

    /// Ready if no allocation has failed, or when there is memory for it: it is to be repeated, and may fail again. Never
    /// ready if the arena never has that much.
    #[inline]
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.failed {
            None => Poll::Ready(()),
            Some(failed) => self.poll_failed(failed.lengths(), cx),
        }
    }

    #[cold]
    fn poll_failed(&mut self, wanted: BufferLengths, cx: &mut Context<'_>) -> Poll<()> {
        let inner = Arc::clone(self.arena.inner());
        let mut state = inner.lock();
        if state.waiters.is_empty() {
            Inner::close_caches(&inner, &mut state);
        }
        let ready = inner.has_memory(&mut state, wanted);
        if ready {
            self.failed = None;
            self.leave(&mut state);
        } else {
            self.place = Some(state.waiters.enter(self.place, wanted, cx.waker().clone()));
        }
        wake_next(&inner, state);
        if ready { Poll::Ready(()) } else { Poll::Pending }
    }

    fn leave(&mut self, state: &mut ArenaState) {
        if let Some(place) = self.place.take() {
            state.waiters.leave(place);
        }
    }

    /// Gives up the wait.
    #[inline]
    pub fn end(&mut self) {
        self.failed = None;
        if self.place.is_some() {
            self.give_up();
        }
    }

    #[cold]
    fn give_up(&mut self) {
        let inner = Arc::clone(self.arena.inner());
        let mut state = inner.lock();
        self.leave(&mut state);
        wake_next(&inner, state);
    }
}

/// Wakes the next waiter after one has been polled or dropped.
fn wake_next(inner: &Inner, mut state: MutexGuard<'_, ArenaState>) {
    let next = inner.next_waker(&mut state);
    if state.waiters.is_empty() {
        inner.open_caches();
    }
    drop(state);
    next.into_iter().for_each(Waker::wake);
}

impl Drop for MemoryWait {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for MemoryWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWait").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Arena {
    /// Has `alloc`, which allocates from this arena, wait until others have returned enough memory. Dropping the future gives
    /// up the wait.
    ///
    /// # Errors
    /// The arena never has as much memory.
    pub async fn wait_for<T>(
        &self,
        mut alloc: impl FnMut(&Self) -> Result<T, OutOfMemory>,
    ) -> Result<T, OutOfMemory> {
        let mut wait = MemoryWait::new(self);
        loop {
            match alloc(self) {
                Err(e) if e.wanted <= e.limit && e.lengths().iter().all(|length| length <= SPAN_BYTES) => {
                    wait.begin(&e)
                }
                done => return done,
            }
            std::future::poll_fn(|cx| wait.poll(cx)).await;
        }
    }
}
