//! A runtime that calls a hook after each poll of a task.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use millrace_runtime::{BoxFuture, Instant, Runtime, RuntimeRef, Sleep};

/// Called after each poll of a task, once set.
pub(super) type PollHook = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

/// A runtime that calls `after` after each poll of a task.
pub(super) struct HookedRuntime {
    inner: RuntimeRef,
    after: PollHook,
}

impl HookedRuntime {
    pub(super) fn new(inner: RuntimeRef, after: PollHook) -> Self {
        Self { inner, after }
    }
}

impl Runtime for HookedRuntime {
    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn wall_clock(&self) -> Duration {
        self.inner.wall_clock()
    }

    fn is_virtual(&self) -> bool {
        self.inner.is_virtual()
    }

    fn sleep_until(&self, at: Instant) -> Sleep {
        self.inner.sleep_until(at)
    }

    fn spawn(&self, name: &'static str, mut task: BoxFuture<'static, ()>) {
        let after = Arc::clone(&self.after);
        let observed = std::future::poll_fn(move |cx| {
            let polled = task.as_mut().poll(cx);
            if let Some(after) = after.get() {
                after();
            }
            polled
        });
        self.inner.spawn(name, Box::pin(observed));
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.spawn("blocking", Box::pin(async move { work() }));
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.inner.fill_random(bytes);
    }
}
