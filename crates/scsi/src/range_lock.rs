//! Locks on ranges, granted in order of arrival.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    /// Held and waiting locks by number, in order of arrival.
    exclusive: BTreeMap<u64, Entry>,
    shared: BTreeMap<u64, Entry>,
}

/// A lock waits for one conflicting lock at a time, first for exclusive ones, the latest first. Since locks are added at
/// the end only, the search for the next one continues where the last one ended: each pair of locks is compared at most
/// once, and the end of a lock concerns only those that wait for it.
#[derive(Debug)]
struct Entry {
    range: Range<u64>,
    /// No earlier exclusive lock conflicts that has this number or a higher one.
    exclusive_end: u64,
    /// No earlier shared lock conflicts that has this number or a higher one.
    shared_end: u64,
    /// The lock that this one waits for; `None` if it is granted.
    blocker: Option<u64>,
    /// The locks that wait for this one.
    waiting: BTreeSet<u64>,
    waker: Option<Waker>,
}

impl Entry {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        self.range.start < range.end && range.start < self.range.end
    }
}

/// The latest lock before `end` that overlaps `range`; `end` becomes its number, or 0 if there is none.
fn latest<'a>(
    locks: &'a mut BTreeMap<u64, Entry>,
    end: &mut u64,
    range: &Range<u64>,
) -> Option<(u64, &'a mut Entry)> {
    let found = locks.range_mut(..*end).rev().find(|(_, entry)| entry.overlaps(range));
    let found = found.map(|(&id, entry)| (id, entry));
    *end = found.as_ref().map_or(0, |(id, _)| *id);
    found
}

impl State {
    fn get_mut(&mut self, id: u64) -> Option<&mut Entry> {
        self.exclusive.get_mut(&id).or_else(|| self.shared.get_mut(&id))
    }

    /// Adds a lock. Returns its number, and whether it is granted.
    fn add(&mut self, range: Range<u64>, exclusive: bool) -> (u64, bool) {
        let id = self.next;
        self.next += 1;
        let entry = Entry {
            range,
            exclusive_end: id,
            shared_end: id,
            blocker: None,
            waiting: BTreeSet::new(),
            waker: None,
        };
        (id, self.insert(id, entry, exclusive))
    }

    /// Inserts a lock, which waits for an earlier one or is granted. Returns whether it is granted.
    fn insert(&mut self, id: u64, mut entry: Entry, exclusive: bool) -> bool {
        let blocker = match latest(&mut self.exclusive, &mut entry.exclusive_end, &entry.range) {
            None if exclusive => latest(&mut self.shared, &mut entry.shared_end, &entry.range),
            blocker => blocker,
        };
        entry.blocker = blocker.map(|(blocker, earlier)| {
            earlier.waiting.insert(id);
            blocker
        });
        let granted = entry.blocker.is_none();
        if granted && let Some(waker) = entry.waker.take() {
            waker.wake();
        }
        let locks = if exclusive { &mut self.exclusive } else { &mut self.shared };
        locks.insert(id, entry);
        granted
    }

    fn remove(&mut self, id: u64) {
        let Some(ended) = self.exclusive.remove(&id).or_else(|| self.shared.remove(&id)) else { return };
        if let Some(blocker) = ended.blocker.and_then(|blocker| self.get_mut(blocker)) {
            blocker.waiting.remove(&id);
        }
        for later in ended.waiting {
            if let Some(entry) = self.exclusive.remove(&later) {
                self.insert(later, entry, true);
            } else if let Some(entry) = self.shared.remove(&later) {
                self.insert(later, entry, false);
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
        let (id, granted) = self.state.lock().add(range, exclusive);
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
            if let Some(entry) = state.get_mut(guard.id).filter(|entry| entry.blocker.is_some()) {
                entry.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        self.guard.take().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Pairs of locks that were compared.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

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
        let state = lock.state.lock();
        assert!(state.exclusive.is_empty() && state.shared.is_empty());
    }

    /// The locks that are granted, in order, against the rule itself: no earlier lock conflicts.
    #[test]
    fn a_lock_is_granted_when_no_earlier_one_conflicts() {
        let lock = Arc::new(RangeLock::default());
        let (mut seed, mut locks) = (7_u64, Vec::new());
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for _ in 0..2000 {
            if locks.len() < 12 && random(2) == 0 {
                let (start, exclusive) = (random(20), random(3) == 0);
                let range = start..start + 1 + random(8);
                locks.push((range.clone(), exclusive, request(&lock, range, exclusive), None));
            } else if !locks.is_empty() {
                drop(locks.remove(random(locks.len() as u64) as usize));
            }
            for at in 0..locks.len() {
                let (range, exclusive) = (locks[at].0.clone(), locks[at].1);
                let free = locks[..at].iter().all(|(earlier, theirs, ..)| {
                    !(exclusive || *theirs) || earlier.start >= range.end || range.start >= earlier.end
                });
                let (_, _, future, guard) = &mut locks[at];
                if guard.is_none() {
                    *guard = poll(future);
                }
                assert_eq!(guard.is_some(), free, "{at}");
            }
        }
    }

    #[test]
    fn each_pair_of_waiting_locks_is_compared_at_most_once() {
        const LOCKS: usize = 500;
        // One exclusive lock and shared ones behind it, exclusive ones, and shared ones with an exclusive one behind.
        let exclusive: [fn(usize) -> bool; 3] = [|n| n == 0, |_| true, |n| n + 1 == LOCKS];
        for exclusive in exclusive {
            COMPARED.set(0);
            let lock = Arc::new(RangeLock::default());
            let all: Vec<_> = (0..LOCKS).map(|n| request(&lock, 0..10, exclusive(n))).collect();
            for mut next in all {
                assert!(poll(&mut next).is_some());
            }
            assert!(COMPARED.get() <= 2 * LOCKS, "{} comparisons", COMPARED.get());
        }
    }
}
