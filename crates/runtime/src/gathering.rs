//! Letting a connection's task gather what many callers leave for it.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

/// Polls `poll` until it is ready, as [`poll_fn`] does; but whenever `has_work` says that callers have left something,
/// the tasks that are ready already go first, once. What they leave too is then done together.
///
/// Tokio's executor of several threads runs whom a task wakes before the tasks that wait: without this a connection
/// would send each call by itself however many callers have one.
pub async fn poll_gathering<T>(
    has_work: impl Fn() -> bool,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> T {
    let mut waited = false;
    poll_fn(|cx| {
        waited = !waited && has_work();
        if waited {
            // Woken while it is polled, a task goes to the end of the queue.
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

    /// What callers leave, and the connection's waker.
    type Left = (Vec<u32>, Option<Waker>);

    #[test]
    fn what_ready_tasks_leave_is_done_together() {
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let left: Arc<Mutex<Left>> = Arc::default();
        let (say, said) = mpsc::channel();
        let (connection, have) = (Arc::clone(&left), Arc::clone(&left));
        executor.spawn(poll_gathering(
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
