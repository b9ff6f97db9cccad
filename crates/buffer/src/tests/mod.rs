//! Properties of the arena: allocation and release in random order, limits, and exact statistics. Submodules
//! test quotas, the caches of threads, the pages in memory, and the return of memory to the system.

mod quota;
mod resident;
mod slot_cache;
mod trim;
mod waiting;

use std::sync::mpsc;

use proptest::prelude::*;

use crate::{Arena, ArenaConfig, Buffer, SPAN_BYTES, View, Views, system::live};

/// A quarter of a span: 1 MiB.
const QUARTER: usize = SPAN_BYTES / 4;

/// Fewer cases under Miri, which is slow, and no failure file, which it cannot write.
fn cases(cases: u32) -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 1, failure_persistence: None, ..ProptestConfig::default() }
    } else {
        ProptestConfig { cases, ..ProptestConfig::default() }
    }
}

/// Number of steps per case; fewer under Miri.
fn steps(steps: usize) -> usize {
    if cfg!(miri) { 40 } else { steps }
}

fn arena(spans: usize) -> Arena {
    Arena::new(ArenaConfig { limit: spans * SPAN_BYTES, huge_pages: false })
}

fn fill(a: &Arena, len: usize) -> Vec<Buffer> {
    std::iter::from_fn(|| a.alloc(len).ok()).collect()
}

#[test]
fn memory_is_freed_with_the_last_reference() {
    let a = arena(1);
    let b = a.alloc(1000).unwrap();
    assert_eq!((b.len(), b.capacity(), a.stats().in_use), (1000, 1024, 1024));
    let v = b.freeze();
    let w = v.slice(10, 20);
    drop(v);
    assert_eq!(a.stats().in_use, 1024);
    drop(w);
    assert_eq!((a.stats().in_use, a.stats().peak), (0, 1024));
}

#[test]
fn cached_slots_do_not_keep_an_arena_without_handles() {
    let before = live::COUNT.get();
    let a = arena(1);
    let [first, view] = [(); 2].map(|()| a.alloc(512).unwrap().freeze());
    drop(first);
    let other = a.clone();
    std::thread::spawn(move || drop(other.alloc(512))).join().unwrap();
    assert_eq!((a.stats().in_use, live::COUNT.get()), (512, before + 1));
    drop(a);
    assert_eq!((view.len(), live::COUNT.get()), (512, before + 1), "a view remains");
    drop(view);
    assert_eq!(live::COUNT.get(), before);
}

#[test]
fn bytes_before_a_view_are_writable_for_its_only_owner() {
    let a = arena(1);
    let mut b = a.alloc(100).unwrap();
    b.copy_from_slice(&[7; 100]);
    b.advance(40);
    assert_eq!((b.len(), b.capacity()), (60, 472));
    let mut v = b.freeze();
    assert!(v.prepend(41).is_none(), "the slot has only 40 bytes before it");
    let other = v.clone();
    assert!(v.prepend(8).is_none(), "another view has the same bytes");
    drop(other);
    v.prepend(8).unwrap()[..8].fill(1);
    assert_eq!((&v[..8], &v[8..], v.offset()), (&[1; 8][..], &[7; 60][..], 32));
    let mut whole = Views::from(v);
    assert_eq!(whole.prepend(32).map(|bytes| bytes.len()), Some(100));
    whole.push(a.alloc(1).unwrap().freeze());
    assert!(whole.prepend(0).is_none(), "several views are not contiguous");
    assert_eq!(whole.into_view().unwrap_err().len(), 101);
}

#[test]
fn limit_is_enforced() {
    let a = arena(2);
    let big = fill(&a, SPAN_BYTES);
    assert_eq!(big.len(), 2);
    let error = a.alloc(1).unwrap_err();
    assert_eq!((error.wanted, error.limit), (1, 2 * SPAN_BYTES));
    assert!(a.alloc(SPAN_BYTES + 1).is_err());
    assert!(a.alloc(usize::MAX).is_err());
    assert_eq!(a.stats().mapped, 2 * SPAN_BYTES);
}

#[test]
fn empty_spans_move_between_classes() {
    let a = arena(4);
    for len in [4096, QUARTER, 1, SPAN_BYTES, 4096, 2 * QUARTER] {
        let all = fill(&a, len);
        let capacity: usize = all.iter().map(Buffer::capacity).sum();
        assert_eq!(capacity, 4 * SPAN_BYTES, "buffers of {len} bytes fill the arena");
        assert_eq!(a.stats().mapped, 4 * SPAN_BYTES);
    }
}

#[test]
fn large_buffers_leave_the_reserve_to_small_ones() {
    let config = ArenaConfig { limit: 8 * SPAN_BYTES, huge_pages: false };
    let a = Arena::with_small_reserve(config, 2 * SPAN_BYTES, 512);
    let mut large = fill(&a, QUARTER);
    assert_eq!(large.len(), 4 * 6);
    assert!(a.alloc(1024).is_err() && a.alloc(SPAN_BYTES).is_err(), "the other large classes have no more");
    // One held buffer in each span.
    large = large.into_iter().step_by(4).collect();
    let small = fill(&a, 512);
    assert_eq!(small.len(), 2 * SPAN_BYTES / 512);
    drop((large, small));
    // Small buffers may use all memory; empty spans return to the large classes, except the reserve.
    for _ in 0..2 {
        assert_eq!(fill(&a, 512).len(), 8 * SPAN_BYTES / 512);
        assert_eq!(fill(&a, SPAN_BYTES).len(), 6);
    }
}

#[test]
fn spans_in_use_are_filled_before_empty_ones() {
    let a = arena(3);
    let mut all = fill(&a, QUARTER);
    assert_eq!(all.len(), 12);
    // One buffer remains in each of two spans; eight slots are free in three spans.
    let kept = (all.swap_remove(0), all.swap_remove(5));
    drop(all);
    a.trim(); // A thread caches the small quarters of Miri's spans.
    let four: Vec<_> = (0..4).map(|_| a.alloc(QUARTER).unwrap()).collect();
    assert!(a.alloc(SPAN_BYTES).is_ok(), "six buffers use two spans of four");
    drop((kept, four));
}

#[test]
fn empty_span_allocates_lowest_slots_first() {
    let a = arena(1);
    let first = a.alloc(4096).unwrap().address();
    let some: Vec<_> = (0..3).map(|_| a.alloc(4096).unwrap()).collect();
    drop(some);
    let again: Vec<_> = (0..3).map(|_| a.alloc(4096).unwrap().address() - first).collect();
    assert!(again.iter().all(|at| *at < 4 * 4096), "{again:?}");
    assert_eq!(first % SPAN_BYTES, 0);
}

#[test]
fn most_recently_used_memory_is_reused_first() {
    let a = arena(4);
    let all = fill(&a, SPAN_BYTES);
    let last = all.last().unwrap().address();
    drop(all);
    assert_eq!(a.alloc(SPAN_BYTES).unwrap().address(), last);
    assert_eq!(a.alloc(1).unwrap().address(), last, "another class reuses it too");
}

#[test]
fn memory_is_unmapped_with_the_last_handle_or_slot() {
    let before = live::COUNT.get();
    let a = arena(8);
    let (one, two) = (a.alloc(100).unwrap(), a.copy_from(&vec![7; SPAN_BYTES]).unwrap());
    let mut three = a.alloc(200).unwrap();
    assert_eq!(live::COUNT.get(), before + 2, "two classes, two spans");
    drop(one);
    let other = a.clone();
    drop(a);
    assert!(other.alloc(QUARTER).is_ok());
    assert_eq!(live::COUNT.get(), before + 3);
    drop(other);
    three[199] = 9;
    assert_eq!((three[199], two[SPAN_BYTES - 1]), (9, 7));
    drop(three);
    drop(two.slice(5, 5));
    assert_eq!(live::COUNT.get(), before + 3, "a view remains");
    drop(two);
    assert_eq!(live::COUNT.get(), before);
}

#[test]
fn buffer_reports_its_span() {
    let a = arena(2);
    let (b, c) = (a.alloc(4096).unwrap(), a.alloc(4096).unwrap());
    let span = b.span();
    assert_eq!((span.id(), span.len()), (c.span().id(), SPAN_BYTES));
    assert!(span.address() <= b.address() && b.address() + 4096 <= span.address() + span.len());
    let id = span.id();
    let other = a.alloc(SPAN_BYTES).unwrap();
    assert_ne!(other.span().id(), id);
    let view = b.freeze();
    assert_eq!((view.span().id(), view.slice(100, 9).span().id()), (id, id));
}

#[test]
fn span_ids_are_constant_and_unique() {
    let a = arena(1);
    let small = a.alloc(512).unwrap();
    let id = small.span().id();
    drop(small);
    let large = a.alloc(SPAN_BYTES).unwrap();
    assert_eq!(large.span().id(), id, "same memory");
    drop((large, a));
    let later: Vec<_> = (0..50).map(|_| arena(1).alloc(1).unwrap().span().id()).collect();
    assert!(later.windows(2).all(|w| id < w[0] && w[0] < w[1]), "{id} {later:?}");
}

#[test]
fn span_stays_mapped_while_referenced() {
    let before = live::COUNT.get();
    let span = arena(1).alloc(100).unwrap().span().clone();
    assert_eq!(live::COUNT.get(), before + 1, "the arena and its buffer were freed");
    assert!(span.is_last());
    drop(span);
    assert_eq!(live::COUNT.get(), before);
}

#[test]
fn only_unshared_views_are_writable() {
    let a = arena(1);
    let mut v = a.copy_from(b"hello").unwrap();
    let w = v.clone();
    assert!(v.try_mut().is_none());
    let v = v.try_into_buffer().unwrap_err();
    drop(w);
    let tail = v.slice(1, 4);
    drop(v);
    let mut tail = tail.try_into_buffer().unwrap_err();
    tail.try_mut().unwrap()[0] = b'i';
    assert_eq!(&*tail, b"illo");
    let mut v = a.copy_from(b"hello").unwrap();
    v.try_mut().unwrap()[0] = b'j';
    assert_eq!(&*v.try_into_buffer().unwrap(), b"jello");
}

#[test]
fn parts_of_a_buffer_are_exclusive_and_join_again() {
    let a = arena(2);
    let mut b = a.alloc(1000).unwrap();
    b.fill(0);
    let address = b.address();
    let mut end = b.split_off(600);
    let mut middle = b.split_off(250);
    assert_eq!([b.len(), middle.len(), end.len()], [250, 350, 400]);
    assert_eq!([middle.address(), end.address()], [address + 250, address + 600]);
    // No part can grow into another one.
    assert_eq!([b.capacity(), middle.capacity(), end.capacity()], [250, 350, 400]);
    std::thread::scope(|s| {
        s.spawn(|| b.fill(1));
        s.spawn(|| middle.fill(2));
        s.spawn(|| end.fill(3));
    });
    assert_eq!(a.stats().in_use, 1024);
    let mut end = b.unsplit(end).unwrap_err();
    assert!(end.unsplit(a.alloc(1).unwrap()).is_err());
    b.unsplit(middle).unwrap();
    b.unsplit(end).unwrap();
    assert_eq!((b.len(), b.capacity(), b.address()), (1000, 1024, address));
    assert!(b[..250].iter().all(|b| *b == 1) && b[250..600].iter().all(|b| *b == 2));
    assert!(b[600..].iter().all(|b| *b == 3));
    // The last part has the rest of the memory, and a view of it is not the whole slot.
    let mut end = b.split_off(600);
    drop(b);
    assert_eq!(end.capacity(), 424);
    end.set_len(424);
    let end = end.freeze().try_into_buffer().unwrap_err();
    assert_eq!((end.offset(), end.len(), end[0]), (600, 424, 3));
    drop(end);
    assert_eq!(a.stats().in_use, 0);
}

#[test]
fn adjacent_views_are_merged() {
    let a = arena(1);
    let v = a.copy_from(b"0123456789").unwrap();
    let mut l = Views::new();
    l.push(v.slice(0, 4));
    l.push(v.slice(4, 3));
    l.push(v.slice(8, 2));
    l.push(v.slice(0, 0));
    assert_eq!((l.len(), l.iter().count()), (9, 2));
    assert_eq!(l.slice(3, 5).to_vec(), b"34568");
    l.truncate(2);
    assert_eq!(l.to_vec(), b"01");
}

#[test]
fn buffers_can_be_dropped_on_other_threads() {
    let a = arena(16);
    let (to, from) = mpsc::sync_channel::<(u8, View)>(64);
    std::thread::scope(|s| {
        for t in 0..3u8 {
            let (a, to) = (a.clone(), to.clone());
            s.spawn(move || {
                for n in 0..if cfg!(miri) { 10 } else { 3000usize } {
                    let len =
                        [1, 600, 1025, if cfg!(miri) { 5000 } else { 70_000 }][(n + usize::from(t)) % 4];
                    let Ok(mut b) = a.alloc(len) else { continue };
                    b.fill(t);
                    let v = b.freeze();
                    let half = v.slice(len / 2, len - len / 2);
                    to.send((t, half)).unwrap();
                    assert!(v.iter().all(|x| *x == t));
                }
            });
        }
        drop(to);
        for (t, v) in from {
            assert!(v.iter().all(|x| *x == t), "the content of a view changed");
        }
    });
    assert_eq!(a.stats().in_use, 0);
    assert_eq!(fill(&a, SPAN_BYTES).len(), 16, "all spans are free again");
}

#[derive(Debug, Clone)]
enum Step {
    Alloc(usize),
    Share(usize),
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![1usize..2000, 4000usize..70_000, SPAN_BYTES / 8..=SPAN_BYTES];
    prop_oneof![
        3 => len.prop_map(Step::Alloc),
        1 => any::<usize>().prop_map(Step::Share),
        3 => any::<usize>().prop_map(Step::Drop),
    ]
}

/// First and last bytes that identify the owner.
fn mark(b: &mut [u8], n: u32) {
    let (len, n) = (b.len(), n.to_ne_bytes());
    for (i, byte) in n.iter().enumerate().take(len) {
        b[i] = *byte;
        b[len - 1 - i] = *byte;
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn random_use_keeps_buffers_disjoint_and_accounting_exact(steps in prop::collection::vec(step(), 1..steps(300))) {
        let before = live::COUNT.get();
        let a = arena(5);
        let mut model: Vec<(u32, View)> = Vec::new();
        for (n, step) in (0u32..).zip(steps) {
            match step {
                Step::Alloc(len) => if let Ok(mut b) = a.alloc(len) {
                    prop_assert_eq!(b.capacity(), len.next_power_of_two().max(512));
                    prop_assert_eq!(b.address() % b.capacity(), 0);
                    mark(&mut b, n);
                    model.push((n, b.freeze()));
                },
                Step::Share(i) if !model.is_empty() => {
                    let shared = model[i % model.len()].clone();
                    model.push(shared);
                }
                Step::Drop(i) if !model.is_empty() => drop(model.swap_remove(i % model.len())),
                _ => {}
            }
            let mut held: Vec<_> = model.iter().map(|(_, v)| (v.address(), v.capacity())).collect();
            held.sort_unstable();
            held.dedup();
            prop_assert!(held.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "slots overlap");
            prop_assert_eq!(a.stats().in_use, held.iter().map(|h| h.1).sum::<usize>());
            prop_assert!(a.stats().mapped <= 5 * SPAN_BYTES);
            prop_assert_eq!(a.stats().mapped, (live::COUNT.get() - before) as usize * SPAN_BYTES);
        }
        for (n, v) in &model {
            let mut expected = v.to_vec();
            mark(&mut expected, *n);
            prop_assert!(expected[..] == v[..], "the bytes of buffer {} changed", n);
        }
        model.clear();
        prop_assert_eq!(fill(&a, SPAN_BYTES).len(), 5);
        drop(a);
        prop_assert_eq!(live::COUNT.get(), before);
    }
}
