//! Executor abstraction: time, timers, tasks, randomness and byte streams.
//!
//! Code above the providers takes time, timers and tasks from [`Runtime`] and bytes from [`ByteStream`], and
//! names no executor. [`tokio_rt`] is the adapter for Tokio; [`virtual_time`] is an executor of our own, whose clock is
//! simulated. Everything that is spawned is `Send`, so the same code serves one single-threaded runtime per core
//! (the server's shards) and a multi-threaded one (an application that uses the client).

mod gathering;
mod local_port;
mod maybe_ready;
mod readiness;
mod standstill;
mod stream;
pub mod tokio_rt;
mod uncancelled;
pub mod virtual_time;

use std::{future::Future, io, os::fd::OwnedFd, pin::Pin, sync::Arc, time::Duration};

pub use gathering::poll_gathering;
pub use local_port::{LocalPort, reserved_ports};
pub use maybe_ready::{BoxFuture, MaybeReady};
pub use readiness::Readiness;
pub use standstill::Standstill;
pub use stream::{ByteStream, MemoryStream, StreamListener, StreamProvider, memory_stream};
pub use uncancelled::Uncancelled;

/// A point in a runtime's time: nanoseconds since an origin that the runtime chose. Never compared between runtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant `nanos` nanoseconds after the runtime's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the runtime's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if `earlier` is later.
    pub const fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A future that ends when its time has come.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What code above the providers may ask of an executor.
pub trait Runtime: Send + Sync + 'static {
    /// The present time, monotonic.
    fn now(&self) -> Instant;

    /// Wall-clock time since the Unix epoch. In virtual time this is simulated too.
    fn wall_clock(&self) -> Duration;

    /// Whether time is simulated. Then nothing may depend on the state of the machine that simulates: only on the seed.
    fn is_virtual(&self) -> bool {
        false
    }

    /// A future that completes at `at` (at once if it has passed).
    fn sleep_until(&self, at: Instant) -> Sleep;

    /// Runs `task` on this runtime until it ends. `name` appears in logs and tracing tools.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);

    /// Runs `work`, which may block, where it does not hold up tasks. It is dropped unrun if the runtime ends first.
    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>);

    /// Watches `fd` for something to read; it is made non-blocking. Whoever keeps another descriptor of the same file
    /// may go on using it.
    ///
    /// # Errors
    /// When the runtime cannot watch descriptors at all (virtual time), or not this one.
    fn watch(&self, fd: OwnedFd) -> io::Result<Box<dyn Readiness>> {
        drop(fd);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this runtime does not watch file descriptors"))
    }

    /// Fills `bytes` with unpredictable bytes (in virtual time: pseudo-random from the seed).
    fn fill_random(&self, bytes: &mut [u8]);
}

/// How code holds a runtime.
pub type RuntimeRef = Arc<dyn Runtime>;

/// Conveniences over every [`Runtime`].
pub trait RuntimeExt: Runtime {
    /// A future that completes after `d`.
    fn sleep(&self, d: Duration) -> Sleep {
        self.sleep_until(self.now() + d)
    }

    /// A random number.
    fn random_u64(&self) -> u64 {
        let mut b = [0; 8];
        self.fill_random(&mut b);
        u64::from_ne_bytes(b)
    }
}

impl<R: Runtime + ?Sized> RuntimeExt for R {}

/// `future`'s output, or `None` if `limit` passes first (the future is dropped then).
pub async fn timeout<F: Future>(rt: &dyn Runtime, limit: Duration, future: F) -> Option<F::Output> {
    use futures::future::{Either, select};
    let sleep = rt.sleep_until(rt.now() + limit);
    match select(std::pin::pin!(future), sleep).await {
        Either::Left((out, _)) => Some(out),
        Either::Right(_) => None,
    }
}
