//! Executor abstraction: time, timers, tasks, randomness and byte streams.
//!
//! Code above the providers uses [`Runtime`] for time, timers and tasks and [`ByteStream`] for byte streams,
//! and does not depend on an executor. [`tokio_rt`] is the adapter for Tokio; [`virtual_time`] is an executor
//! with a simulated clock. All spawned tasks are `Send`, so the same code runs on a single-threaded runtime
//! per core (the server's shards) and on a multi-threaded one (an application that uses the client).

#[cfg(feature = "call-counts")]
pub mod call_counts;
mod coalescing;
mod local_port;
mod maybe_ready;
mod percent;
pub mod queue;
mod range_locks;
mod readiness;
mod resolve;
mod send_queue;
mod stall_timer;
mod stream;
pub mod sync;
pub mod tokio_rt;
mod uncancelled;
pub mod virtual_time;
mod yield_now;

use std::{future::Future, io, os::fd::OwnedFd, pin::Pin, sync::Arc, time::Duration};

pub use coalescing::poll_coalescing;
pub use local_port::{LocalPort, reserved_ports};
pub use maybe_ready::{BoxFuture, MaybeReady};
pub use percent::{percent_decode, percent_encode};
pub use range_locks::{RangeLock, RangeLocks};
pub use readiness::Readiness;
pub use resolve::{canonical, ipv6_host, lookup, resolve};
pub use send_queue::SendQueue;
pub use stall_timer::StallTimer;
pub use stream::{ByteStream, MemoryStream, StreamListener, StreamProvider, memory_stream};
pub use uncancelled::Uncancelled;
pub use yield_now::yield_now;

/// A point in a runtime's time, in nanoseconds since an origin chosen by the runtime. Instants of different
/// runtimes must not be compared.
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

    /// Time since `earlier`; zero if `earlier` is later.
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

/// A future that completes at a given time.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The functions of an executor that code above the providers uses.
pub trait Runtime: Send + Sync + 'static {
    /// The current time; monotonic.
    fn now(&self) -> Instant;

    /// Wall-clock time since the Unix epoch; simulated in virtual time.
    fn wall_clock(&self) -> Duration;

    /// Whether time is simulated. If so, behaviour must depend only on the seed, not on the state of the
    /// host.
    fn is_virtual(&self) -> bool {
        false
    }

    /// Returns a future that completes at `at`, immediately if `at` has passed.
    fn sleep_until(&self, at: Instant) -> Sleep;

    /// Spawns `task`. `name` appears in logs and tracing tools.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);

    /// Runs `work`, which may block, without blocking tasks. If the runtime ends before `work` starts, `work`
    /// is dropped.
    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>);

    /// Registers `fd` for read readiness and makes it non-blocking. The caller may continue to use a
    /// duplicate of the descriptor.
    ///
    /// # Errors
    /// The runtime does not support file descriptors (virtual time), or cannot register this one.
    fn watch(&self, fd: OwnedFd) -> io::Result<Box<dyn Readiness>> {
        drop(fd);
        Err(io::Error::new(io::ErrorKind::Unsupported, "the runtime does not support file descriptors"))
    }

    /// Fills `bytes` with cryptographically random bytes (in virtual time, with pseudo-random bytes from the
    /// seed).
    fn fill_random(&self, bytes: &mut [u8]);
}

/// Shared reference to a runtime.
pub type RuntimeRef = Arc<dyn Runtime>;

/// Convenience methods of every [`Runtime`].
pub trait RuntimeExt: Runtime {
    /// Returns a future that completes after `d`.
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

/// Returns the output of `future`, or drops `future` and returns `None` after `limit`.
pub async fn timeout<F: Future>(rt: &dyn Runtime, limit: Duration, future: F) -> Option<F::Output> {
    use futures::future::{Either, select};
    let sleep = rt.sleep_until(rt.now() + limit);
    match select(std::pin::pin!(future), sleep).await {
        Either::Left((out, _)) => Some(out),
        Either::Right(_) => None,
    }
}
