//! Waiting for memory.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use proptest::prelude::*;

use super::{arena, cases, slot_cache::Worker, steps};
use crate::{Arena, BLOCK_BYTES, Buffer, BufferLengths, MemoryWait, OutOfMemory, Quota, SPAN_BYTES, View};

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A task that waits.
struct Task {
    wait: MemoryWait,
    flag: Arc<Flag>,
    wanted: BufferLengths,
}

fn all_or_none(a: &Arena, lengths: BufferLengths) -> Result<Vec<Buffer>, OutOfMemory> {
    a.alloc_all(lengths).collect()
}

impl Task {
    /// A task whose allocation has failed.
    fn new(a: &Arena, wanted: impl Into<BufferLengths>) -> Self {
        let wanted = wanted.into();
        let mut wait = MemoryWait::new(a);
        all_or_none(a, wanted).err().iter().for_each(|full| wait.begin(full));
        assert!(wait.is_waiting(), "there is memory for {wanted:?}");
        let mut task = Self { wait, flag: Arc::default(), wanted };
        assert!(!task.poll());
        task
    }

    fn is_woken(&self) -> bool {
        self.flag.0.load(Ordering::Relaxed)
    }

    fn poll(&mut self) -> bool {
        self.flag.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.flag));
        self.wait.poll(&mut Context::from_waker(&waker)) == Poll::Ready(())
    }
}

/// All memory of an arena of one span, in buffers of this size.
fn full(a: &Arena, size: usize) -> Vec<Buffer> {
    let all: Vec<_> = std::iter::from_fn(|| a.alloc(size).ok()).collect();
    assert_eq!(all.len(), SPAN_BYTES / size);
    all
}

#[test]
fn a_wait_is_ready_unless_an_allocation_has_failed() {
    let a = arena(1);
    let mut cx = Context::from_waker(Waker::noop());
    let mut wait = MemoryWait::new(&a);
    assert!(!wait.is_waiting() && wait.poll(&mut cx).is_ready());
    let all = full(&a, BLOCK_BYTES);
    wait.begin(&a.alloc(1).unwrap_err());
    assert!(wait.is_waiting() && wait.poll(&mut cx).is_pending());
    drop(all);
    assert!(wait.poll(&mut cx).is_ready() && !wait.is_waiting());
    // No wait can help.
    wait.begin(&a.alloc(SPAN_BYTES + 1).unwrap_err());
    assert!(wait.poll(&mut cx).is_pending());
}

#[test]
fn waiters_are_woken_one_after_another() {
    let a = arena(1);
    let mut all = full(&a, SPAN_BYTES / 8);
    let mut tasks: Vec<_> = (0..3).map(|_| Task::new(&a, SPAN_BYTES / 8)).collect();
    all.pop();
    assert_eq!(tasks.iter().map(Task::is_woken).collect::<Vec<_>>(), [true, false, false]);
    all.pop();
    assert_eq!(tasks.iter().map(Task::is_woken).collect::<Vec<_>>(), [true, true, false]);
    assert!(tasks[0].poll());
    // Its memory is still free, so another one may have it.
    assert!(tasks[2].is_woken());
}

#[test]
fn a_waiter_for_more_memory_does_not_delay_others() {
    let a = arena(1);
    let mut all = full(&a, SPAN_BYTES / 8);
    let (mut large, mut small) = (Task::new(&a, SPAN_BYTES), Task::new(&a, SPAN_BYTES / 8));
    all.pop();
    assert!(small.is_woken() && !large.is_woken());
    assert!(small.poll());
    drop((all, small));
    assert!(large.is_woken() && large.poll());
    drop(a.alloc(SPAN_BYTES).unwrap());
}

#[test]
fn a_waiter_that_gives_up_or_fails_again_wakes_the_next() {
    for gives_up in [true, false] {
        let a = arena(1);
        let mut all = full(&a, SPAN_BYTES / 8);
        let (mut first, second) = (Task::new(&a, SPAN_BYTES / 8), Task::new(&a, SPAN_BYTES / 8));
        all.pop();
        assert!(first.is_woken() && !second.is_woken());
        if gives_up {
            drop(first);
            assert!(second.is_woken());
        } else {
            let taken = a.alloc(SPAN_BYTES / 8).unwrap();
            assert!(!first.poll() && !second.is_woken());
            drop(taken);
            assert!(first.is_woken() || second.is_woken());
        }
    }
}

#[test]
fn memory_that_another_thread_frees_wakes_a_waiter() {
    let (a, worker) = (arena(1), Worker::start());
    let mut all = full(&a, 4096);
    let mut task = Task::new(&a, 4096);
    worker.free(all.pop().unwrap().freeze());
    assert!(task.is_woken() && task.poll());
    drop(task);
    // Threads cache slots again.
    worker.free(all.pop().unwrap().freeze());
    assert_eq!(a.cached_bytes(), 4096);
}

#[test]
fn an_allocation_waits_for_memory() {
    let a = arena(1);
    let held = Mutex::new(full(&a, SPAN_BYTES));
    let allocation = std::pin::pin!(a.wait_for(|a| a.alloc(SPAN_BYTES)));
    let mut allocation = allocation;
    let mut cx = Context::from_waker(Waker::noop());
    assert!(allocation.as_mut().poll(&mut cx).is_pending());
    held.lock().unwrap().clear();
    let Poll::Ready(Ok(buffer)) = allocation.as_mut().poll(&mut cx) else { panic!("it waits") };
    assert_eq!(buffer.len(), SPAN_BYTES);
    let too_large = std::pin::pin!(a.wait_for(|a| a.alloc(SPAN_BYTES + 1)));
    assert!(matches!(too_large.poll(&mut cx), Poll::Ready(Err(_))));
}

#[test]
fn buffers_that_are_allocated_together_are_waited_for_together() {
    let a = arena(1);
    let mut all = full(&a, SPAN_BYTES / 8);
    let mut task = Task::new(&a, BufferLengths::new(SPAN_BYTES / 4, SPAN_BYTES / 8));
    all.pop();
    assert!(!task.is_woken() && !task.poll());
    all.pop();
    assert!(task.is_woken() && task.poll());
}

#[test]
fn memory_that_a_quota_adopts_wakes_a_waiter() {
    let a = arena(1);
    let quota = a.quota(SPAN_BYTES as u64);
    let mut views: Vec<View> = std::iter::from_fn(|| a.alloc(BLOCK_BYTES).ok()).map(Buffer::freeze).collect();
    let mut task = Task::new(&a, BLOCK_BYTES);
    let view = views.iter().find(|view| quota.can_adopt(view)).unwrap();
    quota.exchange(&[view], &[]).unwrap();
    assert!(task.is_woken() && task.poll());
    views.clear();
}

#[derive(Debug, Clone)]
enum Step {
    Alloc(usize, usize),
    Free { worker: usize, buffer: usize },
    Store(usize),
    Poll(usize),
    Drop(usize),
    DropQuota,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![1..5000_usize, 1..=SPAN_BYTES, Just(BLOCK_BYTES)];
    prop_oneof![
        8 => (size, 1..3_usize).prop_map(|(size, count)| Step::Alloc(size, count)),
        8 => (0..3_usize, any::<usize>()).prop_map(|(worker, buffer)| Step::Free { worker, buffer }),
        2 => any::<usize>().prop_map(Step::Store),
        4 => any::<usize>().prop_map(Step::Poll),
        2 => any::<usize>().prop_map(Step::Drop),
        1 => Just(Step::DropQuota),
    ]
}

proptest! {
    #![proptest_config(cases(64))]

    /// While a waiter could allocate, some waiter is woken and has not been polled.
    #[test]
    fn no_wake_is_lost(limit in 1_usize..3, with_quota: bool, steps in prop::collection::vec(step(), 1..steps(200))) {
        let a = arena(limit);
        let mut quota: Option<Quota> = with_quota.then(|| a.quota(SPAN_BYTES as u64));
        let workers: Vec<_> = (0..3).map(|_| Worker::start()).collect();
        let (mut views, mut tasks) = (Vec::<View>::new(), Vec::new());
        for step in steps {
            match step {
                Step::Alloc(size, count) => {
                    let wanted = BufferLengths::new(size * count, size);
                    match all_or_none(&a, wanted) {
                        Ok(buffers) => views.extend(buffers.into_iter().map(Buffer::freeze)),
                        Err(_) if size * count <= limit * SPAN_BYTES => tasks.push(Task::new(&a, wanted)),
                        Err(_) => {}
                    }
                }
                Step::Free { worker, buffer } if !views.is_empty() => {
                    let view = views.swap_remove(buffer % views.len());
                    workers[worker].free(view);
                }
                Step::Store(view) if !views.is_empty() => {
                    let view = &views[view % views.len()];
                    if let Some(quota) = quota.as_ref().filter(|quota| quota.can_adopt(view)) {
                        quota.exchange(&[view], &[]).ok();
                    }
                }
                Step::Poll(task) if !tasks.is_empty() => {
                    let task = task % tasks.len();
                    if tasks[task].poll() {
                        let Task { wanted, .. } = tasks.swap_remove(task);
                        views.extend(all_or_none(&a, wanted).unwrap().into_iter().map(Buffer::freeze));
                    }
                }
                Step::Drop(task) if !tasks.is_empty() => drop(tasks.swap_remove(task % tasks.len())),
                Step::DropQuota => drop(quota.take()),
                _ => {}
            }
            if !tasks.iter().any(Task::is_woken) {
                for task in &tasks {
                    let wanted = task.wanted;
                    prop_assert!(all_or_none(&a, wanted).is_err(), "a task waits for {wanted:?}, which are free");
                }
            }
        }
    }
}
