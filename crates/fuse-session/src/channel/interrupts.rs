//! Interrupted requests: FUSE_INTERRUPT.
//!
//! The kernel sends it once for a request, when a signal arrives for the waiting caller. A fatal signal that follows an
//! ignored one causes no further message.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

/// Interrupts that are kept for requests which do not wait yet. Those of requests that have completed are among them.
const MAX_EARLY: usize = 1024;

/// The requests of a session that wait for their completion or an interrupt.
#[derive(Default)]
pub(crate) struct Interrupts(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// Requests by number; without a waker after the interrupt.
    waiting: HashMap<u64, Option<Waker>>,
    /// Numbers of requests that another thread has read and that do not wait yet, oldest first.
    early: VecDeque<u64>,
}

impl Interrupts {
    /// Interrupts the request with the number `unique`.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut table = self.0.lock();
        let waker = match table.waiting.get_mut(&unique) {
            Some(waker) => waker.take(),
            None => {
                if table.early.len() >= MAX_EARLY {
                    table.early.pop_front();
                }
                table.early.push_back(unique);
                None
            }
        };
        drop(table);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A future that completes when the request with the number `unique` is interrupted. There may be one for a request.
    pub(crate) fn interruption(self: &Arc<Self>, unique: u64) -> Interruption {
        Interruption { interrupts: Arc::clone(self), unique, is_waiting: false }
    }
}

/// Completes when a request is interrupted.
pub struct Interruption {
    interrupts: Arc<Interrupts>,
    unique: u64,
    is_waiting: bool,
}

impl Future for Interruption {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let table = &mut *this.interrupts.0.lock();
        if !this.is_waiting {
            this.is_waiting = true;
            let early = table.early.iter().position(|unique| *unique == this.unique);
            let waker = match early {
                Some(at) => table.early.remove(at).and(None),
                None => Some(cx.waker().clone()),
            };
            table.waiting.insert(this.unique, waker);
        }
        match table.waiting.get_mut(&this.unique) {
            Some(Some(waker)) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        if self.is_waiting {
            self.interrupts.0.lock().waiting.remove(&self.unique);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn interrupts_reach_only_their_request() {
        let interrupts = Arc::new(Interrupts::default());
        let (mut one, mut other) = (interrupts.interruption(2), interrupts.interruption(4));
        assert!((&mut one).now_or_never().is_none() && (&mut other).now_or_never().is_none());
        interrupts.interrupt(2);
        assert!((&mut one).now_or_never().is_some() && (&mut other).now_or_never().is_none());
        drop((one, other));
        assert!(interrupts.0.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn an_interrupt_wakes_a_waiting_request() {
        let interrupts = Arc::new(Interrupts::default());
        let waiting = tokio::spawn(interrupts.interruption(2));
        while interrupts.0.lock().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        interrupts.interrupt(2);
        waiting.await.unwrap();
    }

    #[test]
    fn an_interrupt_may_precede_its_request() {
        let interrupts = Arc::new(Interrupts::default());
        interrupts.interrupt(2);
        let mut early = interrupts.interruption(2);
        assert!((&mut early).now_or_never().is_some() && (&mut early).now_or_never().is_some());
        drop(early);
        assert!(interrupts.interruption(2).now_or_never().is_none(), "an interrupt is used once");
    }

    #[test]
    fn unused_interrupts_are_bounded() {
        let interrupts = Arc::new(Interrupts::default());
        for unique in 0..3 * MAX_EARLY as u64 {
            interrupts.interrupt(unique);
        }
        assert_eq!(interrupts.0.lock().early.len(), MAX_EARLY);
        assert!(interrupts.interruption(3 * MAX_EARLY as u64 - 1).now_or_never().is_some());
    }
}
