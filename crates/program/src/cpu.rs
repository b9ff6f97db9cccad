//! Processor time of processes: user and system time of all threads.

#![allow(unsafe_code)] // Reads the clock of another process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time that this process has used since its start.
pub fn own() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

fn duration(t: rustix::time::Timespec) -> Duration {
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Processor time that the process `pid` has used since its start; `None` if it does not exist or may not be
/// queried.
pub fn of(pid: u32) -> Option<Duration> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut clock: libc::clockid_t = 0;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls write one value through a pointer to a valid local variable of the right type.
    unsafe {
        if libc::clock_getcpuclockid(pid, &mut clock) != 0 || libc::clock_gettime(clock, &mut now) != 0 {
            return None;
        }
    }
    Some(Duration::new(u64::try_from(now.tv_sec).ok()?, u32::try_from(now.tv_nsec).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_and_foreign_measurement_of_a_process_agree() {
        let mut x = 1_u64;
        for i in 0..5_000_000_u64 {
            x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i));
        }
        let (inside, outside) = (own(), of(std::process::id()).unwrap());
        assert!(inside > Duration::ZERO);
        assert!(outside >= inside);
    }

    #[test]
    fn a_missing_process_has_no_time() {
        assert_eq!(of(u32::MAX), None);
    }
}
