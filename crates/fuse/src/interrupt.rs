//! Cancels requests of killed processes.
//!
//! A process that waits for a FUSE reply cannot be killed until the reply arrives. The kernel sends
//! FUSE_INTERRUPT, but fuser 0.18 answers it with ENOSYS without forwarding it. A request that takes long
//! therefore polls the state of its caller in `/proc`. (Reading `/proc/PID/stat` was observed to block on the
//! process, so `status` is used.)

use std::{fs, future::Future};

use millrace_runtime::RuntimeRef;
use tokio::sync::{Notify, oneshot};

/// Ticks of `Fs::ticks` (two a second) between checks of the caller.
const TICKS_PER_CHECK: u32 = 2;
/// Bit of SIGKILL in the masks of `/proc/PID/status`. Any fatal signal without a core dump is converted to
/// SIGKILL.
const SIGKILL: u64 = 1 << 8;
/// Returns the result of `op`, or `None` (and drops `op`) if the waiting thread `tid` is killed. Thread 0 is
/// the kernel.
pub(crate) async fn cancel_if_killed<T>(
    (rt, ticks): (&RuntimeRef, &Notify),
    tid: u32,
    op: impl Future<Output = T>,
) -> Option<T> {
    if tid == 0 {
        return Some(op.await);
    }
    let dies = async {
        loop {
            // A shared timer: most requests complete before a separate one would fire.
            for _ in 0..TICKS_PER_CHECK {
                ticks.notified().await;
            }
            // Reading /proc may block, which the executor's threads must not.
            let (tx, rx) = oneshot::channel();
            rt.spawn_blocking(Box::new(move || {
                let _ = tx.send(is_killed(tid));
            }));
            if rx.await.unwrap_or(false) {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        out = op => Some(out),
        () = dies => None,
    }
}

fn is_killed(tid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{tid}/status")) else { return false };
    let pending = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key));
        line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok()).unwrap_or(0)
    };
    // An exiting process releases its memory before it closes its files; kernel threads have none.
    let has = |key: &str| status.lines().any(|l| l.starts_with(key));
    let of_kernel = has("Kthread:\t1") || status.lines().any(|l| matches!(l, "PPid:\t2" | "PPid:\t0"));
    (pending("SigPnd:") | pending("ShdPnd:")) & SIGKILL != 0 || (!of_kernel && !has("VmSize:"))
}

#[cfg(test)]
mod tests {
    use std::{process::Command, time::Duration};

    use millrace_runtime::tokio_rt::TokioRuntime;

    use super::*;

    #[test]
    fn live_and_missing_threads_are_not_killed() {
        assert!(!is_killed(std::process::id()));
        assert!(!is_killed(u32::MAX));
    }

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
