//! The result of an operation that is often ready when it is created.

use std::{
    future::{Future, IntoFuture, Ready, ready},
    pin::Pin,
};

use futures::future::Either;

/// A boxed future that any thread can poll.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of an operation that rarely waits; a ready result needs no allocation. `.await` returns the
/// result.
///
/// Traits on the data path return this type instead of a boxed future (an in-memory file system, a call
/// answered from a table). So they are object safe, and allocate only when they wait. It is not a future
/// itself, so that it has no state for a result that was taken.
pub enum MaybeReady<'a, T> {
    /// The result is available.
    Ready(T),
    /// The result will be available later.
    Pending(BoxFuture<'a, T>),
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
        }
    }
}

impl<'a, T> IntoFuture for MaybeReady<'a, T> {
    type Output = T;
    type IntoFuture = Either<Ready<T>, BoxFuture<'a, T>>;

    fn into_future(self) -> Self::IntoFuture {
        match self {
            Self::Ready(v) => Either::Left(ready(v)),
            Self::Pending(f) => Either::Right(f),
        }
    }
}
