//! Exclusive locks on ranges of a file, local to the client.

use std::{
    future::poll_fn,
    ops::Range,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

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

/// Locks on byte ranges. Overlapping locks are granted sequentially, in the order of the requests.
#[derive(Default)]
pub(crate) struct RangeLocks(Mutex<State>);

/// A held or pending lock; drop releases the range.
pub(crate) struct RangeLock<'a> {
    locks: &'a RangeLocks,
    number: u64,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl RangeLocks {
    /// Waits for all earlier overlapping locks, and locks `range`.
    pub(crate) async fn lock(&self, range: Range<u64>) -> RangeLock<'_> {
        let mut lock = None;
        poll_fn(|cx| {
            let mut st = self.0.lock();
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
        let mut st = self.locks.0.lock();
        let Some(at) = st.entries.iter().position(|e| e.number == self.number) else { return };
        let released = st.entries.remove(at);
        let waiting = st.entries[at..].iter_mut().filter(|e| overlap(&e.range, &released.range));
        let wakers: Vec<Waker> = waiting.filter_map(|e| e.waker.take()).collect();
        drop(st);
        wakers.into_iter().for_each(Waker::wake);
    }
}
