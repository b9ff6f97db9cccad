//! Stored memory: limits of quotas, and separation of sparse spans.

use proptest::prelude::*;

use super::{arena, cases, fill, steps};
use crate::{
    Arena, BLOCK_BYTES, Buffer, PAGE_BYTES, Quota, SPAN_BYTES, View,
    span::{CLASSES, class_bytes},
};

/// Checks that each class of transient buffers can use all of the arena's `spans`.
fn assert_transient_memory_is_whole(a: &Arena, spans: usize) {
    for len in (0..CLASSES).map(class_bytes) {
        let all = fill(a, len);
        let capacity: usize = all.iter().map(Buffer::capacity).sum();
        assert!(capacity >= spans * SPAN_BYTES, "buffers of {len} bytes have {capacity} bytes");
    }
}

/// Checks that all remaining pages of the quota can be allocated.
fn assert_quota_is_whole(quota: &Quota) {
    let pages: Vec<_> = std::iter::from_fn(|| quota.alloc(PAGE_BYTES).ok()).collect();
    assert!(quota.limit() - quota.used() < PAGE_BYTES as u64, "{quota:?} with {} pages", pages.len());
}

fn fill_quota(quota: &Quota, len: usize) -> Vec<View> {
    std::iter::from_fn(|| quota.alloc(len).ok()).map(Buffer::freeze).collect()
}

/// Keeps the first of the views in each unit of `by` bytes (a span or a block).
fn thin_out(views: &mut Vec<View>, by: usize) {
    let mut seen = std::collections::HashSet::new();
    views.retain(|v| seen.insert(v.address() / by));
}

#[test]
fn sparse_stored_memory_does_not_reduce_other_limits() {
    const SPANS: usize = 8;
    for by in [SPAN_BYTES, BLOCK_BYTES] {
        let a = arena(SPANS);
        let (quota, other) = (a.quota((SPANS * SPAN_BYTES) as u64), a.quota(3 * SPAN_BYTES as u64 / 4));
        let mut kept = Vec::new();
        for len in [64 << 10, 32 << 10, 16 << 10, 8 << 10, 4 << 10] {
            let mut all = fill_quota(&quota, len);
            // Read sinks in between, as in a server that receives data.
            drop(fill(&a, BLOCK_BYTES));
            thin_out(&mut all, by);
            kept.extend(all);
        }
        assert_transient_memory_is_whole(&a, SPANS);
        assert_quota_is_whole(&other);
        assert_quota_is_whole(&quota);
        assert!(a.stats().mapped <= (2 * SPANS + 2 + 1) * SPAN_BYTES, "{:?}", a.stats());
    }
}

#[test]
fn adopted_sinks_do_not_reduce_transient_memory() {
    const SPANS: usize = 16;
    let a = arena(SPANS);
    let quota = a.quota((SPANS * SPAN_BYTES) as u64);
    let mut kept = Vec::new();
    for round in 0..if cfg!(miri) { 4 } else { 20 } {
        // All transient memory is in use while a part of it is adopted; each time other blocks remain.
        let sinks: Vec<_> = fill(&a, BLOCK_BYTES).into_iter().map(Buffer::freeze).collect();
        for view in sinks.iter().filter(|v| quota.can_adopt(v)).skip(round % 3) {
            if quota.exchange(&[view], &[]).is_ok() {
                kept.push(view.clone());
            }
        }
        drop(sinks);
        let mut at = round;
        kept.retain(|_| {
            at += 1;
            at % 2 == 0
        });
    }
    assert!(!kept.is_empty());
    assert_transient_memory_is_whole(&a, SPANS);
    assert_quota_is_whole(&quota);
}

#[test]
fn adopted_sink_is_charged_and_refunded() {
    let a = arena(16);
    let quota = a.quota(2 * BLOCK_BYTES as u64);
    let sinks: Vec<_> = (0..3).map(|_| a.alloc(BLOCK_BYTES).unwrap().freeze()).collect();
    assert!(sinks.iter().all(|v| quota.can_adopt(v)));
    assert!(!quota.can_adopt(&sinks[0].slice(1, 5)), "not at the start of its slot");
    assert!(!quota.can_adopt(&a.alloc(4096).unwrap().freeze()), "a slot of a size class");
    assert!(!quota.can_adopt(&arena(1).alloc(BLOCK_BYTES).unwrap().freeze()), "memory of another arena");
    assert!(
        quota.exchange(&sinks.iter().collect::<Vec<_>>(), &[]).is_err(),
        "three blocks in a quota of two"
    );
    assert_eq!((quota.used(), a.stats().stored), (0, 0));
    quota.exchange(&[&sinks[0], &sinks[1]], &[]).unwrap();
    assert_eq!((quota.used(), a.stats().stored, a.stats().in_use), (2 << 16, 2 << 16, 3 << 16));
    // At the limit, the third can only replace the first.
    assert!(quota.exchange(&[&sinks[2]], &[]).is_err());
    quota.exchange(&[&sinks[2]], &[&sinks[0]]).unwrap();
    assert_eq!((quota.used(), a.stats().stored), (2 << 16, 2 << 16));
    let other = a.quota(1 << 20);
    assert!(other.exchange(&[&sinks[1]], &[]).is_err(), "charged to another quota");
    // A reader's view keeps the memory charged.
    let reader = sinks[1].slice(5, 5);
    drop(sinks);
    assert_eq!((quota.used(), a.stats().in_use), (1 << 16, 1 << 16));
    drop(reader);
    assert_eq!((quota.used(), a.stats().stored, a.stats().in_use), (0, 0, 0));
}

#[test]
fn duplicate_slot_is_charged_once() {
    let a = arena(1);
    let quota = a.quota(1 << 20);
    let sink = a.alloc(BLOCK_BYTES).unwrap().freeze();
    quota.exchange(&[&sink, &sink], &[]).unwrap();
    quota.exchange(&[&sink], &[]).unwrap();
    assert_eq!(quota.used(), BLOCK_BYTES as u64);
    drop(sink);
    assert_eq!(quota.used(), 0);
}

#[test]
fn slot_size_is_the_next_power_of_two_pages() {
    let a = arena(1);
    let quota = a.quota(1 << 20);
    for (len, capacity) in [(0, 4096), (1, 4096), (4097, 8192), (20_000, 32_768), (65_536, 65_536)] {
        let b = quota.alloc(len).unwrap();
        assert_eq!((b.len(), b.capacity(), quota.used()), (len, capacity, capacity as u64));
        assert_eq!(b.address() % capacity, 0);
    }
    assert!(quota.alloc(BLOCK_BYTES + 1).is_err() && quota.alloc(usize::MAX).is_err());
    let charged = quota.alloc(1 << 16).unwrap();
    quota.charge((1 << 20) - (1 << 16)).unwrap();
    assert!(quota.alloc(1).is_err() && quota.charge(1).is_err());
    quota.recharge(5, 6).unwrap();
    quota.refund((1 << 20) - (1 << 16) - 1);
    drop(charged);
    assert_eq!(quota.used(), 0);
}

#[test]
fn dropped_quota_is_released_with_its_last_slot() {
    let a = arena(1);
    for keep in [false, true] {
        let quota = a.quota(4 * SPAN_BYTES as u64);
        let all = fill_quota(&quota, BLOCK_BYTES);
        assert_eq!(all.len() * BLOCK_BYTES, 4 * SPAN_BYTES);
        let kept = keep.then(|| all[0].clone());
        drop((all, quota));
        assert_eq!(kept.map_or(0, |v| v.len()), if keep { BLOCK_BYTES } else { 0 });
        (0..2).for_each(|_| a.trim());
        assert_eq!(a.stats().mapped, 0);
        // Without quotas, all transient buffers come from class spans, which the limit bounds.
        let sinks = fill(&a, BLOCK_BYTES);
        assert_eq!(sinks.len() * BLOCK_BYTES, SPAN_BYTES);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Store { quota: usize, len: usize },
    Sink,
    Adopt { quota: usize, sink: usize, replaced: usize },
    Share(usize),
    Drop(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2usize, 1..=BLOCK_BYTES).prop_map(|(quota, len)| Step::Store { quota, len }),
        2 => Just(Step::Sink),
        2 => (0..2usize, any::<usize>(), any::<usize>())
            .prop_map(|(quota, sink, replaced)| Step::Adopt { quota, sink, replaced }),
        1 => any::<usize>().prop_map(Step::Share),
        4 => any::<usize>().prop_map(Step::Drop),
    ]
}

/// Total size of the slots of `views` owned by `owner`, each slot counted once.
fn bytes_of(views: &[(Option<usize>, View)], owner: Option<usize>) -> u64 {
    let slots = views.iter().filter(|(o, _)| *o == owner).map(|(_, v)| (v.address(), v.capacity()));
    let slots: std::collections::BTreeMap<_, _> = slots.collect();
    slots.values().map(|c| *c as u64).sum()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn random_use_keeps_quota_accounting_exact(steps in prop::collection::vec(step(), 1..steps(400))) {
        let a = arena(2);
        let quotas = [a.quota(3 << 20), a.quota(SPAN_BYTES as u64)];
        // Owner of each view: a quota, or `None` for transient ones.
        let mut model: Vec<(Option<usize>, View)> = Vec::new();
        for step in steps {
            match step {
                Step::Store { quota, len } => {
                    if let Ok(b) = quotas[quota].alloc(len) {
                        model.push((Some(quota), b.freeze()));
                    }
                }
                Step::Sink => model.extend(a.alloc(BLOCK_BYTES).ok().map(|b| (None, b.freeze()))),
                Step::Adopt { quota, sink, replaced } if !model.is_empty() => {
                    let (sink, replaced) = (sink % model.len(), replaced % model.len());
                    let (new, old) = (model[sink].1.clone(), &model[replaced]);
                    let old = (old.0 == Some(quota) && old.1.is_unique()).then(|| old.1.clone());
                    if model[sink].0.is_none() && quotas[quota].can_adopt(&new)
                        && quotas[quota].exchange(&[&new], &old.iter().collect::<Vec<_>>()).is_ok()
                    {
                        model.iter_mut().filter(|(_, v)| v.address() == new.address()).for_each(|m| m.0 = Some(quota));
                        if old.is_some() {
                            model.remove(replaced);
                        }
                    }
                }
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
            let stored: Vec<_> = [Some(0), Some(1)].iter().map(|o| bytes_of(&model, *o)).collect();
            prop_assert_eq!(&[quotas[0].used(), quotas[1].used()][..], &stored[..]);
            prop_assert!(quotas.iter().all(|q| q.used() <= q.limit()));
            let stats = a.stats();
            prop_assert_eq!(stats.stored as u64, stored[0] + stored[1]);
            prop_assert_eq!(stats.in_use as u64 - stats.stored as u64, bytes_of(&model, None));
        }
        quotas.iter().for_each(assert_quota_is_whole);
        // Empty spans move to the class of pages; in others, blocks beside those of the model are free.
        let (pages, blocks) = (fill(&a, 4096), fill(&a, BLOCK_BYTES));
        let transient = (pages.len() * 4096 + blocks.len() * BLOCK_BYTES) as u64;
        prop_assert!(transient + bytes_of(&model, None) >= 2 * SPAN_BYTES as u64);
        drop((pages, blocks, model, quotas));
        (0..2).for_each(|_| a.trim());
        prop_assert_eq!(a.stats().mapped, 0);
    }
}
