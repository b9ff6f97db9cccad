//! Tests of the executor in virtual time.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use millrace_runtime::{
    Instant, RuntimeExt, RuntimeRef, timeout,
    virtual_time::{Stuck, VirtualTime},
};

const NS: Duration = Duration::from_nanos(1);

/// Tasks that each sleep random times. Returns the wake-ups.
fn wake_ups(seed: u64) -> Vec<(u64, usize)> {
    let time = VirtualTime::new(seed);
    let (rt, log) = (time.runtime(), Arc::new(Mutex::new(Vec::new())));
    let mut ends = Vec::new();
    for who in 0..50 {
        let (rt, log) = (rt.clone(), log.clone());
        let (done, end) = futures::channel::oneshot::channel();
        ends.push(end);
        let clock = rt.clone();
        let task = async move {
            for _ in 0..20 {
                rt.sleep(NS * (rt.random_u64() % 5) as u32).await;
                log.lock().unwrap().push((rt.now().as_nanos(), who));
            }
            done.send(()).unwrap();
        };
        clock.spawn("teller", Box::pin(task));
    }
    time.block_on(futures::future::join_all(ends)).unwrap();
    let log = log.lock().unwrap().clone();
    assert_eq!(log.len(), 1000);
    log
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(wake_ups(7), wake_ups(7));
    assert_ne!(wake_ups(7), wake_ups(8));
    assert!(wake_ups(7).is_sorted_by_key(|(at, _)| *at));
}

#[test]
fn the_clock_advances_only_when_no_task_is_ready() {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    let woke = time.block_on(async {
        rt.sleep(NS).await;
        let first = rt.now();
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(rt.now(), first);
        rt.sleep(NS * 999).await;
        rt.sleep_until(Instant::from_nanos(5)).await; // In the past.
        (first.as_nanos(), rt.now().as_nanos())
    });
    assert_eq!(woke, Ok((1, 1000)));
    assert_eq!(rt.wall_clock(), Duration::new(1_000_000_000, 1000));
}

async fn yield_now() {
    let mut polled = false;
    std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn timers_of_one_instant_fire_in_the_order_of_creation() {
    let time = VirtualTime::new(1);
    let (rt, log) = (time.runtime(), Arc::new(Mutex::new(Vec::new())));
    let at = Instant::from_nanos(10);
    let note = |n: u32| {
        let log = log.clone();
        Box::new(move || log.lock().unwrap().push(n))
    };
    // Created first, polled last.
    let sleeps: Vec<_> = (0..3).map(|_| rt.sleep_until(at)).collect();
    time.clock().call_at(at, note(3));
    time.clock().call_at(Instant::from_nanos(9), note(100));
    for (n, sleep) in (0..3).zip(sleeps).rev() {
        let note = note(n);
        rt.spawn(
            "sleeper",
            Box::pin(async move {
                sleep.await;
                note();
            }),
        );
    }
    time.block_on(rt.sleep(NS * 11)).unwrap();
    assert_eq!(*log.lock().unwrap(), [100, 0, 1, 2, 3]);
}

#[test]
fn a_timeout_ends_only_futures_that_exceed_it() {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    time.block_on(async {
        assert_eq!(timeout(&*rt, NS * 5, rt.sleep(NS * 6)).await, None);
        assert_eq!(rt.now().as_nanos(), 5);
        assert_eq!(timeout(&*rt, NS * 5, rt.sleep(NS * 4)).await, Some(()));
        assert_eq!(rt.now().as_nanos(), 9);
    })
    .unwrap();
}

#[test]
fn a_hundred_thousand_tasks_have_no_spurious_polls() {
    let time = VirtualTime::new(1);
    let (rt, polls) = (time.runtime(), Arc::new(AtomicUsize::new(0)));
    for n in 0..100_000_u32 {
        let (clock, polls) = (rt.clone(), polls.clone());
        let task = async move {
            polls.fetch_add(1, Ordering::Relaxed);
            clock.sleep(NS * (n % 1000)).await;
            polls.fetch_add(1, Ordering::Relaxed);
        };
        rt.spawn("one of many", Box::pin(task));
    }
    time.block_on(rt.sleep(NS * 1000)).unwrap();
    assert_eq!(polls.load(Ordering::Relaxed), 200_000);
}

#[test]
fn blocking_work_runs_on_the_one_thread() {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    let (say, heard) = futures::channel::oneshot::channel();
    rt.spawn_blocking(Box::new(move || say.send(std::thread::current().id()).unwrap()));
    assert_eq!(time.block_on(heard).unwrap(), Ok(std::thread::current().id()));
    assert_eq!(rt.now().as_nanos(), 0);
}

#[test]
fn a_run_that_cannot_end_is_an_error() {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    rt.spawn("waiter", Box::pin(std::future::pending()));
    let stuck = time.block_on(async {
        rt.sleep(NS).await;
        std::future::pending::<()>().await
    });
    assert_eq!(stuck, Err(Stuck::Deadlock { at: NS, tasks: vec!["waiter"] }));
    let busy = time.block_on(async {
        loop {
            yield_now().await;
        }
    });
    let busy: Result<(), Stuck> = busy;
    assert!(matches!(busy, Err(Stuck::Busy { at: NS, .. })), "{busy:?}");
}

/// Counts its instances.
struct Held(Arc<AtomicUsize>, RuntimeRef);

impl Held {
    fn new(count: &Arc<AtomicUsize>, rt: &RuntimeRef) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone(), rt.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        self.1.spawn("last word", Box::pin(async {})); // Must not deadlock.
    }
}

#[test]
fn the_end_of_a_group_drops_its_tasks_only() {
    let time = VirtualTime::new(1);
    let (group, count) = (time.group(), Arc::new(AtomicUsize::new(0)));
    for rt in [group.runtime(), time.runtime()] {
        let held = Held::new(&count, &rt);
        let sleep = rt.sleep(NS * 10);
        rt.spawn(
            "holder",
            Box::pin(async move {
                sleep.await;
                drop(held);
            }),
        );
    }
    let rt = time.runtime();
    time.block_on(rt.sleep(NS)).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2);
    group.end();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    let late = Held::new(&count, &rt);
    group.runtime().spawn("too late", Box::pin(async move { drop(late) }));
    assert_eq!(count.load(Ordering::Relaxed), 1);
    time.block_on(rt.sleep(NS * 10)).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[test]
fn dropping_the_executor_drops_all_tasks() {
    let count = Arc::new(AtomicUsize::new(0));
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    for _ in 0..3 {
        let held = Held::new(&count, &rt);
        rt.spawn(
            "for ever",
            Box::pin(async move {
                std::future::pending::<()>().await;
                drop(held);
            }),
        );
    }
    let held = Held::new(&count, &rt);
    time.clock().call_at(Instant::from_nanos(1), Box::new(move || drop(held)));
    drop(time);
    assert_eq!(count.load(Ordering::Relaxed), 0);
    rt.spawn("after the end", Box::pin(async { unreachable!() }));
}

/// Recorded seeds and figures of simulations depend on it.
#[test]
fn random_bytes_are_those_of_splitmix64() {
    let rt = VirtualTime::new(1_234_567).runtime();
    // The first outputs of the reference implementation (Vigna, splitmix64.c) for this seed.
    assert_eq!(rt.random_u64(), u64::from_ne_bytes(6_457_827_717_110_365_317_u64.to_le_bytes()));
    let mut bytes = [0; 11];
    rt.fill_random(&mut bytes);
    let expected = [3_203_168_211_198_807_973_u64, 9_817_491_932_198_370_423].map(u64::to_le_bytes);
    assert_eq!(bytes[..], expected.concat()[..11]);
}
