//! Cancels requests of killed processes, and waiting locks of interrupted ones.
//!
//! A process that waits for a FUSE reply cannot be killed until the reply arrives. The kernel sends
//! FUSE_INTERRUPT, but fuser 0.18 answers it with ENOSYS without forwarding it. A request that takes long
//! therefore polls the state of its caller (`caller.rs`).

use std::future::Future;

use millrace_runtime::RuntimeRef;
use tokio::sync::Notify;

use crate::caller::{has_signal, is_killed};

/// Ticks of `Fs::ticks` (two a second) between checks of the caller.
const TICKS_PER_CHECK: u32 = 2;

/// What ends the request of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Kill,
    /// Any signal that the thread does not block.
    Signal,
}

/// Returns the result of `op`, or `None` (and drops `op`) if the waiting thread `tid` is killed. Thread 0 is
/// the kernel.
pub(crate) async fn cancel_if_killed<T>(
    system: (&RuntimeRef, &Notify),
    tid: u32,
    op: impl Future<Output = T>,
) -> Option<T> {
    cancel(system, (tid, End::Kill), op).await
}

/// As [`cancel_if_killed`], also if a signal waits for the thread.
pub(crate) async fn cancel_if_interrupted<T>(
    system: (&RuntimeRef, &Notify),
    tid: u32,
    op: impl Future<Output = T>,
) -> Option<T> {
    cancel(system, (tid, End::Signal), op).await
}

async fn cancel<T>(
    (rt, ticks): (&RuntimeRef, &Notify),
    (tid, end): (u32, End),
    op: impl Future<Output = T>,
) -> Option<T> {
    if tid == 0 {
        return Some(op.await);
    }
    let ends = async {
        loop {
            // A shared timer: most requests complete before a separate one would fire.
            for _ in 0..TICKS_PER_CHECK {
                ticks.notified().await;
            }
            if is_killed(rt, tid).await || (end == End::Signal && has_signal(rt, tid).await) {
                return;
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
    use std::{process::Command, time::Duration};

    use millrace_runtime::tokio_rt::TokioRuntime;

    use super::*;

    #[tokio::test]
    async fn returns_the_result_of_the_operation() {
        let (rt, ticks) = (TokioRuntime::current(), Notify::new());
        assert_eq!(cancel_if_killed((&rt, &ticks), std::process::id(), async { 7 }).await, Some(7));
        assert_eq!(cancel_if_killed((&rt, &ticks), 0, async { 8 }).await, Some(8));
    }

    #[tokio::test]
    async fn cancels_when_the_caller_exits() {
        // Not reaped: like a dying process, a zombie has no memory.
        let mut ended = Command::new("true").spawn().unwrap();
        let (rt, ticks) = (TokioRuntime::current(), Notify::new());
        let completion = cancel_if_killed((&rt, &ticks), ended.id(), std::future::pending::<()>());
        let notifies = async {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                ticks.notify_waiters();
            }
        };
        tokio::select! {
            out = completion => assert_eq!(out, None),
            () = notifies => {}
        }
        ended.wait().unwrap();
    }
}
