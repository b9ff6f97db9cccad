//! Release of cached registrations: at a limit, and under memory pressure as the kernel reports it (Linux:
//! Documentation/accounting/psi.rst).

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use millrace_runtime::{Instant, RuntimeRef, sync::Mutex};

use super::Settings;

/// Interval, in operations, of the memory pressure check.
const CHECK_INTERVAL: u64 = 64;

/// Watermarks of cached bytes: release starts above seven eighths of the limit and stops at half of the
/// limit.
pub(super) struct Watermarks {
    limit: usize,
    pressure: Pressure,
    operations: AtomicU64,
}

impl Watermarks {
    pub(super) fn new(settings: &Settings, rt: RuntimeRef) -> Self {
        let pressure = Pressure::new(settings.pressure.clone(), rt);
        Self { limit: settings.cache_limit, pressure, operations: AtomicU64::new(0) }
    }

    /// Whether `cached` bytes are within the limit.
    pub(super) const fn allows(&self, cached: usize) -> bool {
        cached <= self.limit
    }

    /// Counts an operation. Returns the number of cached bytes to reduce to, if a release is due.
    pub(super) fn excess(&self, cached: usize) -> Option<usize> {
        let check = self.operations.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECK_INTERVAL);
        if check && self.pressure.is_short() {
            Some(0)
        } else {
            (cached > self.limit - self.limit / 8).then_some(self.limit / 2)
        }
    }
}

/// Percentage of the last ten seconds with some task stalled on memory, from which memory counts as short.
const SHORTAGE_PERCENT: f64 = 10.0;
/// Minimum interval between two reads of the kernel's report.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Reads the kernel's memory pressure report at most once a second.
struct Pressure {
    path: PathBuf,
    rt: RuntimeRef,
    last: Mutex<Option<(Instant, bool)>>,
}

impl Pressure {
    fn new(path: PathBuf, rt: RuntimeRef) -> Self {
        Self { path, rt, last: Mutex::new(None) }
    }

    /// Whether memory is short. `false` if the kernel has no report, and in virtual time.
    fn is_short(&self) -> bool {
        if self.rt.is_virtual() {
            return false;
        }
        let (now, mut last) = (self.rt.now(), self.last.lock());
        if let Some((at, short)) = *last
            && now < at + REFRESH_INTERVAL
        {
            return short;
        }
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let short = parse_pressure(&text).is_some_and(|percent| percent >= SHORTAGE_PERCENT);
        *last = Some((now, short));
        short
    }
}

/// Parses `avg10` of the line `some`.
fn parse_pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|l| l.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use millrace_runtime::{tokio_rt::TokioRuntime, virtual_time::VirtualTime};

    use super::*;

    #[test]
    fn memory_pressure_of_the_host_is_ignored_in_virtual_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "some avg10=99.00 avg60=0.00 avg300=0.00 total=1\n").unwrap();
        let is_short = |rt| Pressure::new(file.path().into(), rt).is_short();
        let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(is_short(tokio.block_on(async { TokioRuntime::current() })));
        assert!(!is_short(VirtualTime::new(1).runtime()));
    }

    #[test]
    fn the_average_of_ten_seconds_is_parsed() {
        let text = "some avg10=12.34 avg60=0.10 avg300=0.00 total=5\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(parse_pressure(text), Some(12.34));
        for none in ["", "full avg10=3.0", "some avg60=1.0", "some avg10=x"] {
            assert_eq!(parse_pressure(none), None, "{none:?}");
        }
    }
}
