//! A lock-free queue from many submitters to one consumer, linked through the values.

#![allow(unsafe_code)] // Reference counts that the list of values owns.

use std::ptr::{null_mut, without_provenance_mut};

use super::sync::{Arc, AtomicPtr, Ordering};

/// A value that can be in one [`Queue`] at a time.
pub(super) trait Linked: Sized {
    /// The link to the value that was pushed before; used by the queue alone.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The queue: a stack of links, which the consumer takes as a whole and reverses.
pub(super) struct Queue<T: Linked> {
    /// The value pushed last; null if there is none, [`closed`] after [`Queue::close`].
    newest: AtomicPtr<T>,
}

/// The address that stands for a closed queue; no value has it, for a value with a link is aligned to more than 1.
fn closed<T>() -> *mut T {
    without_provenance_mut(1)
}

impl<T: Linked> Queue<T> {
    pub(super) fn new() -> Self {
        Self { newest: AtomicPtr::new(null_mut()) }
    }

    /// Whether no value waits to be taken. A push at the same time may be missed.
    pub(super) fn is_empty(&self) -> bool {
        let newest = self.newest.load(Ordering::Relaxed);
        newest.is_null() || newest == closed()
    }

    /// Adds a value, which must not be in a queue; whether the queue was empty before, so that the consumer must be
    /// woken.
    ///
    /// # Errors
    /// The value, when the queue is closed.
    pub(super) fn push(&self, value: Arc<T>) -> Result<bool, Arc<T>> {
        let value = Arc::into_raw(value).cast_mut();
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            if newest == closed() {
                // SAFETY: from `into_raw` above; the queue has not taken it.
                return Err(unsafe { Arc::from_raw(value) });
            }
            // SAFETY: the reference taken by `into_raw` keeps the value alive.
            unsafe { &*value }.link().store(newest, Ordering::Relaxed);
            // Release: the consumer sees the link and the value.
            match self.newest.compare_exchange_weak(newest, value, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Ok(newest.is_null()),
                Err(now) => newest = now,
            }
        }
    }

    /// Takes all values, the oldest first. Only the consumer calls this.
    pub(super) fn take(&self) -> Taken<T> {
        if self.is_empty() {
            return Taken { oldest: null_mut() };
        }
        // Each push is a read-modify-write, so this acquires from all of them. Nobody else closes the queue.
        Taken::reversed(self.newest.swap(null_mut(), Ordering::Acquire))
    }

    /// Refuses later pushes, and takes all values. Only the consumer calls this.
    pub(super) fn close(&self) -> Taken<T> {
        Taken::reversed(self.newest.swap(closed(), Ordering::AcqRel))
    }
}

impl<T: Linked> Drop for Queue<T> {
    fn drop(&mut self) {
        drop(self.close());
    }
}

/// Values taken from a queue.
pub(super) struct Taken<T: Linked> {
    oldest: *mut T,
}

impl<T: Linked> Taken<T> {
    fn reversed(newest: *mut T) -> Self {
        let mut at = if newest == closed() { null_mut() } else { newest };
        let mut oldest = null_mut();
        while !at.is_null() {
            // SAFETY: the queue's reference to each value on the list is ours now.
            let link = unsafe { &*at }.link();
            let older = link.load(Ordering::Relaxed);
            link.store(oldest, Ordering::Relaxed);
            oldest = at;
            at = older;
        }
        Self { oldest }
    }
}

impl<T: Linked> Iterator for Taken<T> {
    type Item = Arc<T>;

    fn next(&mut self) -> Option<Arc<T>> {
        if self.oldest.is_null() {
            return None;
        }
        // SAFETY: the list owns a reference from `into_raw` to each of its values, and gives this one away.
        let value = unsafe { Arc::from_raw(self.oldest) };
        self.oldest = value.link().load(Ordering::Relaxed);
        Some(value)
    }
}

impl<T: Linked> Drop for Taken<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calling::sync::thread;

    struct Value {
        number: u32,
        link: AtomicPtr<Self>,
    }

    impl Linked for Value {
        fn link(&self) -> &AtomicPtr<Self> {
            &self.link
        }
    }

    fn value(number: u32) -> Arc<Value> {
        Arc::new(Value { number, link: AtomicPtr::new(null_mut()) })
    }

    fn numbers(taken: Taken<Value>) -> Vec<u32> {
        taken.map(|v| v.number).collect()
    }

    /// Under loom every interleaving of `test`, else one.
    fn explore(test: impl Fn() + Send + Sync + 'static) {
        #[cfg(millrace_loom)]
        loom::model(test);
        #[cfg(not(millrace_loom))]
        test();
    }

    #[test]
    fn values_come_in_the_order_of_their_pushes_and_only_the_first_wakes() {
        explore(|| {
            let queue = Queue::new();
            assert_eq!(
                (0..3).map(|n| queue.push(value(n)).ok()).collect::<Vec<_>>(),
                [Some(true), Some(false), Some(false)]
            );
            assert_eq!(numbers(queue.take()), [0, 1, 2]);
            assert!(queue.is_empty());
            let again = value(7);
            assert_eq!(queue.push(Arc::clone(&again)).ok(), Some(true));
            assert_eq!(numbers(queue.take()), [7]);
            assert_eq!(queue.push(again).ok(), Some(true), "a value that was taken can be pushed again");
        });
    }

    #[test]
    fn a_value_is_taken_once_or_given_back_by_the_closed_queue() {
        explore(|| {
            let queue = Arc::new(Queue::new());
            let submitters = [0, 10].map(|first| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let pushed = [first, first + 1].map(|n| queue.push(value(n)));
                    pushed.into_iter().filter_map(|r| r.err().map(|v| v.number)).collect::<Vec<_>>()
                })
            });
            let mut taken = numbers(queue.take());
            taken.extend(numbers(queue.close()));
            for (submitter, first) in submitters.into_iter().zip([0, 10]) {
                let refused = submitter.join().unwrap();
                let mut own: Vec<_> = taken.iter().copied().filter(|n| n / 10 == first / 10).collect();
                own.extend(refused);
                assert_eq!(own, [first, first + 1], "each once, and in order");
            }
        });
    }

    #[test]
    fn a_push_to_an_empty_queue_says_so_to_exactly_one_submitter() {
        explore(|| {
            let queue = Arc::new(Queue::new());
            let other = Arc::clone(&queue);
            let submitter = thread::spawn(move || other.push(value(1)).is_ok_and(|first| first));
            let first = queue.push(value(2)).is_ok_and(|first| first);
            assert!(first ^ submitter.join().unwrap());
            assert_eq!(numbers(queue.take()).len(), 2);
        });
    }
}
