//! How requests come to the executor that owns the connections.
//!
//! A lane is one task that runs many requests. The threads that take requests leave them in its queue, and wake it only
//! when it sleeps. It begins all that came meanwhile before the connection's task has its turn, so that their calls
//! leave in one message. As tasks of their own they would leave one by one: an executor of several threads runs whom a
//! task has woken, here the connection, before the tasks that wait.

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

/// A request that is being answered.
type RequestFuture = BoxFuture<'static, ()>;

/// The dispatcher of a mount.
pub(crate) struct Dispatcher {
    queues: Vec<Arc<Mutex<Queue>>>,
    next: AtomicUsize,
}

/// What was left for a lane.
#[derive(Default)]
struct Queue {
    work: Vec<RequestFuture>,
    /// The lane's, while it sleeps.
    waker: Option<Waker>,
    /// The executor has ended.
    closed: bool,
}

impl Dispatcher {
    /// So many dispatcher, tasks of `rt`: one for each of its threads.
    pub(crate) fn new(rt: &RuntimeRef, dispatcher: usize) -> Self {
        let queues: Vec<Arc<Mutex<Queue>>> = (0..dispatcher).map(|_| Arc::default()).collect();
        for queue in &queues {
            let mut lane =
                Worker { queue: Arc::clone(queue), started: Vec::new(), running: FuturesUnordered::new() };
            rt.spawn("mount lane", Box::pin(poll_fn(move |cx| lane.poll(cx))));
        }
        Self { queues, next: AtomicUsize::new(0) }
    }

    /// Runs `work` on the next lane. Once the executor has ended, drops it.
    pub(crate) fn run(&self, work: RequestFuture) {
        let i = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(queue) = self.queues.get(i % self.queues.len().max(1)) else { return };
        let mut queue = queue.lock();
        if queue.closed {
            drop(queue); // What goes with `work` may take any lock.
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

/// The lane's own side.
struct Worker {
    queue: Arc<Mutex<Queue>>,
    /// What was just taken from the queue.
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
                    tracing::error!("a request of the kernel ended in a panic, and was answered with EIO");
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
    fn all_that_came_is_begun_before_whom_the_first_has_woken() {
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
    fn a_panic_ends_one_request_alone() {
        let rt = executor();
        let dispatcher = Dispatcher::new(&TokioRuntime::from_handle(rt.handle().clone()), 1);
        let (tx, rx) = mpsc::channel();
        dispatcher.run(Box::pin(async { panic!("on purpose") }));
        dispatcher.run(Box::pin(async move { tx.send(()).unwrap() }));
        rx.recv_timeout(LIMIT).unwrap();
    }

    #[test]
    fn what_comes_after_the_executor_is_dropped() {
        let rt = executor();
        let dispatcher = Dispatcher::new(&TokioRuntime::from_handle(rt.handle().clone()), 1);
        rt.shutdown_timeout(LIMIT);
        let held = Arc::new(());
        let work = Arc::clone(&held);
        dispatcher.run(Box::pin(async move { drop(work) }));
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
