//! A future that dropping does not cancel.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::{BoxFuture, RuntimeRef};

/// Runs a future to its end: when this is dropped before that, the runtime runs the rest as a task, whose output is
/// dropped. A future that was never polled is dropped unrun, as others are.
///
/// For calls whose effect on a peer must be known before something else may happen, such as a WRITE that a later WRITE
/// to the same range must follow.
pub struct Uncancelled<T: Send + 'static> {
    rt: RuntimeRef,
    name: &'static str,
    /// `None` when it has ended.
    future: Option<BoxFuture<'static, T>>,
    begun: bool,
}

impl<T: Send + 'static> Uncancelled<T> {
    /// Wraps `future`; `name` is the task's, should there be one.
    pub fn new(
        rt: &RuntimeRef,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        Self { rt: rt.clone(), name, future: Some(Box::pin(future)), begun: false }
    }
}

impl<T: Send + 'static> Future for Uncancelled<T> {
    type Output = T;

    /// # Panics
    /// When polled again after it was ready, as `async` blocks do.
    #[allow(clippy::panic)] // The contract of Future, not input from a peer.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        this.begun = true;
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
        if let Some(future) = self.future.take().filter(|_| self.begun) {
            self.rt.spawn(self.name, Box::pin(async move { drop(future.await) }));
        }
    }
}
