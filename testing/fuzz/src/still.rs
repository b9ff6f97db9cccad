//! A runtime whose clock does not advance, for code that needs a runtime and neither waits nor starts tasks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_runtime::{BoxFuture, Instant, Runtime, RuntimeRef, Sleep};

use crate::mutate::Random;

struct Still(AtomicU64);

/// A runtime whose clock does not advance. Its random bytes are the same in every execution.
pub(crate) fn still() -> RuntimeRef {
    Arc::new(Still(AtomicU64::new(1)))
}

impl Runtime for Still {
    fn now(&self) -> Instant {
        Instant::default()
    }

    fn wall_clock(&self) -> Duration {
        Duration::ZERO
    }

    fn is_virtual(&self) -> bool {
        true
    }

    fn sleep_until(&self, _at: Instant) -> Sleep {
        Box::pin(std::future::pending())
    }

    fn spawn(&self, name: &'static str, _task: BoxFuture<'static, ()>) {
        panic!("the task {name:?} was started");
    }

    fn spawn_blocking(&self, _work: Box<dyn FnOnce() + Send>) {
        panic!("blocking work was started");
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        let mut random = Random::new(self.0.fetch_add(1, Ordering::Relaxed));
        bytes.fill_with(|| random.next() as u8);
    }
}
