//! Cancels requests of killed processes, and waiting locks of interrupted ones.
//!
//! A process that waits for a FUSE reply cannot be killed until the reply arrives. The kernel sends FUSE_INTERRUPT when
//! a signal arrives, whether it is fatal or not, and no more than once for a request. A request whose caller has got a
//! signal that is not fatal therefore polls the state of the caller (`caller.rs`).

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_runtime::RuntimeRef;
use tokio::sync::Notify;

use crate::{caller::is_killed, channel::Interruption};

/// Ticks, of which a file system makes two a second, between checks of the caller.
const TICKS_PER_CHECK: u32 = 2;

/// What ends a request.
#[derive(Debug, Clone)]
pub enum End {
    /// A signal that kills the caller.
    Kill,
    /// Any signal that the caller does not block; only one that kills it, once `unless` is set.
    Signal {
        /// Set once only a signal that kills the caller counts.
        unless: Arc<AtomicBool>,
    },
}

impl End {
    fn is_any_signal(&self) -> bool {
        matches!(self, Self::Signal { unless } if !unless.load(Ordering::Relaxed))
    }
}

/// Returns the result of `op`, or `None` (and drops `op`) if `end` happens to the waiting thread.
pub async fn cancel_at<T>(
    end: End,
    (rt, ticks): (&RuntimeRef, &Notify),
    (tid, interruption): (u32, Interruption),
    op: impl Future<Output = T>,
) -> Option<T> {
    let ends = async {
        interruption.await;
        while !end.is_any_signal() && !is_killed(rt, tid).await {
            for _ in 0..TICKS_PER_CHECK {
                ticks.notified().await; // A timer that requests share.
            }
        }
    };
    tokio::select! {
        biased;
        out = op => Some(out),
        () = ends => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, process::Command, time::Duration};

    use futures::FutureExt;
    use millrace_runtime::tokio_rt::TokioRuntime;

    use super::*;
    use crate::channel::Interrupts;

    #[tokio::test]
    async fn returns_the_result_of_the_operation() {
        let (rt, ticks) = (TokioRuntime::current(), Notify::new());
        let interrupts = Arc::new(Interrupts::default());
        interrupts.interrupt(2);
        let caller = (std::process::id(), interrupts.interruption(2));
        let signal = End::Signal { unless: Arc::default() };
        assert_eq!(cancel_at(signal, (&rt, &ticks), caller, async { 7 }).await, Some(7));
    }

    #[tokio::test]
    async fn a_signal_ends_only_what_it_may() {
        let (rt, ticks) = (TokioRuntime::current(), Notify::new());
        let signal = |is_set| End::Signal { unless: Arc::new(AtomicBool::new(is_set)) };
        for (end, ends) in [(signal(false), true), (signal(true), false), (End::Kill, false)] {
            let interrupts = Arc::new(Interrupts::default());
            let caller = (std::process::id(), interrupts.interruption(2));
            let mut waiting = Box::pin(cancel_at(end, (&rt, &ticks), caller, pending::<()>()));
            assert!((&mut waiting).now_or_never().is_none());
            interrupts.interrupt(2);
            assert_eq!((&mut waiting).now_or_never(), ends.then_some(None));
        }
    }

    #[tokio::test]
    async fn cancels_when_the_caller_exits_after_a_signal() {
        let mut caller = Command::new("sleep").arg("60").spawn().unwrap();
        let (rt, ticks) = (TokioRuntime::current(), Arc::new(Notify::new()));
        let interrupts = Arc::new(Interrupts::default());
        let waiter = (caller.id(), interrupts.interruption(2));
        let (rt_of_task, ticks_of_task) = (rt.clone(), Arc::clone(&ticks));
        let waiting = tokio::spawn(async move {
            cancel_at(End::Kill, (&rt_of_task, &ticks_of_task), waiter, pending::<()>()).await
        });
        interrupts.interrupt(2);
        tokio::task::yield_now().await;
        // Not reaped: like a dying process, a zombie has no memory.
        caller.kill().unwrap();
        while !waiting.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            ticks.notify_waiters();
        }
        assert_eq!(waiting.await.unwrap(), None);
        caller.wait().unwrap();
    }
}
