//! Threads' caches of free slots: exact accounting, and slots of other threads.

#![allow(clippy::unwrap_used)] // Test helpers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
};

use proptest::prelude::*;

use super::{arena, cases, fill, steps};
use crate::{
    Arena, BLOCK_BYTES, Buffer, PAGE_BYTES, Quota, SPAN_BYTES, View,
    slot_cache::{CACHED_CLASSES, capacity},
    span::{CLASSES, class_bytes, class_of},
};

/// A thread that executes one function at a time.
pub(super) struct Worker {
    jobs: Sender<Job>,
    results: Receiver<Vec<Buffer>>,
    thread: JoinHandle<()>,
}

type Job = Box<dyn FnOnce() -> Vec<Buffer> + Send>;

impl Worker {
    pub(super) fn start() -> Self {
        let ((jobs, received), (done, results)) = (channel::<Job>(), channel());
        let thread = std::thread::spawn(move || {
            for job in received {
                done.send(job()).unwrap();
            }
        });
        Self { jobs, results, thread }
    }

    fn run(&self, job: impl FnOnce() -> Vec<Buffer> + Send + 'static) -> Vec<Buffer> {
        self.jobs.send(Box::new(job)).unwrap();
        self.results.recv().unwrap()
    }

    fn alloc(&self, a: &Arena, len: usize) -> Option<Buffer> {
        let a = a.clone();
        self.run(move || a.alloc(len).into_iter().collect()).pop()
    }

    pub(super) fn free<T: Send + 'static>(&self, value: T) {
        self.run(move || {
            drop(value);
            Vec::new()
        });
    }

    fn end(self) {
        drop(self.jobs);
        self.thread.join().unwrap();
    }
}

#[test]
fn trim_returns_the_slots_of_other_threads() {
    let a = arena(16);
    let worker = Worker::start();
    for class in 0..CACHED_CLASSES {
        let some: Vec<_> = (0..3).filter_map(|_| worker.alloc(&a, class_bytes(class))).collect();
        worker.free(some);
    }
    assert_eq!((a.stats().in_use, a.stats().mapped), (0, CACHED_CLASSES * SPAN_BYTES));
    a.trim();
    assert_eq!(a.stats().mapped, CACHED_CLASSES * SPAN_BYTES, "memory is kept for a pause of the load");
    a.trim();
    assert_eq!(a.stats().mapped, 0);
    worker.end();
}

#[test]
fn cached_slots_are_used_again_by_their_thread() {
    let a = arena(16);
    let (one, other) = (Worker::start(), Worker::start());
    let first = one.alloc(&a, 4096).unwrap();
    let address = first.address();
    one.free(first);
    assert_ne!(other.alloc(&a, 4096).unwrap().address(), address);
    assert_eq!(one.alloc(&a, 4096).unwrap().address(), address);
    [one, other].into_iter().for_each(Worker::end);
}

#[test]
fn cached_slots_of_ended_threads_are_returned() {
    let a = arena(16);
    for _ in 0..20 {
        let worker = Worker::start();
        let b = worker.alloc(&a, 4096);
        worker.free(b);
        worker.end();
    }
    assert_eq!((a.stats().in_use, a.stats().mapped), (0, SPAN_BYTES));
    (0..2).for_each(|_| a.trim());
    assert_eq!((a.stats().mapped, a.cached_bytes()), (0, 0));
}

#[test]
fn cached_slots_are_available_to_allocations_that_need_them() {
    let a = arena(16);
    let workers: Vec<_> = (0..4).map(|_| Worker::start()).collect();
    for worker in &workers {
        for class in 0..CACHED_CLASSES {
            let some: Vec<_> = (0..3).filter_map(|_| worker.alloc(&a, class_bytes(class))).collect();
            worker.free(some);
        }
    }
    assert_eq!(fill(&a, SPAN_BYTES).len(), 16);
    workers.into_iter().for_each(Worker::end);
}

#[test]
fn blocks_are_not_cached() {
    let a = arena(16);
    let worker = Worker::start();
    for len in [BLOCK_BYTES / 2 + 1, BLOCK_BYTES, SPAN_BYTES] {
        let some: Vec<_> = (0..3).filter_map(|_| worker.alloc(&a, len)).collect();
        worker.free(some);
    }
    assert_eq!(a.cached_bytes(), 0);
    worker.end();
}

/// A connection's thread may free what the callers' threads allocate.
#[test]
fn slots_that_another_thread_frees_are_used_again() {
    let a = arena(1);
    let (one, other) = (Worker::start(), Worker::start());
    for _ in 0..steps(3 * SPAN_BYTES / 4096) {
        let b = one.alloc(&a, 4096).unwrap();
        assert!(a.cached_bytes() <= 2 * capacity(class_of(4096).unwrap()) * 4096);
        other.free(b);
    }
    let rest = one.alloc(&a, SPAN_BYTES);
    assert!(rest.is_some() && a.cached_bytes() == 0);
    [one, other].into_iter().for_each(Worker::end);
}

#[test]
fn cached_slots_of_a_thread_are_bounded() {
    for class in 0..CACHED_CLASSES {
        let a = arena(64);
        let worker = Worker::start();
        let some: Vec<_> = (0..100).filter_map(|_| worker.alloc(&a, class_bytes(class))).collect();
        let held: BTreeSet<_> = some.iter().map(Buffer::address).collect();
        worker.free(some);
        let (cached, most) = (a.cached_bytes() / class_bytes(class), capacity(class));
        assert!(2 * cached + 1 >= most && cached <= most, "class {class}: {cached} slots of at most {most}");
        let again: Vec<_> = (0..cached).map(|_| worker.alloc(&a, class_bytes(class)).unwrap()).collect();
        assert!(again.iter().all(|b| held.contains(&b.address())) && a.cached_bytes() == 0);
        worker.end();
    }
}

#[test]
fn cache_survives_its_arena() {
    let worker = Worker::start();
    for _ in 0..10 {
        let a = arena(16);
        let b = worker.alloc(&a, 600).unwrap();
        worker.free(b);
        let last = worker.alloc(&a, 5000).unwrap();
        drop(a);
        worker.free(last);
    }
    worker.end();
}

#[derive(Debug, Clone)]
enum Step {
    Alloc { worker: usize, len: usize },
    Store { worker: usize, len: usize },
    Share(usize),
    Drop { worker: usize, view: usize },
    DropAll { worker: usize },
    End(usize),
    Trim { worker: usize },
}

fn step() -> impl Strategy<Value = Step> {
    // Slots that are cached, those of about a block, and larger ones (fewer with the small spans of Miri).
    let len = prop_oneof![
        4 => 1usize..2000,
        4 => 4000..=BLOCK_BYTES + PAGE_BYTES,
        3 => SPAN_BYTES / 16..=SPAN_BYTES,
    ];
    let worker = 0..3usize;
    prop_oneof![
        30 => (worker.clone(), len.clone()).prop_map(|(worker, len)| Step::Alloc { worker, len }),
        4 => (worker.clone(), 1..=PAGE_BYTES * 16).prop_map(|(worker, len)| Step::Store { worker, len }),
        6 => any::<usize>().prop_map(Step::Share),
        24 => (worker.clone(), any::<usize>()).prop_map(|(worker, view)| Step::Drop { worker, view }),
        1 => worker.clone().prop_map(|worker| Step::DropAll { worker }),
        2 => worker.clone().prop_map(Step::End),
        2 => worker.prop_map(|worker| Step::Trim { worker }),
    ]
}

/// The views of the arena in use: whether they are stored, and the view.
type Model = Vec<(bool, View)>;

/// Address and size of each slot.
fn slots(model: &Model, stored: bool) -> BTreeMap<usize, usize> {
    let chosen = model.iter().filter(|(s, _)| *s == stored);
    chosen.map(|(_, v)| (v.address(), v.capacity())).collect()
}

/// Spans of the slots of a size.
fn spans_of(slots: &BTreeMap<usize, usize>, bytes: impl Fn(usize) -> bool) -> usize {
    let chosen = slots.iter().filter(|(_, slot)| bytes(**slot));
    chosen.map(|(address, _)| address / SPAN_BYTES).collect::<BTreeSet<_>>().len()
}

/// The slots of class spans.
fn of_classes(model: &Model, quota: &Quota) -> BTreeMap<usize, usize> {
    let chosen = model.iter().filter(|(_, v)| !quota.can_adopt(v));
    chosen.map(|(_, v)| (v.address(), v.capacity())).collect()
}

/// Checks that no slot of `class` is free, no span is empty, and no more spans can be mapped. `used` are the
/// slots of class spans.
fn assert_exhausted(a: &Arena, used: &BTreeMap<usize, usize>, class: usize, limit: usize) {
    let spans = a.spans();
    let class_spans = &spans[..CLASSES];
    assert_eq!(class_spans.iter().map(|c| c.spans).sum::<usize>(), limit, "all spans are mapped");
    for c in class_spans {
        let bytes = c.slot_bytes.unwrap();
        assert_eq!(spans_of(used, |slot| slot == bytes), c.spans, "no span is empty");
    }
    let slots = used.values().filter(|slot| **slot == class_bytes(class)).count();
    assert_eq!(slots, class_spans[class].spans * (SPAN_BYTES / class_bytes(class)), "no slot is free");
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn random_use_by_threads_keeps_accounting_exact(limit in 1usize..20, steps in prop::collection::vec(step(), 1..steps(300))) {
        let a = arena(limit);
        let quota = std::sync::Arc::new(a.quota(SPAN_BYTES as u64));
        let mut workers: Vec<_> = (0..3).map(|_| Worker::start()).collect();
        let mut model: Model = Vec::new();
        for step in steps {
            match step {
                Step::Alloc { worker, len } => match workers[worker].alloc(&a, len) {
                    Some(b) => {
                        prop_assert_eq!(b.capacity(), len.next_power_of_two().max(512));
                        model.push((false, b.freeze()));
                    }
                    None => assert_exhausted(&a, &of_classes(&model, &quota), class_of(len).unwrap(), limit),
                },
                Step::Store { worker, len } => {
                    let quota = std::sync::Arc::clone(&quota);
                    let stored = workers[worker].run(move || quota.alloc(len).into_iter().collect());
                    model.extend(stored.into_iter().map(|b| (true, b.freeze())));
                }
                Step::Share(i) if !model.is_empty() => {
                    let shared = model[i % model.len()].clone();
                    model.push(shared);
                }
                Step::Drop { worker, view } if !model.is_empty() => {
                    let view = model.swap_remove(view % model.len());
                    workers[worker].free(view);
                }
                Step::DropAll { worker } => workers[worker].free(std::mem::take(&mut model)),
                Step::End(worker) => {
                    workers.swap_remove(worker).end();
                    workers.push(Worker::start());
                }
                Step::Trim { worker } => {
                    let trimmed = a.clone();
                    workers[worker].run(move || {
                        (0..2).for_each(|_| trimmed.trim());
                        Vec::new()
                    });
                    let all: BTreeMap<_, _> = slots(&model, false).into_iter().chain(slots(&model, true)).collect();
                    prop_assert_eq!(a.stats().mapped, spans_of(&all, |_| true) * SPAN_BYTES);
                }
                _ => {}
            }
            let (transient, stored) = (slots(&model, false), slots(&model, true));
            let all: Vec<_> = transient.iter().chain(&stored).collect::<BTreeMap<_, _>>().into_iter().collect();
            prop_assert!(all.windows(2).all(|w| w[0].0 + w[0].1 <= *w[1].0), "slots overlap");
            let stats = a.stats();
            prop_assert_eq!(stats.stored, stored.values().sum::<usize>());
            prop_assert_eq!(stats.in_use, stats.stored + transient.values().sum::<usize>());
            prop_assert_eq!(quota.used(), stats.stored as u64);
            prop_assert!(stats.peak >= stats.in_use);
        }
        model.clear();
        prop_assert_eq!(fill(&a, SPAN_BYTES).len(), limit);
        workers.into_iter().for_each(Worker::end);
    }
}
