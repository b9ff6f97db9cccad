//! A lock-free multi-producer, single-consumer queue, linked through its values.

#![allow(unsafe_code)] // The list owns references to its values as raw pointers.

use std::ptr::{null_mut, without_provenance_mut};

// Those of `std`, or loom's models under `cfg(millrace_loom)`.
#[cfg(millrace_loom)]
use loom::sync::atomic::Ordering;
#[cfg(millrace_loom)]
pub use loom::sync::{Arc, atomic::AtomicPtr};
#[cfg(not(millrace_loom))]
use std::sync::atomic::Ordering;
#[cfg(not(millrace_loom))]
pub use std::sync::{Arc, atomic::AtomicPtr};

/// A value that can be in one [`Queue`] at a time.
pub trait Linked: Sized {
    /// The link to the previously pushed value; for the queue only.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The queue: a linked stack, which the consumer takes as a whole and reverses.
pub struct Queue<T: Linked> {
    /// The most recently pushed value; null if the queue is empty, [`closed`] after [`Queue::close`].
    newest: AtomicPtr<T>,
}

/// The address that marks a closed queue. No value has it, because values with a link are aligned to more
/// than 1.
fn closed<T>() -> *mut T {
    without_provenance_mut(1)
}

impl<T: Linked> Queue<T> {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self { newest: AtomicPtr::new(null_mut()) }
    }

    /// Whether the queue is empty. Concurrent pushes may be missed.
    pub fn is_empty(&self) -> bool {
        let newest = self.newest.load(Ordering::Relaxed);
        newest.is_null() || newest == closed()
    }

    /// Pushes a value, which must not be in a queue. Returns whether the queue was empty, so that the
    /// consumer must be woken.
    ///
    /// # Errors
    /// The value, if the queue is closed.
    pub fn push(&self, value: Arc<T>) -> Result<bool, Arc<T>> {
        let value = Arc::into_raw(value).cast_mut();
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            if newest == closed() {
                // SAFETY: the pointer is from `into_raw` above; the queue has not taken ownership.
                return Err(unsafe { Arc::from_raw(value) });
            }
            // SAFETY: the reference from `into_raw` keeps the value alive.
            unsafe { &*value }.link().store(newest, Ordering::Relaxed);
            // Release: the consumer observes the link and the value.
            match self.newest.compare_exchange_weak(newest, value, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Ok(newest.is_null()),
                Err(now) => newest = now,
            }
        }
    }

    /// Takes all values, oldest first. For the consumer only.
    pub fn take(&self) -> Drain<T> {
        if self.is_empty() {
            return Drain { oldest: null_mut() };
        }
        // Each push is a read-modify-write, so this acquires from all of them. Only the consumer closes the
        // queue.
        Drain::reversed(self.newest.swap(null_mut(), Ordering::Acquire))
    }

    /// Rejects later pushes and takes all values. For the consumer only.
    pub fn close(&self) -> Drain<T> {
        Drain::reversed(self.newest.swap(closed(), Ordering::AcqRel))
    }
}

impl<T: Linked> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Linked> Drop for Queue<T> {
    fn drop(&mut self) {
        drop(self.close());
    }
}

/// Values taken from a queue, oldest first.
pub struct Drain<T: Linked> {
    oldest: *mut T,
}

impl<T: Linked> Drain<T> {
    fn reversed(newest: *mut T) -> Self {
        let mut at = if newest == closed() { null_mut() } else { newest };
        let mut oldest = null_mut();
        while !at.is_null() {
            // SAFETY: the list's reference to each value now belongs to this function.
            let link = unsafe { &*at }.link();
            let older = link.load(Ordering::Relaxed);
            link.store(oldest, Ordering::Relaxed);
            oldest = at;
            at = older;
        }
        Self { oldest }
    }
}

impl<T: Linked> Iterator for Drain<T> {
    type Item = Arc<T>;

    fn next(&mut self) -> Option<Arc<T>> {
        if self.oldest.is_null() {
            return None;
        }
        // SAFETY: the list owns a reference from `into_raw` to each of its values, and transfers this one.
        let value = unsafe { Arc::from_raw(self.oldest) };
        self.oldest = value.link().load(Ordering::Relaxed);
        Some(value)
    }
}

impl<T: Linked> Drop for Drain<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    #[cfg(millrace_loom)]
    use loom::thread;
    #[cfg(not(millrace_loom))]
    use std::thread;

    use super::*;

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

    fn numbers(taken: Drain<Value>) -> Vec<u32> {
        taken.map(|v| v.number).collect()
    }

    /// Runs `test` in all interleavings under loom, otherwise once.
    fn explore(test: impl Fn() + Send + Sync + 'static) {
        #[cfg(millrace_loom)]
        loom::model(test);
        #[cfg(not(millrace_loom))]
        test();
    }

    #[test]
    fn values_are_taken_in_push_order_and_only_the_first_wakes() {
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
            assert_eq!(queue.push(again).ok(), Some(true), "a taken value can be pushed again");
        });
    }

    #[test]
    fn every_value_is_taken_once_or_returned_by_the_closed_queue() {
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
    fn exactly_one_submitter_observes_the_empty_queue() {
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
