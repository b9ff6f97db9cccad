//! The state of threads that wait for replies, from `/proc`.
//!
//! Reading `/proc/PID/stat` was observed to block on the process, so `status` is used. Reading may block in any
//! case, which the executor's threads must not.

use std::fs;

use millrace_runtime::RuntimeRef;
use tokio::sync::oneshot;

/// Bit of SIGKILL in the masks of `/proc/PID/status`. Any fatal signal without a core dump is converted to
/// SIGKILL.
const SIGKILL: u64 = 1 << 8;

/// Whether a thread is being killed. `false` if it does not exist.
pub async fn is_killed(rt: &RuntimeRef, tid: u32) -> bool {
    check(rt, tid, shows_kill).await
}

/// Whether a thread is a kernel thread, such as one of nfsd. `false` if it does not exist.
pub async fn is_kernel_thread(rt: &RuntimeRef, tid: u32) -> bool {
    // Kernel threads have no memory. Neither have exiting processes, which open no files.
    check(rt, tid, |status| !has(status, "VmSize:")).await
}

/// Applies `is_so` to the status of a thread. `false` if the thread does not exist.
async fn check(rt: &RuntimeRef, tid: u32, is_so: fn(&str) -> bool) -> bool {
    blocking(rt, move || fs::read_to_string(format!("/proc/{tid}/status")).is_ok_and(|status| is_so(&status)))
        .await
}

/// The result of `read`, which may block; a default if the executor shuts down.
pub async fn blocking<T: Default + Send + 'static>(
    rt: &RuntimeRef,
    read: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (tx, rx) = oneshot::channel();
    rt.spawn_blocking(Box::new(move || {
        let _ = tx.send(read());
    }));
    rx.await.unwrap_or_default()
}

fn has(status: &str, key: &str) -> bool {
    status.lines().any(|line| line.starts_with(key))
}

/// The value of a line.
fn value<'s>(status: &'s str, key: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// A mask of signals.
fn mask(status: &str, key: &str) -> u64 {
    value(status, key).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
}

fn shows_kill(status: &str) -> bool {
    let pending = |key: &str| mask(status, key);
    // An exiting process releases its memory before it closes its files; kernel threads have none.
    let of_kernel =
        has(status, "Kthread:\t1") || status.lines().any(|l| matches!(l, "PPid:\t2" | "PPid:\t0"));
    (pending("SigPnd:") | pending("ShdPnd:")) & SIGKILL != 0 || (!of_kernel && !has(status, "VmSize:"))
}

#[cfg(test)]
mod tests {
    use millrace_runtime::tokio_rt::TokioRuntime;

    use super::*;

    #[tokio::test]
    async fn live_and_missing_threads_are_neither_killed_nor_of_the_kernel() {
        let rt = TokioRuntime::current();
        for tid in [std::process::id(), u32::MAX] {
            assert!(!is_killed(&rt, tid).await && !is_kernel_thread(&rt, tid).await);
        }
    }

    #[test]
    fn kernel_threads_are_not_killed() {
        let nfsd = "Name:\tnfsd\nPPid:\t2\nKthread:\t1\nThreads:\t1\nSigPnd:\t0000000000000000\n";
        assert!(!shows_kill(nfsd) && !has(nfsd, "VmSize:"));
        let killed = "Name:\tcat\nPPid:\t7\nKthread:\t0\nVmSize:\t 1 kB\nSigPnd:\t0000000000000100\n";
        assert!(shows_kill(killed) && has(killed, "VmSize:"));
    }
}
