//! Tests of a session whose requests a task reads.
#![allow(clippy::unwrap_used)]

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use millrace_fuse_protocol::{InitFlags, Operation, ROOT, Reply};
use millrace_runtime::tokio_rt::TokioRuntime;
use rustix::io::Errno;

use super::{Call, Handler, Session};
use crate::{
    session::options,
    simulated::wire::{Body, Channel, Op},
};

const LIMIT: Duration = Duration::from_secs(60);

/// Answers all requests, and counts the writes.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicUsize>);

impl Handler for Counter {
    fn capabilities(&self, _offered: InitFlags) -> InitFlags {
        InitFlags::empty()
    }

    fn handle(&self, call: Call, operation: Operation<'_>) {
        match operation {
            Operation::Write(write) => {
                self.0.fetch_add(1, Ordering::Relaxed);
                call.reply(&Reply::Written(write.data.len() as u32));
            }
            _ => call.error(Errno::NOSYS),
        }
    }
}

fn write_of(length: usize) -> Body {
    let body = Body::default().u64(0).u64(0).u32(length as u32).u32(0).u64(0).u32(0).u32(0);
    body.bytes(&vec![7; length])
}

/// Sends writes of `length` bytes, and returns how many the session handles before other tasks run.
async fn handled_at_once(length: usize) -> Vec<usize> {
    const REQUESTS: usize = 40;
    let (kernel, device) = Channel::new(0);
    let handler = Counter::default();
    let session = Session::start(handler.clone(), device, options(1, None)).unwrap();
    kernel.wait_for_barrier();
    let mut served = Box::pin(session.run_on(&TokioRuntime::current()).unwrap());
    let ended = std::thread::spawn(move || {
        for _ in 0..REQUESTS {
            kernel.post(Op::Write, ROOT, write_of(length));
        }
        kernel.end();
        kernel
    });
    let mut steps = Vec::new();
    let all = poll_fn(|cx| {
        let before = handler.0.load(Ordering::Relaxed);
        let polled = served.as_mut().poll(cx);
        steps.push(handler.0.load(Ordering::Relaxed) - before);
        polled
    });
    tokio::time::timeout(LIMIT, all).await.unwrap().unwrap();
    drop(ended.join().unwrap());
    assert_eq!(steps.iter().sum::<usize>(), REQUESTS);
    steps
}

#[tokio::test]
async fn other_tasks_run_between_batches_of_requests() {
    assert!(handled_at_once(1).await.into_iter().all(|n| n <= 16));
    assert!(handled_at_once(100 << 10).await.into_iter().all(|n| n <= 3));
}

#[tokio::test]
async fn a_task_waits_for_requests() {
    let (kernel, device) = Channel::new(0);
    let session = Session::start(Counter::default(), device, options(1, None)).unwrap();
    kernel.wait_for_barrier();
    let mut served = Box::pin(session.run_on(&TokioRuntime::current()).unwrap());
    for _ in 0..3 {
        tokio::task::yield_now().await;
        assert!(poll_fn(|cx| Poll::Ready(served.as_mut().poll(cx).is_pending())).await);
    }
    kernel.end();
    tokio::time::timeout(LIMIT, served).await.unwrap().unwrap();
}
