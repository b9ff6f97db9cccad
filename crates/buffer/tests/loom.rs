//! Exhaustive schedules of a few threads with loom: memory ordering of reference counts, and consistency of
//! the arena's accounting.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p millrace-buffer --release --test loom`
//!
//! Loom tracks each access to the bytes of a slot and fails on data races; it also fails on leaks of spans or
//! of the arena.

#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use std::{
    future::Future,
    hint::black_box,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::{Notify, mpsc},
    thread,
};
use millrace_buffer::{Arena, ArenaConfig, BLOCK_BYTES, Buffer, SPAN_BYTES};

/// Two slots of this size form a span.
const HALF: usize = SPAN_BYTES / 2;

/// The largest slots that threads cache; four of them form a span.
const QUARTER: usize = SPAN_BYTES / 4;

fn arena(spans: usize) -> Arena {
    Arena::new(ArenaConfig { limit: spans * SPAN_BYTES, huge_pages: false })
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Bugs in lock-free code need few preemptions; more take hours.
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

#[test]
fn reads_happen_before_writes_of_the_next_owner() {
    explore(|| {
        let a = arena(1);
        let mut b = a.alloc(SPAN_BYTES).unwrap();
        b[0] = 1;
        let v = b.freeze();
        let w = v.clone();
        let reader = thread::spawn(move || assert_eq!(w[0], 1));
        let next = {
            let a = a.clone();
            // The whole arena is one slot, free after both have dropped it.
            thread::spawn(move || a.alloc(SPAN_BYTES).map(|mut b| b[0] = 2).is_ok())
        };
        assert_eq!(v[0], 1);
        drop(v);
        reader.join().unwrap();
        next.join().unwrap();
        assert_eq!(a.stats().in_use, 0);
        a.alloc(SPAN_BYTES).unwrap()[0] = 3;
    });
}

#[test]
fn try_mut_happens_after_reads_of_dropped_views() {
    explore(|| {
        let a = arena(1);
        let mut v = a.alloc(HALF).unwrap().freeze();
        let [one, other] = [v.clone(), v.slice(1, 5)];
        // The writer starts last: if a thread loads a count twice, loom tries fewer schedules of earlier
        // threads.
        let reader = thread::spawn(move || {
            black_box(one[0]);
        });
        let writer = thread::spawn(move || {
            if let Some(bytes) = v.try_mut() {
                bytes[0] = 7;
                return;
            }
            match v.try_into_buffer() {
                Ok(mut b) => b[0] = 8,
                Err(v) => drop(v),
            }
        });
        black_box(other[0]);
        drop(other);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(a.stats().in_use, 0);
    });
}

#[test]
fn concurrent_clone_and_drop_frees_the_slot_once() {
    explore(|| {
        let a = arena(1);
        let v = a.alloc(HALF).unwrap().freeze();
        let threads = [v.clone(), v].map(|v| {
            thread::spawn(move || {
                let w = v.clone();
                drop(v);
                black_box(w[0]);
            })
        });
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(a.stats().in_use, 0);
        let both = [a.alloc(HALF).unwrap(), a.alloc(HALF).unwrap()];
        assert!(a.alloc(HALF).is_err());
        assert_ne!(both[0].address(), both[1].address());
    });
}

#[test]
fn last_buffer_frees_the_arena() {
    explore(|| {
        let a = arena(1);
        let (mut b, v) = (a.alloc(HALF).unwrap(), a.alloc(HALF).unwrap().freeze());
        let threads = [
            thread::spawn(move || b[0] = 1),
            thread::spawn(move || {
                black_box(v[0]);
            }),
        ];
        drop(a);
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn trim_never_unmaps_a_span_in_use() {
    explore(|| {
        let a = arena(1);
        drop(a.alloc(HALF).unwrap());
        a.trim();
        let user = {
            let a = a.clone();
            thread::spawn(move || {
                let mut b = a.alloc(HALF).unwrap();
                b[0] = 1;
                let w = b.freeze().slice(0, 1);
                assert_eq!(w[0], 1);
            })
        };
        a.trim();
        user.join().unwrap();
        (0..2).for_each(|_| a.trim());
        assert_eq!(a.stats().mapped, 0);
    });
}

#[test]
fn trim_never_unmaps_a_registered_span() {
    explore(|| {
        let a = arena(1);
        let b = a.alloc(SPAN_BYTES).unwrap();
        let id = b.span().id();
        let trimming = {
            let a = a.clone();
            thread::spawn(move || (0..2).for_each(|_| a.trim()))
        };
        let registered = b.span().clone();
        drop(b);
        assert!(!registered.is_last(), "the arena still refers to it");
        trimming.join().unwrap();
        assert!(!registered.is_last(), "the arena still refers to it");
        drop(registered);
        let again = a.alloc(SPAN_BYTES).unwrap();
        assert_eq!(again.span().id(), id);
        drop(again);
        (0..2).for_each(|_| a.trim());
        assert_eq!(a.stats().mapped, 0);
    });
}

#[test]
fn quota_is_exact_during_replacement_and_drops() {
    explore(|| {
        let a = arena(1);
        let quota = a.quota(2 * BLOCK_BYTES as u64);
        let old = quota.alloc(BLOCK_BYTES).unwrap().freeze();
        let reader = old.clone();
        let reading = thread::spawn(move || {
            black_box(reader[0]);
        });
        let sink = {
            let a = a.clone();
            thread::spawn(move || {
                let mut sink = a.alloc(BLOCK_BYTES).unwrap();
                sink[0] = 1;
                sink.freeze()
            })
        };
        let new = sink.join().unwrap();
        let replaced: &[&millrace_buffer::View] = if old.is_unique() { &[&old] } else { &[] };
        quota.exchange(&[&new], replaced).unwrap();
        drop(old);
        reading.join().unwrap();
        assert_eq!((quota.used(), a.stats().stored), (BLOCK_BYTES as u64, BLOCK_BYTES));
        let dropping = thread::spawn(move || drop(new));
        drop(quota);
        dropping.join().unwrap();
        assert_eq!((a.stats().stored, a.stats().quotas), (0, 0));
    });
}

/// Allocates a slot, writes to it and frees it.
fn use_once(a: &Arena) {
    a.alloc(QUARTER).unwrap()[0] = 1;
}

#[test]
fn trim_returns_cached_slots_of_a_thread_that_uses_them() {
    explore(|| {
        let a = arena(2);
        let user = {
            let a = a.clone();
            thread::spawn(move || (0..2).for_each(|_| use_once(&a)))
        };
        a.trim();
        // May be a slot from the other thread's cache.
        use_once(&a);
        user.join().unwrap();
        assert_eq!(a.stats().in_use, 0);
        (0..2).for_each(|_| a.trim());
        assert_eq!(a.stats().mapped, 0);
    });
}

#[test]
fn cached_slot_is_allocated_once() {
    explore(|| {
        let a = arena(2);
        let user = {
            let a = a.clone();
            thread::spawn(move || {
                use_once(&a);
                a.alloc(QUARTER).unwrap()
            })
        };
        a.trim();
        let mine = [a.alloc(QUARTER).unwrap(), a.alloc(QUARTER).unwrap()];
        let other = user.join().unwrap();
        assert!(mine.iter().all(|b| b.address() != other.address()));
        assert_eq!(a.stats().in_use, 3 * QUARTER);
        drop((mine, other));
        assert_eq!(a.stats().in_use, 0);
    });
}

#[test]
fn memory_of_caches_is_available_to_an_allocation_that_needs_it() {
    explore(|| {
        let a = arena(2);
        let user = {
            let a = a.clone();
            thread::spawn(move || use_once(&a))
        };
        let one = a.alloc(SPAN_BYTES).ok();
        user.join().unwrap();
        let other = a.alloc(SPAN_BYTES).unwrap();
        assert!(one.is_some() && a.alloc(512).is_err());
        drop(other);
    });
}

#[test]
fn cached_slots_of_ended_threads_are_returned() {
    explore(|| {
        let a = arena(2);
        let threads = [a.clone(), a.clone()].map(|a| thread::spawn(move || use_once(&a)));
        threads.into_iter().for_each(|t| t.join().unwrap());
        use_once(&a);
        assert_eq!(a.stats().in_use, 0);
        (0..2).for_each(|_| a.trim());
        assert_eq!(a.stats().mapped, 0);
    });
}

#[test]
fn memory_in_use_is_exact_while_a_slot_moves_between_caches() {
    explore(|| {
        let a = arena(2);
        use_once(&a);
        let (to, from) = mpsc::channel::<Buffer>();
        let other = {
            let a = a.clone();
            thread::spawn(move || {
                use_once(&a);
                drop(from.recv().unwrap());
            })
        };
        let observer = {
            let a = a.clone();
            thread::spawn(move || a.stats().in_use)
        };
        to.send(a.alloc(QUARTER).unwrap()).unwrap();
        let in_use = observer.join().unwrap();
        assert!(in_use <= 2 * QUARTER, "{in_use} bytes");
        other.join().unwrap();
        assert_eq!(a.stats().in_use, 0);
    });
}

#[test]
fn allocation_finds_memory_that_moves_between_caches() {
    explore(|| {
        let a = arena(1);
        let held = [a.alloc(QUARTER).unwrap(), a.alloc(QUARTER).unwrap()];
        let (to, received) = mpsc::channel::<Option<Buffer>>();
        let (freed, was_freed) = mpsc::channel();
        let freeing = {
            let a = a.clone();
            thread::spawn(move || {
                use_once(&a); // Creates this thread's cache before that of the other thread.
                freed.send(()).unwrap();
                while let Some(b) = received.recv().unwrap() {
                    drop(b);
                    freed.send(()).unwrap();
                }
            })
        };
        was_freed.recv().unwrap();
        let (ready, is_ready) = mpsc::channel();
        let allocating = {
            let a = a.clone();
            thread::spawn(move || {
                drop([a.alloc(QUARTER).unwrap(), a.alloc(QUARTER).unwrap()]);
                ready.send(()).unwrap();
                for _ in 0..2 {
                    to.send(Some(a.alloc(QUARTER).unwrap())).unwrap();
                    was_freed.recv().unwrap();
                }
                to.send(None).unwrap();
            })
        };
        is_ready.recv().unwrap();
        // The others use at most one of the four quarters at a time.
        a.alloc(QUARTER).unwrap();
        allocating.join().unwrap();
        freeing.join().unwrap();
        drop(held);
        assert_eq!(a.stats().in_use, 0);
    });
}

struct Unpark(Notify);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Executes a future on this thread. Loom fails if it is never woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (unpark, mut future) = (Arc::new(Unpark(Notify::new())), std::pin::pin!(future));
    let waker = Waker::from(Arc::clone(&unpark));
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        unpark.0.wait();
    }
}

#[test]
fn a_free_beside_the_start_of_a_wait_wakes_it() {
    explore(|| {
        let a = arena(1);
        let _held = [(); 3].map(|()| a.alloc(QUARTER).unwrap());
        let last = a.alloc(QUARTER).unwrap();
        let freeing = thread::spawn(move || drop(last));
        drop(block_on(a.wait_for(|a| a.alloc(QUARTER))).unwrap());
        freeing.join().unwrap();
    });
}

#[test]
fn one_slot_is_enough_for_two_waiters() {
    explore(|| {
        let a = arena(1);
        let _held = a.alloc(HALF).unwrap();
        let last = a.alloc(HALF).unwrap();
        let waiting = {
            let a = a.clone();
            thread::spawn(move || drop(block_on(a.wait_for(|a| a.alloc(HALF))).unwrap()))
        };
        let freeing = thread::spawn(move || drop(last));
        drop(block_on(a.wait_for(|a| a.alloc(HALF))).unwrap());
        waiting.join().unwrap();
        freeing.join().unwrap();
    });
}

#[test]
fn a_waiter_that_gives_up_passes_its_wake_on() {
    explore(|| {
        let a = arena(1);
        let _held = a.alloc(HALF).unwrap();
        let last = a.alloc(HALF).unwrap();
        let mut wait = millrace_buffer::MemoryWait::new(&a);
        wait.begin(&a.alloc(HALF).unwrap_err());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(wait.poll(&mut cx).is_pending());
        let freeing = thread::spawn(move || drop(last));
        let giving_up = thread::spawn(move || drop(wait));
        drop(block_on(a.wait_for(|a| a.alloc(HALF))).unwrap());
        giving_up.join().unwrap();
        freeing.join().unwrap();
    });
}
