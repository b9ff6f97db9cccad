//! Processors that do not halt while a benchmark measures.
//!
//! An idle processor halts, and on virtual machines waking it costs tens of microseconds of latency and of accounted
//! processor time, many times the cost of a small call. A request for a wake-up latency of 0, through the kernel's PM QoS
//! (`Documentation/power/pm_qos_interface.rst`), keeps all processors of the machine running. It is for the machine, so
//! one holder serves all processes of a benchmark. Only the governors of cpuidle regard it: a kernel without a cpuidle
//! driver halts in any case (`default_idle_call`), as many virtual machines do.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::BenchError;

/// The interface for requests of processes. Root may write it by default.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// The name of the cpuidle driver, or `none`.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// Number of [`NoHalt`] values of this process.
static HOLDERS: AtomicUsize = AtomicUsize::new(0);

/// Keeps processors from halting until it is dropped.
pub struct NoHalt {
    // The kernel ends the request when the file is closed.
    _request: File,
}

impl NoHalt {
    /// Starts to keep processors from halting.
    ///
    /// # Errors
    /// The device does not exist, this process may not write it, or the kernel has no cpuidle driver.
    pub fn hold() -> Result<Self, BenchError> {
        let io = || BenchError::io("keep processors from halting through /dev/cpu_dma_latency");
        if fs::read_to_string(DRIVER).is_ok_and(|driver| has_no_effect(&driver)) {
            return Err(io()(io::Error::other("the kernel has no cpuidle driver, and ignores it")));
        }
        let mut request = OpenOptions::new().write(true).open(DEVICE).map_err(io())?;
        let microseconds = 0_i32;
        request.write_all(&microseconds.to_ne_bytes()).map_err(io())?;
        HOLDERS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { _request: request })
    }
}

impl Drop for NoHalt {
    fn drop(&mut self) {
        HOLDERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the kernel ignores requests for a latency, by the content of [`DRIVER`].
fn has_no_effect(driver: &str) -> bool {
    driver.trim() == "none"
}

/// Whether this process keeps processors from halting.
pub fn held() -> bool {
    HOLDERS.load(Ordering::Relaxed) > 0
}

/// The state as a sentence for the header of a table.
pub fn condition() -> &'static str {
    match held() {
        true => "Processors do not halt (/dev/cpu_dma_latency is held at 0).",
        false => "Idle processors halt: latencies and CPU times contain wake-ups.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_cpuidle_driver_is_an_error() {
        assert!(has_no_effect("none\n"));
        assert!(!has_no_effect("intel_idle\n"));
        if fs::read_to_string(DRIVER).is_ok_and(|driver| has_no_effect(&driver)) {
            assert!(NoHalt::hold().is_err());
        }
    }

    #[test]
    fn processors_halt_again_after_the_last_holder() {
        assert!(!held());
        // Without permission there is no holder, and nothing changes.
        let first = NoHalt::hold();
        let second = NoHalt::hold();
        assert_eq!(held(), first.is_ok());
        drop(first);
        assert_eq!(held(), second.is_ok());
        drop(second);
        assert!(!held());
    }
}
