//! Yielding to other tasks.

use std::{future::poll_fn, task::Poll};

/// Lets the other tasks of the executor run before the caller continues.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        // A task that is woken while it is polled goes to the end of the queue.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
