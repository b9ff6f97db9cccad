//! What of this machine matters to a client or a server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_rdma_verbs as verbs;
use rustix::process::{Resource, getrlimit};

use super::Finding;

/// A server of the default limits has so many connections, and files beside them.
const ENOUGH_FILES: u64 = 4096;
/// Registered memory that any use of an RDMA device needs.
const ENOUGH_LOCKED: u64 = 1 << 30;
/// 2026-01-01, when this was written: no right clock is before it.
const WRITTEN: Duration = Duration::from_secs(1_767_225_600);

/// Everything that does not depend on a server.
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
            "nothing to do without an RDMA adapter; else `apt install rdma-core ibverbs-providers`, then \
             `millrace devices`",
        ),
        (Ok(_), _) => Finding::note(
            "providers",
            "iwarp (software) only: there is no RDMA device that can be used",
            "nothing to do without an RDMA adapter; else load its driver and see `millrace devices`",
        ),
    };
    vec![provider, files(getrlimit(Resource::Nofile).current), locked(usable > 0), clock(SystemTime::now())]
}

fn files(limit: Option<u64>) -> Finding {
    match limit {
        Some(n) if n < ENOUGH_FILES => Finding::note(
            "open files",
            format!("this process may open {n} files, which a server with many connections exceeds"),
            "`ulimit -n 65536`, or LimitNOFILE=65536 in the systemd unit",
        ),
        Some(n) => Finding::fine("open files", format!("up to {n}")),
        None => Finding::fine("open files", "without limit"),
    }
}

/// Registered memory is locked memory; only RDMA devices register.
fn locked(has_devices: bool) -> Finding {
    match getrlimit(Resource::Memlock).current {
        Some(n) if has_devices && n < ENOUGH_LOCKED => Finding::broken(
            "locked memory",
            format!("this process may lock {n} bytes, and RDMA devices need all memory for data locked"),
            "`ulimit -l unlimited` as root, `* - memlock unlimited` in /etc/security/limits.conf, or \
             LimitMEMLOCK=infinity in the systemd unit",
        ),
        Some(n) if !has_devices => {
            Finding::fine("locked memory", format!("up to {n} bytes; the iwarp provider locks none"))
        }
        Some(n) => Finding::fine("locked memory", format!("up to {n} bytes")),
        None => Finding::fine("locked memory", "without limit"),
    }
}

fn clock(now: SystemTime) -> Finding {
    match now.duration_since(UNIX_EPOCH) {
        Ok(since) if since >= WRITTEN => Finding::fine("clock", "the date is plausible"),
        _ => Finding::broken(
            "clock",
            "this machine's clock is before 2026: files would get times long ago",
            "`timedatectl set-ntp true`, or `date -s`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn limits_and_clocks_are_judged() {
        assert_eq!(files(Some(1024)).state, State::Note);
        assert_eq!(files(Some(65536)).state, State::Fine);
        assert_eq!(files(None).state, State::Fine);
        assert_eq!(clock(UNIX_EPOCH).state, State::Broken);
        assert_eq!(clock(UNIX_EPOCH + WRITTEN).state, State::Fine);
        assert!(machine().iter().all(|f| (f.state == State::Fine) == f.mend.is_none()));
    }
}
