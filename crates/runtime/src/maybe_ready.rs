//! A future that is often ready when it is created.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// A boxed future that any thread can poll.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of an operation that rarely waits; a ready result needs no allocation.
///
/// Traits on the data path return this type instead of a boxed future (an in-memory file system, a call
/// answered from a table). So they are object safe, and allocate only when they wait.
pub enum MaybeReady<'a, T> {
    /// The result is available.
    Ready(T),
    /// The result will be available later.
    Pending(BoxFuture<'a, T>),
    /// The result was taken; polling again is an error of the caller.
    Taken,
}

impl<'a, T> MaybeReady<'a, T> {
    /// Wraps a future.
    pub fn wait(f: impl Future<Output = T> + Send + 'a) -> Self {
        Self::Pending(Box::pin(f))
    }

    /// Applies `f` to the result, immediately if it is available.
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
    /// If polled again after completion, as for `async` blocks.
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
