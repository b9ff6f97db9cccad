//! All schedules of a few threads, as loom explores them: what the atomic operations on reference counts order, and that
//! the arena's accounts are right whatever comes first.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p millrace-buffer --release --test loom`
//!
//! Loom sees each access to the bytes of a slot, and fails where two that conflict are not ordered; it also fails where a
//! count keeps a span or the arena for ever.

#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use std::hint::black_box;

use loom::thread;
use millrace_buffer::{Arena, ArenaConfig, BLOCK_BYTES, SPAN_BYTES};

/// Two slots of this size are a span.
const HALF: usize = SPAN_BYTES / 2;

fn arena(spans: usize) -> Arena {
    Arena::new(ArenaConfig { limit: spans * SPAN_BYTES, huge_pages: false })
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Faults in lock-free code need few preemptions; more take hours.
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

#[test]
fn what_readers_have_read_comes_before_what_the_next_owner_writes() {
    explore(|| {
        let a = arena(1);
        let mut b = a.alloc(SPAN_BYTES).unwrap();
        b[0] = 1;
        let v = b.freeze();
        let w = v.clone();
        let reader = thread::spawn(move || assert_eq!(w[0], 1));
        let next = {
            let a = a.clone();
            // The whole arena is one slot: it is free when both have dropped it.
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
fn a_view_that_is_alone_is_written_after_all_that_others_have_read() {
    explore(|| {
        let a = arena(1);
        let mut v = a.alloc(HALF).unwrap().freeze();
        let [one, other] = [v.clone(), v.slice(1, 5)];
        // The writer starts last: where a thread loads a count twice, loom tries fewer schedules of the threads before it.
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
fn references_that_are_made_and_dropped_at_once_return_the_slot_once() {
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
fn the_last_buffer_takes_the_arena_with_it() {
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
fn a_span_is_unmapped_only_while_no_slot_of_it_is_handed_out() {
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
fn a_span_that_is_registered_is_not_unmapped() {
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
        assert!(!registered.is_last(), "the arena has it still");
        trimming.join().unwrap();
        assert!(!registered.is_last(), "the arena has it still");
        drop(registered);
        let again = a.alloc(SPAN_BYTES).unwrap();
        assert_eq!(again.span().id(), id);
        drop(again);
        (0..2).for_each(|_| a.trim());
        assert_eq!(a.stats().mapped, 0);
    });
}

#[test]
fn a_quota_is_right_while_data_is_replaced_and_its_readers_drop_it() {
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
