//! Tests of the small futures of this crate.

use std::{
    future::{Future, IntoFuture, pending, ready},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use millrace_runtime::{Instant, MaybeReady, RuntimeExt, RuntimeRef, timeout, tokio_rt::TokioRuntime};

fn poll<T>(f: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    pin!(f).poll(&mut Context::from_waker(Waker::noop()))
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(RuntimeRef) -> F) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async { test(TokioRuntime::current()).await });
}

#[test]
fn a_ready_result_is_returned_at_the_first_poll_and_mapped_immediately() {
    let f = MaybeReady::Ready(20).map(|n| n + 1).map(|n| n * 2);
    assert!(matches!(f, MaybeReady::Ready(42)), "a future was created");
    assert_eq!(poll(&mut f.into_future()), Poll::Ready(42));
}

#[test]
fn a_pending_result_is_mapped_when_it_is_ready() {
    let (send, receive) = futures::channel::oneshot::channel();
    let f = MaybeReady::wait(async move { receive.await.unwrap() }).map(|n: u32| n + 1);
    let mut f = f.into_future();
    assert!(poll(&mut f).is_pending());
    send.send(6).unwrap();
    assert_eq!(poll(&mut f), Poll::Ready(7));
}

#[test]
fn a_timeout_returns_the_output_or_drops_the_future() {
    struct Guard(std::sync::Arc<()>);
    run(async |rt| {
        assert_eq!(timeout(&*rt, Duration::from_secs(3600), ready(5)).await, Some(5));
        let alive = std::sync::Arc::new(());
        let guard = Guard(alive.clone());
        let late = async move {
            let _guard = &guard.0;
            pending::<()>().await;
        };
        assert_eq!(timeout(&*rt, Duration::from_millis(5), late).await, None);
        assert_eq!(std::sync::Arc::strong_count(&alive), 1);
        // An available output takes precedence over an expired limit.
        assert_eq!(timeout(&*rt, Duration::ZERO, ready(5)).await, Some(5));
    });
}

#[test]
fn sleeps_end_in_order_and_not_early() {
    run(async |rt| {
        let start = rt.now();
        let (order, mut seen) = futures::channel::mpsc::unbounded();
        for ms in [30u64, 10, 20] {
            let (rt2, order) = (rt.clone(), order.clone());
            let task = async move {
                rt2.sleep(Duration::from_millis(ms)).await;
                let slept = rt2.now().duration_since(start);
                order.unbounded_send((ms, slept >= Duration::from_millis(ms))).unwrap();
            };
            rt.spawn("sleeper", Box::pin(task));
        }
        drop(order);
        use futures::StreamExt;
        let mut got = Vec::new();
        while let Some(next) = seen.next().await {
            got.push(next);
        }
        assert_eq!(got, [(10, true), (20, true), (30, true)]);
        rt.sleep_until(start).await; // In the past.
    });
}

#[test]
fn instants_saturate() {
    let t = Instant::from_nanos(10);
    assert_eq!((t + Duration::MAX).as_nanos(), u64::MAX);
    assert_eq!(t.duration_since(t + Duration::from_nanos(1)), Duration::ZERO);
    assert_eq!((t + Duration::from_nanos(5)).duration_since(t), Duration::from_nanos(5));
}

#[test]
fn random_bytes_fill_the_whole_buffer() {
    run(async |rt| {
        for len in [1usize, 7, 256, 257, 5000] {
            // The probability that a byte is zero in all 16 rounds is 2^-128.
            let mut seen = vec![0u8; len];
            for _ in 0..16 {
                let mut b = vec![0; len];
                rt.fill_random(&mut b);
                seen.iter_mut().zip(&b).for_each(|(s, b)| *s |= b);
            }
            assert!(seen.iter().all(|b| *b != 0), "{len} bytes");
        }
        assert_ne!(rt.random_u64(), rt.random_u64());
    });
}

#[test]
fn blocking_work_does_not_block_tasks() {
    run(async |rt| {
        let (send, receive) = futures::channel::oneshot::channel();
        rt.spawn_blocking(Box::new(move || send.send(std::thread::current().id()).unwrap()));
        assert_ne!(receive.await.unwrap(), std::thread::current().id());
    });
}
