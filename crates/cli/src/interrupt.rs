//! Signals that interrupt a command, which then removes its temporary files.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for SIGINT, SIGTERM, SIGHUP or SIGQUIT, and prints `stopping; ` and `consequence`. A second signal ends the process.
/// SIGHUP and SIGQUIT have no effect if this process was started with them ignored, as by nohup(1).
pub(crate) async fn interrupted(consequence: &str) {
    let always = [SignalKind::interrupt(), SignalKind::terminate()];
    let wanted = [SignalKind::hangup(), SignalKind::quit()].into_iter().filter(|kind| !is_ignored(*kind));
    let mut signals: Vec<_> = always.into_iter().chain(wanted).filter_map(|kind| signal(kind).ok()).collect();
    if signals.is_empty() {
        return std::future::pending().await;
    }
    any(&mut signals).await;
    eprintln!("millrace: stopping; {consequence} (a second signal exits immediately)");
    tokio::spawn(async move {
        any(&mut signals).await;
        std::process::exit(130)
    });
}

/// Whether this process ignores the signal (proc_pid_status(5)). A handler, once installed, hides that.
pub(crate) fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(kind.as_raw_value() - 1).is_ok_and(|bit| ignored >> bit & 1 == 1)
}

/// Waits for the first of the signals.
async fn any(signals: &mut [Signal]) {
    futures::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
}
