//! Return of memory to the system.

use super::{QUARTER, arena, fill};
use crate::{BLOCK_BYTES, PAGE_BYTES, SPAN_BYTES, system::live};

fn ids(buffers: &[crate::Buffer]) -> Vec<u64> {
    let mut ids: Vec<_> = buffers.iter().map(|b| b.span().id()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[test]
fn trim_unmaps_memory_of_an_ended_load() {
    let before = live::COUNT.get();
    let a = arena(20);
    let quota = a.quota(8 * SPAN_BYTES as u64);
    for len in [1000, BLOCK_BYTES, QUARTER, SPAN_BYTES] {
        drop(fill(&a, len));
    }
    drop(std::iter::from_fn(|| quota.alloc(PAGE_BYTES).ok()).collect::<Vec<_>>());
    assert!(a.stats().mapped >= 28 * SPAN_BYTES);
    a.trim();
    assert!(a.stats().mapped > 0, "memory is kept for a pause of the load");
    a.trim();
    assert_eq!((a.stats().mapped, live::COUNT.get()), (0, before));
    assert_eq!(fill(&a, QUARTER).len(), 20 * 4, "all memory can be mapped again");
}

#[test]
fn trim_keeps_memory_of_an_ongoing_load() {
    let a = arena(40);
    let mut peak = fill(&a, QUARTER);
    let first = ids(&peak);
    for _ in 0..10 {
        peak.truncate(10);
        a.trim();
        peak.extend(fill(&a, QUARTER));
        a.trim();
        assert_eq!(ids(&peak), first);
    }
    // A smaller load keeps what it needs.
    for _ in 0..10 {
        peak.truncate(10);
        let some: Vec<_> = (0..8).map(|_| a.alloc(QUARTER).unwrap()).collect();
        a.trim();
        drop(some);
        a.trim();
    }
    assert_eq!(a.stats().mapped, 5 * SPAN_BYTES, "18 buffers use 5 spans of 4");
}

#[test]
fn trim_keeps_spans_in_use_or_referenced() {
    let a = arena(8);
    let quota = a.quota(4 * SPAN_BYTES as u64);
    let mut all = fill(&a, QUARTER);
    all[0][0] = 7;
    let registered = all[8].span().clone();
    let stored = quota.alloc(1).unwrap();
    let blocks: Vec<_> =
        (0..3 * SPAN_BYTES / BLOCK_BYTES).map(|_| quota.alloc(BLOCK_BYTES).unwrap()).collect();
    all.truncate(1);
    drop(blocks);
    (0..3).for_each(|_| a.trim());
    assert_eq!(a.stats().mapped, 3 * SPAN_BYTES);
    assert!(!registered.is_last(), "the arena still refers to it");
    drop(registered);
    (0..2).for_each(|_| a.trim());
    assert_eq!(a.stats().mapped, 2 * SPAN_BYTES);
    assert_eq!((all[0][0], all[0].len(), stored.len()), (7, QUARTER, 1));
}
