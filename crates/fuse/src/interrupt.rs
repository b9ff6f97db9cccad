//! Letting go of callers that are to die.
//!
//! A process in a FUSE call cannot be killed while the call is with the file system, unless that answers. The kernel
//! would say so with FUSE_INTERRUPT, which fuser 0.18 answers itself with ENOSYS; so a call that takes long looks at its
//! caller's state in `/proc`. (Not in `/proc/PID/stat`: reading that was seen to wait for the process itself.)

use std::{fs, future::Future};

use millrace_runtime::RuntimeRef;
use tokio::sync::{Notify, oneshot};

/// A waiting call looks at its caller every second time that it is notified: once a second (`Fs::ticks`).
const LOOK: u32 = 2;
/// Bit of SIGKILL in the masks of `/proc/PID/status`. A signal that ends a process without a core dump becomes it.
const SIGKILL: u64 = 1 << 8;
/// The result of `op`, or `None` (then `op` is dropped) when the thread `tid`, which waits for it, is to die. Thread 0
/// is the kernel itself.
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
            // Not a timer of its own: most calls end before it would be due.
            for _ in 0..LOOK {
                ticks.notified().await;
            }
            // Elsewhere: looking may block, and the executor must not.
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
    // A process that ends has given its memory back before it closes its files; threads of the kernel have none.
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
    fn a_living_thread_is_not_dying_nor_is_one_that_is_not_there() {
        assert!(!is_killed(std::process::id()));
        assert!(!is_killed(u32::MAX));
    }

    #[tokio::test]
    async fn a_result_comes_through() {
        let (rt, ticks) = (TokioRuntime::current(), Notify::new());
        assert_eq!(cancel_if_killed((&rt, &ticks), std::process::id(), async { 7 }).await, Some(7));
        assert_eq!(cancel_if_killed((&rt, &ticks), 0, async { 8 }).await, Some(8));
    }

    #[tokio::test]
    async fn the_caller_is_looked_at_while_it_waits_and_is_let_go_when_it_dies() {
        // Not waited for: a process that has ended, as one that is to die, has no memory.
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
