//! A future that continues after it is dropped.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::{BoxFuture, RuntimeRef};

/// Runs a future to completion: if this value is dropped before, the runtime completes the future in a task
/// and drops its output. A future that was never polled is dropped without running.
///
/// For calls whose effect on the peer must be known before another operation may start, such as a WRITE
/// before a later WRITE to the same range.
pub struct Uncancelled<T: Send + 'static> {
    rt: RuntimeRef,
    name: &'static str,
    /// `None` after completion.
    future: Option<BoxFuture<'static, T>>,
    was_polled: bool,
}

impl<T: Send + 'static> Uncancelled<T> {
    /// Wraps `future`; `name` is that of the task, if one is spawned.
    pub fn new(
        rt: &RuntimeRef,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        Self { rt: rt.clone(), name, future: Some(Box::pin(future)), was_polled: false }
    }
}

impl<T: Send + 'static> Future for Uncancelled<T> {
    type Output = T;

    /// # Panics
    /// If polled again after completion, as for `async` blocks.
    #[allow(clippy::panic)] // The contract of Future, not input from a peer.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        this.was_polled = true;
        let Some(future) = &mut this.future else { panic!("Uncancelled polled after it was ready") };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            this.future = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Uncancelled<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take().filter(|_| self.was_polled) {
            self.rt.spawn(self.name, Box::pin(async move { drop(future.await) }));
        }
    }
}
