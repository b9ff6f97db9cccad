//! A thread pool for blocking system calls.
//!
//! Separate from the runtime's, because these threads change their credentials and umask, and must not run
//! other code. In particular, a thread that has changed its credentials and restored them can no longer use RDMA adapters:
//! the kernel accepts commands on `/dev/infiniband/uverbs*` only with the `struct cred` of the open (`ib_safe_file_access`).

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use futures::channel::oneshot;
use millrace_vfs::{FsError, FsResult};
use parking_lot::{Condvar, Mutex};

/// Interval of each thread's housekeeping, busy or idle.
const IDLE_TICK: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

/// A fixed number of threads that run jobs in order of arrival. Queued jobs complete after it is dropped.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Starts `threads` threads. Each calls `prepare` first, and `tick` at intervals.
    pub(super) fn start(
        name: &str,
        threads: usize,
        prepare: impl Fn() + Clone + Send + 'static,
        tick: impl Fn() + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), ready: Condvar::new() });
        let pool = Self { shared };
        for i in 0..threads.max(1) {
            let (shared, prepare, tick) = (Arc::clone(&pool.shared), prepare.clone(), tick.clone());
            thread::Builder::new().name(format!("{name}-{i}")).spawn(move || {
                prepare();
                work(&shared, &tick);
            })?;
        }
        Ok(pool)
    }

    /// Runs `f` on a thread of the pool. It completes even if the future is dropped.
    pub(super) fn run<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> FsResult<T> + Send + 'static,
    ) -> impl Future<Output = FsResult<T>> + Send + 'static {
        let (tx, rx) = oneshot::channel();
        self.push(Box::new(move || drop(tx.send(f()))));
        async move { rx.await.unwrap_or(Err(FsError::ServerFault)) }
    }

    pub(super) fn push(&self, job: Job) {
        self.shared.queue.lock().jobs.push_back(job);
        self.shared.ready.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.ready.notify_all();
    }
}

/// Blocks this thread until `future` completes.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(out) => return out,
            Poll::Pending => thread::park(),
        }
    }
}

fn work(shared: &Shared, tick: &impl Fn()) {
    let mut ticked = Instant::now();
    loop {
        if ticked.elapsed() >= IDLE_TICK {
            tick();
            ticked = Instant::now();
        }
        let job = {
            let mut queue = shared.queue.lock();
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break Some(job);
                }
                if queue.closed {
                    return;
                }
                if shared.ready.wait_for(&mut queue, IDLE_TICK).timed_out() {
                    break None;
                }
            }
        };
        let Some(job) = job else { continue };
        // A panic in a job must not end the thread; the caller gets SERVERFAULT.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a file system job panicked");
        }
    }
}
