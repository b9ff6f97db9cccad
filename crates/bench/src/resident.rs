//! Resident memory of processes.

use std::fs;

/// Resident memory of the process `pid` in bytes; `None` if it does not exist or may not be queried.
pub fn now(pid: u32) -> Option<u64> {
    of_status(pid, "VmRSS:")
}

/// Peak of the resident memory of the process `pid` so far, in bytes; `None` as for [`now`].
pub fn peak(pid: u32) -> Option<u64> {
    of_status(pid, "VmHWM:")
}

/// A size in `/proc/PID/status` (proc_pid_status(5)).
fn of_status(pid: u32, key: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_grows_with_touched_memory() {
        let own = std::process::id();
        let before = now(own).unwrap();
        let memory = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(now(own).unwrap() >= before + (32 << 20));
        drop(memory);
        assert!(peak(own).unwrap() >= before + (32 << 20));
        assert_eq!(now(u32::MAX), None);
    }
}
