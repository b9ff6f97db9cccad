//! Coalescing of work that several callers submit to a connection's task.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

/// Polls `poll` until it is ready, like [`poll_fn`], but yields once whenever `has_work` reports submitted
/// work, so that tasks that are ready can submit more work for the same poll.
///
/// Tokio's multi-threaded executor runs a woken task before tasks that wait in the queue. Without yielding, a
/// connection's task would send each call separately even if several callers have one.
pub async fn poll_coalescing<T>(
    has_work: impl Fn() -> bool,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> T {
    let mut waited = false;
    poll_fn(|cx| {
        waited = !waited && has_work();
        if waited {
            // A task that is woken while it is polled goes to the end of the queue.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        poll(cx)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex, mpsc},
        task::Waker,
        time::Duration,
    };

    use super::*;

    /// Work submitted by callers, and the waker of the connection's task.
    type Submitted = (Vec<u32>, Option<Waker>);

    #[test]
    fn work_of_ready_tasks_is_coalesced() {
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let left: Arc<Mutex<Submitted>> = Arc::default();
        let (say, said) = mpsc::channel();
        let (connection, have) = (Arc::clone(&left), Arc::clone(&left));
        executor.spawn(poll_coalescing(
            move || !have.lock().unwrap().0.is_empty(),
            move |cx| {
                let mut left = connection.lock().unwrap();
                left.1 = Some(cx.waker().clone());
                say.send(std::mem::take(&mut left.0)).unwrap();
                Poll::<()>::Pending
            },
        ));
        let limit = Duration::from_secs(10);
        assert_eq!(said.recv_timeout(limit).unwrap(), []);
        executor.spawn(async move {
            for n in 0..4 {
                let left = Arc::clone(&left);
                tokio::spawn(async move {
                    let mut left = left.lock().unwrap();
                    left.0.push(n);
                    left.1.take().inspect(Waker::wake_by_ref);
                });
            }
        });
        let mut together = said.recv_timeout(limit).unwrap();
        together.sort_unstable();
        assert_eq!(together, [0, 1, 2, 3]);
    }
}
