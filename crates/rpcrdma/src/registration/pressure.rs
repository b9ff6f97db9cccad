//! When registered memory that is kept between calls has to be let go: beyond a limit, or when the machine runs short
//! of memory, as the kernel tells it (Linux: Documentation/accounting/psi.rst).

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use millrace_runtime::{Instant, RuntimeRef};
use parking_lot::Mutex;

use super::Settings;

/// One operation in so many asks whether memory is short.
const ASK_EVERY: u64 = 64;

/// How much may be kept: seven eighths of the limit are the high mark, from which it is brought down to the low mark,
/// half of the limit.
pub(super) struct Marks {
    limit: usize,
    pressure: Pressure,
    operations: AtomicU64,
}

impl Marks {
    pub(super) fn new(settings: &Settings, rt: RuntimeRef) -> Self {
        let pressure = Pressure::new(settings.pressure.clone(), rt);
        Self { limit: settings.cache_limit, pressure, operations: AtomicU64::new(0) }
    }

    /// Whether so many bytes may be kept.
    pub(super) const fn allow(&self, kept: usize) -> bool {
        kept <= self.limit
    }

    /// An operation is done, and so many bytes are kept. To how many they have to be brought down, if they have.
    pub(super) fn excess(&self, kept: usize) -> Option<usize> {
        let ask = self.operations.fetch_add(1, Ordering::Relaxed).is_multiple_of(ASK_EVERY);
        if ask && self.pressure.is_short() {
            Some(0)
        } else {
            (kept > self.limit - self.limit / 8).then_some(self.limit / 2)
        }
    }
}

/// Percent of the last ten seconds in which some process waited for memory, from which on it is short.
const SHORT: f64 = 10.0;
/// How long an answer is good for.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// Looks at the kernel's word once a second at most.
struct Pressure {
    path: PathBuf,
    rt: RuntimeRef,
    last: Mutex<Option<(Instant, bool)>>,
}

impl Pressure {
    fn new(path: PathBuf, rt: RuntimeRef) -> Self {
        Self { path, rt, last: Mutex::new(None) }
    }

    /// Whether memory is short; never where the kernel does not say, and never on a simulated machine.
    fn is_short(&self) -> bool {
        if self.rt.is_virtual() {
            return false;
        }
        let (now, mut last) = (self.rt.now(), self.last.lock());
        if let Some((at, short)) = *last
            && now < at + GOOD_FOR
        {
            return short;
        }
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let short = waiting(&text).is_some_and(|percent| percent >= SHORT);
        *last = Some((now, short));
        short
    }
}

/// `avg10` of the line `some`.
fn waiting(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|l| l.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use millrace_runtime::{tokio_rt::TokioRuntime, virtual_time::VirtualTime};

    use super::*;

    #[test]
    fn the_machine_that_simulates_is_not_the_one_that_is_simulated() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "some avg10=99.00 avg60=0.00 avg300=0.00 total=1\n").unwrap();
        let is_short = |rt| Pressure::new(file.path().into(), rt).is_short();
        let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(is_short(tokio.block_on(async { TokioRuntime::current() })));
        assert!(!is_short(VirtualTime::new(1).runtime()));
    }

    #[test]
    fn the_share_of_the_last_ten_seconds_is_found() {
        let text = "some avg10=12.34 avg60=0.10 avg300=0.00 total=5\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(waiting(text), Some(12.34));
        for none in ["", "full avg10=3.0", "some avg60=1.0", "some avg10=x"] {
            assert_eq!(waiting(none), None, "{none:?}");
        }
    }
}
