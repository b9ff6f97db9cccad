//! Dispatches FUSE requests to the executor that owns the connections.
//!
//! A worker is one task that runs many requests. The FUSE threads, or the task that reads requests, queue them and wake
//! the worker only when it sleeps. The worker polls all queued requests before the connection's task runs, so that their
//! calls are sent in one batch. With a task per request they would be sent one by one, because a
//! multi-threaded executor runs the task that was woken last (the connection's) before the tasks in its
//! queue.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, CatchUnwind, poll_fn},
    stream::FuturesUnordered,
};
use millrace_runtime::RuntimeRef;
use parking_lot::Mutex;

/// The future that answers one request.
type RequestFuture = BoxFuture<'static, ()>;

/// Distributes requests over workers.
pub struct Dispatcher {
    queues: Vec<Arc<Mutex<Queue>>>,
    next: AtomicUsize,
}

/// Requests for one worker.
#[derive(Default)]
struct Queue {
    work: Vec<RequestFuture>,
    /// Set while the worker sleeps.
    waker: Option<Waker>,
    /// The executor has shut down.
    closed: bool,
}

impl Dispatcher {
    /// Spawns `workers` tasks on `rt`; one for each of its threads is best.
    pub fn new(rt: &RuntimeRef, workers: usize) -> Self {
        let queues: Vec<Arc<Mutex<Queue>>> = (0..workers).map(|_| Arc::default()).collect();
        for queue in &queues {
            let mut worker =
                Worker { queue: Arc::clone(queue), started: Vec::new(), running: FuturesUnordered::new() };
            rt.spawn("mount requests", Box::pin(poll_fn(move |cx| worker.poll(cx))));
        }
        Self { queues, next: AtomicUsize::new(0) }
    }

    /// Queues `work` for the next worker, round robin. After the executor has shut down, `work` is dropped.
    pub fn run(&self, work: RequestFuture) {
        let i = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(queue) = self.queues.get(i % self.queues.len().max(1)) else { return };
        let mut queue = queue.lock();
        if queue.closed {
            drop(queue); // Dropping `work` may take any lock.
            return;
        }
        queue.work.push(work);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The task that runs the requests of one queue.
struct Worker {
    queue: Arc<Mutex<Queue>>,
    /// Requests just taken from the queue.
    started: Vec<RequestFuture>,
    running: FuturesUnordered<CatchUnwind<AssertUnwindSafe<RequestFuture>>>,
}

impl Worker {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut queue = self.queue.lock();
            std::mem::swap(&mut queue.work, &mut self.started);
            let nothing_new = self.started.is_empty();
            if nothing_new {
                queue.waker = Some(cx.waker().clone());
            }
            drop(queue);
            self.running.extend(self.started.drain(..).map(|w| AssertUnwindSafe(w).catch_unwind()));
            while let Poll::Ready(Some(done)) = self.running.poll_next_unpin(cx) {
                if done.is_err() {
                    tracing::error!("panic while serving a FUSE request; it failed with EIO");
                }
            }
            if nothing_new {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let left = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.work)
        };
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use millrace_runtime::tokio_rt::TokioRuntime;
    use tokio::{
        runtime::{Builder, Runtime},
        sync::Notify,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn executor() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    #[test]
    fn queued_requests_start_before_woken_tasks() {
        let rt = executor();
        let dispatcher = Dispatcher::new(&TokioRuntime::from_handle(rt.handle().clone()), 1);
        let (tx, rx) = mpsc::channel();
        let connection = Arc::new(Notify::new());
        let (woken, say_sent) = (Arc::clone(&connection), tx.clone());
        rt.spawn(async move {
            woken.notified().await;
            say_sent.send("sent").unwrap();
        });
        let (go, wait) = mpsc::channel::<()>();
        dispatcher.run(Box::pin(async move { wait.recv().unwrap() }));
        for name in ["first", "second", "third"] {
            let (connection, tx) = (Arc::clone(&connection), tx.clone());
            dispatcher.run(Box::pin(async move {
                tx.send(name).unwrap();
                connection.notify_one();
            }));
        }
        go.send(()).unwrap();
        let order: Vec<_> = (0..4).map(|_| rx.recv_timeout(LIMIT).unwrap()).collect();
        assert_eq!(order, ["first", "second", "third", "sent"]);
    }

    #[test]
    fn panic_affects_only_its_request() {
        let rt = executor();
        let dispatcher = Dispatcher::new(&TokioRuntime::from_handle(rt.handle().clone()), 1);
        let (tx, rx) = mpsc::channel();
        dispatcher.run(Box::pin(async { panic!("on purpose") }));
        dispatcher.run(Box::pin(async move { tx.send(()).unwrap() }));
        rx.recv_timeout(LIMIT).unwrap();
    }

    #[test]
    fn requests_after_shutdown_are_dropped() {
        let rt = executor();
        let dispatcher = Dispatcher::new(&TokioRuntime::from_handle(rt.handle().clone()), 1);
        rt.shutdown_timeout(LIMIT);
        let held = Arc::new(());
        let work = Arc::clone(&held);
        dispatcher.run(Box::pin(async move { drop(work) }));
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
