//! Exclusive locks on ranges of a file or device, local to this process.

use std::{
    future::poll_fn,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

struct Entry {
    number: u64,
    range: Range<u64>,
    /// Waker of a pending request.
    waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Held and pending locks, in the order of the requests.
    entries: Vec<Entry>,
}

/// Exclusive locks on ranges of bytes. Overlapping locks are granted one after another, in the order of the requests.
#[derive(Default)]
pub struct RangeLocks(Mutex<State>);

/// A lock that is held, or a request for one. Drop releases the range.
#[must_use = "the range is released when the lock is dropped"]
pub struct RangeLock<'a> {
    locks: &'a RangeLocks,
    number: u64,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// No code panics while it holds the mutex.
fn lock_state(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RangeLocks {
    /// Waits for all earlier overlapping locks, and locks `range`. The request takes its place in the order at the first
    /// poll, and leaves it if the future is dropped.
    pub async fn lock(&self, range: Range<u64>) -> RangeLock<'_> {
        let mut lock = None;
        poll_fn(|cx| {
            let mut st = lock_state(&self.0);
            let number =
                lock.get_or_insert_with(|| RangeLock { locks: self, number: st.enter(&range) }).number;
            st.poll(number, cx)
        })
        .await;
        // The first poll registers the request.
        lock.unwrap_or_else(|| RangeLock { locks: self, number: u64::MAX })
    }
}

impl State {
    fn enter(&mut self, range: &Range<u64>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.entries.push(Entry { number, range: range.clone(), waker: None });
        number
    }

    fn poll(&mut self, number: u64, cx: &Context<'_>) -> Poll<()> {
        let Some(at) = self.entries.iter().position(|e| e.number == number) else { return Poll::Ready(()) };
        let (before, rest) = self.entries.split_at_mut(at);
        let own = &mut rest[0];
        if !before.iter().any(|e| overlap(&e.range, &own.range)) {
            return Poll::Ready(());
        }
        match &mut own.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        let mut st = lock_state(&self.locks.0);
        let Some(at) = st.entries.iter().position(|e| e.number == self.number) else { return };
        let released = st.entries.remove(at);
        let waiting = st.entries[at..].iter_mut().filter(|e| overlap(&e.range, &released.range));
        let wakers: Vec<Waker> = waiting.filter_map(|e| e.waker.take()).collect();
        drop(st);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn overlapping_ranges_are_locked_in_the_order_of_the_requests() {
        let locks = RangeLocks::default();
        let first = locks.lock(0..10).now_or_never();
        assert!(first.is_some());
        let elsewhere = locks.lock(10..20).now_or_never();
        assert!(elsewhere.is_some());
        let (mut second, mut third) = (Box::pin(locks.lock(5..8)), Box::pin(locks.lock(0..30)));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        drop((first, elsewhere));
        assert!(third.as_mut().now_or_never().is_none());
        let second = second.now_or_never();
        assert!(second.is_some());
        drop(second);
        assert!(third.now_or_never().is_some());
    }

    #[test]
    fn a_request_that_is_dropped_does_not_block_later_ones() {
        let locks = RangeLocks::default();
        let first = locks.lock(0..10).now_or_never();
        assert!(first.is_some());
        let mut second = Box::pin(locks.lock(0..10));
        assert!(second.as_mut().now_or_never().is_none());
        drop(second);
        drop(first);
        assert!(locks.lock(0..10).now_or_never().is_some());
    }
}
