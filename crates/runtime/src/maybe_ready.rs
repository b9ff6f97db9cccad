//! A future that is often ready when it is made.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// A boxed future that any thread may poll.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The outcome of a call that seldom has to wait: no allocation when it is ready at once.
///
/// Traits on the data path return this instead of a boxed future (a memory file system, a call answered from a
/// table), so that they stay object safe and allocate only when they truly wait.
pub enum MaybeReady<'a, T> {
    /// The outcome is here.
    Ready(T),
    /// The outcome will come.
    Pending(BoxFuture<'a, T>),
    /// The outcome was taken; polling again is a bug of the caller.
    Taken,
}

impl<'a, T> MaybeReady<'a, T> {
    /// Wraps a future that has to wait.
    pub fn wait(f: impl Future<Output = T> + Send + 'a) -> Self {
        Self::Pending(Box::pin(f))
    }

    /// Applies `f` to the outcome, now if it is here.
    pub fn map<U: 'a>(self, f: impl FnOnce(T) -> U + Send + 'a) -> MaybeReady<'a, U>
    where
        T: Send + 'a,
    {
        match self {
            Self::Ready(v) => MaybeReady::Ready(f(v)),
            Self::Pending(fut) => MaybeReady::wait(async move { f(fut.await) }),
            Self::Taken => MaybeReady::Taken,
        }
    }
}

impl<T: Unpin> Future for MaybeReady<'_, T> {
    type Output = T;

    /// # Panics
    /// When polled again after it was ready, as `async` blocks do.
    #[allow(clippy::panic)] // The contract of Future, not input from a peer.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        if let MaybeReady::Pending(f) = this {
            return f.as_mut().poll(cx).map(|v| {
                *this = MaybeReady::Taken;
                v
            });
        }
        match std::mem::replace(this, MaybeReady::Taken) {
            MaybeReady::Ready(v) => Poll::Ready(v),
            _ => panic!("MaybeReady polled after it was ready"),
        }
    }
}
