//! Locks on ranges, granted in order of arrival.

use std::{
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use millrace_runtime::MaybeReady;
use parking_lot::Mutex;

/// Locks on ranges of numbers. Two locks conflict if their ranges overlap and one of them is exclusive. A lock waits
/// for all conflicting ones that were requested earlier, so no request starves.
#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Held and waiting locks, in order of arrival.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    range: Range<u64>,
    exclusive: bool,
    granted: bool,
    waker: Option<Waker>,
}

impl Entry {
    fn conflicts(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

impl State {
    /// Whether the entry at `at` conflicts with no earlier one.
    fn may_start(&self, at: usize) -> bool {
        self.entries
            .get(at)
            .is_some_and(|e| self.entries.iter().take(at).all(|earlier| !earlier.conflicts(e)))
    }

    fn remove(&mut self, id: u64) {
        let Some(at) = self.entries.iter().position(|e| e.id == id) else { return };
        self.entries.remove(at);
        for later in at..self.entries.len() {
            let start = self.may_start(later);
            if let Some(entry) = self.entries.get_mut(later).filter(|e| start && !e.granted) {
                entry.granted = true;
                if let Some(waker) = entry.waker.take() {
                    waker.wake();
                }
            }
        }
    }
}

impl RangeLock {
    /// Requests a lock on `range`. Dropping the result, or the guard, releases it.
    pub(crate) fn lock(
        self: &Arc<Self>,
        range: Range<u64>,
        exclusive: bool,
    ) -> MaybeReady<'static, RangeGuard> {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        state.entries.push(Entry { id, range, exclusive, granted: false, waker: None });
        let last = state.entries.len() - 1;
        let granted = state.may_start(last);
        if let Some(entry) = state.entries.last_mut() {
            entry.granted = granted;
        }
        drop(state);
        let guard = RangeGuard { lock: Arc::clone(self), id };
        if granted { MaybeReady::Ready(guard) } else { MaybeReady::wait(Waiting { guard: Some(guard) }) }
    }
}

/// A granted lock, or a place in the queue.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    lock: Arc<RangeLock>,
    id: u64,
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.lock.state.lock().remove(self.id);
    }
}

struct Waiting {
    guard: Option<RangeGuard>,
}

impl Future for Waiting {
    type Output = RangeGuard;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeGuard> {
        if let Some(guard) = &self.guard {
            let mut state = guard.lock.state.lock();
            if let Some(entry) = state.entries.iter_mut().find(|e| e.id == guard.id && !e.granted) {
                entry.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        self.guard.take().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(
        lock: &Arc<RangeLock>,
        range: Range<u64>,
        exclusive: bool,
    ) -> impl Future<Output = RangeGuard> + Unpin + use<> {
        lock.lock(range, exclusive).into_future()
    }

    fn poll(lock: &mut (impl Future<Output = RangeGuard> + Unpin)) -> Option<RangeGuard> {
        match Pin::new(lock).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    #[test]
    fn shared_locks_and_disjoint_ranges_do_not_wait() {
        let lock = Arc::new(RangeLock::default());
        let _a = poll(&mut request(&lock, 0..10, false)).unwrap();
        let _b = poll(&mut request(&lock, 5..15, false)).unwrap();
        let _c = poll(&mut request(&lock, 15..20, true)).unwrap();
        assert!(poll(&mut request(&lock, 9..16, true)).is_none());
    }

    #[test]
    fn conflicting_locks_are_granted_in_order() {
        let lock = Arc::new(RangeLock::default());
        let first = poll(&mut request(&lock, 0..10, false)).unwrap();
        let mut second = request(&lock, 0..10, true);
        let mut third = request(&lock, 0..10, false);
        assert!(poll(&mut second).is_none());
        assert!(poll(&mut third).is_none(), "a shared lock overtook an exclusive one");
        drop(first);
        assert!(poll(&mut third).is_none());
        let second = poll(&mut second).unwrap();
        assert!(poll(&mut third).is_none());
        drop(second);
        assert!(poll(&mut third).is_some());
    }

    #[test]
    fn a_dropped_request_leaves_the_queue() {
        let lock = Arc::new(RangeLock::default());
        let first = poll(&mut request(&lock, 0..10, false)).unwrap();
        let second = request(&lock, 0..10, true);
        let mut third = request(&lock, 0..10, false);
        drop(second);
        assert!(poll(&mut third).is_some());
        drop((first, third));
        assert!(lock.state.lock().entries.is_empty());
    }
}
