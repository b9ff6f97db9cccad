//! Checks of this host: providers, resource limits, clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_rdma_verbs as verbs;
use rustix::process::{Resource, getrlimit};

use super::Finding;

/// Open files that a server with the default limits needs for connections and exported files.
const ENOUGH_FILES: u64 = 4096;
/// Minimum limit of locked memory, in bytes, for use of an RDMA device.
const ENOUGH_LOCKED: u64 = 1 << 30;
/// 2026-01-01 in seconds since the epoch: a clock before this date is wrong.
const EARLIEST_DATE: Duration = Duration::from_secs(1_767_225_600);

/// Runs all checks that need no server.
pub(crate) fn machine() -> Vec<Finding> {
    let devices = verbs::devices();
    let usable = devices.iter().flatten().filter(|d| d.details.is_ok()).count();
    let provider = match (&devices, usable) {
        (_, 1..) => {
            Finding::fine("providers", format!("iwarp (software), and verbs with {usable} RDMA device(s)"))
        }
        (Err(why), _) => Finding::note(
            "providers",
            format!("iwarp (software) only; no verbs: {why}"),
            "none needed without an RDMA adapter; with one, `apt install rdma-core ibverbs-providers`, then \
             `millrace devices`",
        ),
        (Ok(_), _) => Finding::note(
            "providers",
            "iwarp (software) only: there is no usable RDMA device",
            "none needed without an RDMA adapter; with one, load its driver and see `millrace devices`",
        ),
    };
    vec![provider, files(getrlimit(Resource::Nofile).current), locked(usable > 0), clock(SystemTime::now())]
}

fn files(limit: Option<u64>) -> Finding {
    match limit {
        Some(n) if n < ENOUGH_FILES => Finding::note(
            "open files",
            format!("the limit is {n} files, which is too low for a server with many connections"),
            "`ulimit -n 65536`, or LimitNOFILE=65536 in the systemd unit",
        ),
        Some(n) => Finding::fine("open files", format!("the limit is {n}")),
        None => Finding::fine("open files", "unlimited"),
    }
}

/// Checks the limit of locked memory, which applies to memory registered with RDMA devices.
fn locked(has_devices: bool) -> Finding {
    match getrlimit(Resource::Memlock).current {
        Some(n) if has_devices && n < ENOUGH_LOCKED => Finding::broken(
            "locked memory",
            format!("the limit is {n} bytes, but RDMA requires locked memory for all network buffers"),
            "`ulimit -l unlimited` as root, `* - memlock unlimited` in /etc/security/limits.conf, or \
             LimitMEMLOCK=infinity in the systemd unit",
        ),
        Some(n) if !has_devices => Finding::fine(
            "locked memory",
            format!("the limit is {n} bytes; the iwarp provider locks no memory"),
        ),
        Some(n) => Finding::fine("locked memory", format!("the limit is {n} bytes")),
        None => Finding::fine("locked memory", "unlimited"),
    }
}

fn clock(now: SystemTime) -> Finding {
    match now.duration_since(UNIX_EPOCH) {
        Ok(since) if since >= EARLIEST_DATE => Finding::fine("clock", "the date is plausible"),
        _ => Finding::broken(
            "clock",
            "the clock of this host is before 2026, so new files would get wrong times",
            "`timedatectl set-ntp true`, or `date -s`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn findings_depend_on_limits_and_clock() {
        assert_eq!(files(Some(1024)).state, State::Note);
        assert_eq!(files(Some(65536)).state, State::Fine);
        assert_eq!(files(None).state, State::Fine);
        assert_eq!(clock(UNIX_EPOCH).state, State::Broken);
        assert_eq!(clock(UNIX_EPOCH + EARLIEST_DATE).state, State::Fine);
        assert!(machine().iter().all(|f| (f.state == State::Fine) == f.remedy.is_none()));
    }
}
