//! Locks on ranges, local to this process, granted in the order of the requests.

use std::{
    collections::{BTreeSet, VecDeque},
    future::Future,
    ops::{Deref, Range},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::{MaybeReady, sync::Mutex};

/// Locks on ranges of numbers: the bytes of a file, the blocks of a disk. Two locks conflict if their ranges overlap and one
/// of them is exclusive. A lock waits for all conflicting ones that were requested earlier, so no request starves.
#[derive(Debug, Default)]
pub struct RangeLocks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    exclusive: Queue,
    shared: Queue,
}

/// Held and waiting locks, by number, which is the order of the requests. Their memory is kept, so that a lock allocates
/// none unless it waits.
#[derive(Debug, Default)]
struct Queue(VecDeque<Entry>);

/// A lock waits for one conflicting lock at a time, first for exclusive ones, the latest first. Since locks are added at
/// the end only, the search for the next one continues where the last one ended: each pair of locks is compared at most
/// once, and the end of a lock concerns only those that wait for it.
#[derive(Debug)]
struct Entry {
    number: u64,
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

impl Queue {
    fn position(&self, number: u64) -> Option<usize> {
        self.0.binary_search_by_key(&number, |e| e.number).ok()
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Entry> {
        self.position(number).and_then(|at| self.0.get_mut(at))
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        self.position(number).and_then(|at| self.0.remove(at))
    }

    /// The latest lock before `end` that overlaps `range`; `end` becomes its number, or 0 if there is none.
    fn latest(&mut self, end: &mut u64, range: &Range<u64>) -> Option<&mut Entry> {
        let before = self.0.partition_point(|e| e.number < *end);
        let found = self.0.range_mut(..before).rev().find(|e| e.overlaps(range));
        *end = found.as_ref().map_or(0, |e| e.number);
        found
    }
}

impl State {
    fn get_mut(&mut self, number: u64) -> Option<&mut Entry> {
        self.exclusive.get_mut(number).or_else(|| self.shared.get_mut(number))
    }

    fn queue(&mut self, exclusive: bool) -> &mut Queue {
        if exclusive { &mut self.exclusive } else { &mut self.shared }
    }

    /// Adds a lock. Returns its number, and whether it is granted.
    fn add(&mut self, range: Range<u64>, exclusive: bool) -> (u64, bool) {
        let number = self.next;
        self.next += 1;
        let mut entry = Entry {
            number,
            range,
            exclusive_end: number,
            shared_end: number,
            blocker: None,
            waiting: BTreeSet::new(),
            waker: None,
        };
        self.block(&mut entry, exclusive);
        let granted = entry.blocker.is_none();
        self.queue(exclusive).0.push_back(entry);
        (number, granted)
    }

    /// Lets a lock wait for an earlier one, or grants it.
    fn block(&mut self, entry: &mut Entry, exclusive: bool) {
        let blocker = match self.exclusive.latest(&mut entry.exclusive_end, &entry.range) {
            None if exclusive => self.shared.latest(&mut entry.shared_end, &entry.range),
            blocker => blocker,
        };
        entry.blocker = blocker.map(|earlier| {
            earlier.waiting.insert(entry.number);
            earlier.number
        });
        if entry.blocker.is_none()
            && let Some(waker) = entry.waker.take()
        {
            waker.wake();
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(ended) = self.exclusive.remove(number).or_else(|| self.shared.remove(number)) else {
            return;
        };
        if let Some(blocker) = ended.blocker.and_then(|blocker| self.get_mut(blocker)) {
            blocker.waiting.remove(&number);
        }
        for later in ended.waiting {
            for exclusive in [true, false] {
                let Some(at) = self.queue(exclusive).position(later) else { continue };
                let Some(mut entry) = self.queue(exclusive).0.remove(at) else { continue };
                self.block(&mut entry, exclusive);
                self.queue(exclusive).0.insert(at, entry);
            }
        }
    }
}

impl RangeLocks {
    /// Requests a lock on `range`. Dropping the result, or the lock, releases it.
    pub fn lock<'a, L>(locks: L, range: Range<u64>, exclusive: bool) -> MaybeReady<'a, RangeLock<L>>
    where
        L: Deref<Target = Self> + Send + Unpin + 'a,
    {
        let (number, granted) = locks.0.lock().add(range, exclusive);
        let lock = RangeLock { locks, number };
        if granted { MaybeReady::Ready(lock) } else { MaybeReady::wait(Waiting(Some(lock))) }
    }
}

/// A granted lock, or a place in the queue.
#[derive(Debug)]
#[must_use = "the range is released when the lock is dropped"]
pub struct RangeLock<L: Deref<Target = RangeLocks>> {
    locks: L,
    number: u64,
}

impl<L: Deref<Target = RangeLocks>> Drop for RangeLock<L> {
    fn drop(&mut self) {
        self.locks.0.lock().remove(self.number);
    }
}

struct Waiting<L: Deref<Target = RangeLocks>>(Option<RangeLock<L>>);

impl<L: Deref<Target = RangeLocks> + Unpin> Future for Waiting<L> {
    type Output = RangeLock<L>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeLock<L>> {
        if let Some(lock) = &self.0 {
            let mut state = lock.locks.0.lock();
            if let Some(entry) = state.get_mut(lock.number).filter(|entry| entry.blocker.is_some()) {
                entry.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        self.0.take().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::IntoFuture, sync::Arc};

    use super::*;

    thread_local! {
        /// Pairs of locks that were compared.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    fn request(
        locks: &Arc<RangeLocks>,
        range: Range<u64>,
        exclusive: bool,
    ) -> impl Future<Output = RangeLock<Arc<RangeLocks>>> + Unpin + use<> {
        RangeLocks::lock(Arc::clone(locks), range, exclusive).into_future()
    }

    fn poll<T>(lock: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
        match Pin::new(lock).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    #[test]
    fn shared_locks_and_disjoint_ranges_do_not_wait() {
        let lock = Arc::new(RangeLocks::default());
        let _a = poll(&mut request(&lock, 0..10, false)).unwrap();
        let _b = poll(&mut request(&lock, 5..15, false)).unwrap();
        let _c = poll(&mut request(&lock, 15..20, true)).unwrap();
        assert!(poll(&mut request(&lock, 9..16, true)).is_none());
    }

    #[test]
    fn conflicting_locks_are_granted_in_order() {
        let lock = Arc::new(RangeLocks::default());
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
        let lock = Arc::new(RangeLocks::default());
        let first = poll(&mut request(&lock, 0..10, false)).unwrap();
        let second = request(&lock, 0..10, true);
        let mut third = request(&lock, 0..10, false);
        drop(second);
        assert!(poll(&mut third).is_some());
        drop((first, third));
        let state = lock.0.lock();
        assert!(state.exclusive.0.is_empty() && state.shared.0.is_empty());
    }

    /// The locks that are granted, in order, against the rule itself: no earlier lock conflicts.
    #[test]
    fn a_lock_is_granted_when_no_earlier_one_conflicts() {
        let lock = Arc::new(RangeLocks::default());
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
            let lock = Arc::new(RangeLocks::default());
            let all: Vec<_> = (0..LOCKS).map(|n| request(&lock, 0..10, exclusive(n))).collect();
            for mut next in all {
                assert!(poll(&mut next).is_some());
            }
            assert!(COMPARED.get() <= 2 * LOCKS, "{} comparisons", COMPARED.get());
        }
    }
}
