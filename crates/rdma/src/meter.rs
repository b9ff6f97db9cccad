//! Statistics of exposed memory over time: the papers' security argument as a number.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use millrace_buffer::{SpanRef, Views};
use millrace_runtime::{Instant, RuntimeRef, sync::Mutex};

use crate::{
    Access, Domain, DomainRef, ExposeError, Exposure, ExposureId, LocalKey, LocalUse, Memory,
    RegistrationKind,
};

/// Sums the exposed regions and bytes of all domains that it [meters](Self::meter), and integrates the bytes
/// over time. Several connections may share a meter; they must then use the same runtime's clock.
#[derive(Default)]
pub struct ExposureMeter {
    rt: OnceLock<RuntimeRef>,
    state: Mutex<State>,
    /// The time of the current [`ExposureBatch`] in nanoseconds plus 1, or one of the constants below.
    stamp: AtomicU64,
}

/// No batch is open: each change reads the clock.
const NONE: u64 = 0;
/// A batch without changes so far.
const FRESH: u64 = u64::MAX;

fn stamp(now: Instant) -> u64 {
    now.as_nanos().saturating_add(1).min(FRESH - 1)
}

/// While a batch is open, all changes are recorded with the time of its first change. Reading the clock costs
/// as much as a software exposure, so a task that handles several calls per wake-up uses a batch.
#[must_use = "a batch ends when it is dropped"]
pub struct ExposureBatch<'a>(&'a ExposureMeter);

impl Drop for ExposureBatch<'_> {
    fn drop(&mut self) {
        self.0.stamp.store(NONE, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for ExposureMeter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[derive(Default, Clone, Copy)]
struct State {
    now: ExposureStats,
    since: Instant,
}

/// Statistics of an [`ExposureMeter`] at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExposureStats {
    /// Regions that peers can access.
    pub regions: u64,
    /// Bytes that peers can access.
    pub bytes: u64,
    /// Maximum of `regions`.
    pub peak_regions: u64,
    /// Maximum of `bytes`.
    pub peak_bytes: u64,
    /// Integral of `bytes` over time, in bytes times nanoseconds; see [`Self::byte_seconds`].
    pub byte_nanoseconds: u128,
}

impl ExposureStats {
    /// Integral of the exposed bytes over time, in bytes times seconds.
    pub fn byte_seconds(&self) -> f64 {
        self.byte_nanoseconds as f64 / 1e9
    }

    /// Sums the statistics of two disjoint sets of connections. The sum of the peaks is an upper bound of the
    /// common peak.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            regions: self.regions + other.regions,
            bytes: self.bytes + other.bytes,
            peak_regions: self.peak_regions + other.peak_regions,
            peak_bytes: self.peak_bytes + other.peak_bytes,
            byte_nanoseconds: self.byte_nanoseconds + other.byte_nanoseconds,
        }
    }
}

impl State {
    fn advance(&mut self, now: Instant) {
        let passed = now.duration_since(self.since).as_nanos();
        self.now.byte_nanoseconds += passed * u128::from(self.now.bytes);
        self.since = self.since.max(now); // The time of a batch may be earlier than `since`.
    }
}

impl ExposureMeter {
    /// Wraps `domain` so that this meter records its exposures.
    pub fn meter(self: &Arc<Self>, domain: DomainRef, rt: &RuntimeRef) -> DomainRef {
        self.rt.get_or_init(|| Arc::clone(rt));
        Arc::new(Metered {
            domain,
            meter: Arc::clone(self),
            added: Mutex::default(),
            records: AtomicBool::new(false),
        })
    }

    /// The statistics up to now.
    pub fn snapshot(&self) -> ExposureStats {
        let now = self.clock();
        let mut state = self.state.lock();
        state.advance(now);
        state.now
    }

    /// Begins a batch. At most one may be open; the end of one batch ends all.
    pub fn batch(&self) -> ExposureBatch<'_> {
        self.stamp.store(FRESH, Ordering::Relaxed);
        ExposureBatch(self)
    }

    /// Begins a batch whose changes are recorded with the time `now`.
    pub fn batch_at(&self, now: Instant) -> ExposureBatch<'_> {
        self.stamp.store(stamp(now), Ordering::Relaxed);
        ExposureBatch(self)
    }

    fn clock(&self) -> Instant {
        self.rt.get().map_or_else(Instant::default, |rt| rt.now())
    }

    /// The time at which a change is recorded.
    fn now(&self) -> Instant {
        match self.stamp.load(Ordering::Relaxed) {
            NONE => self.clock(),
            FRESH => {
                let now = self.clock();
                // Fails if the batch has ended meanwhile.
                let _ = self.stamp.compare_exchange(FRESH, stamp(now), Ordering::Relaxed, Ordering::Relaxed);
                now
            }
            stamp => Instant::from_nanos(stamp - 1),
        }
    }

    /// Records that the exposed regions and bytes of one domain have changed.
    fn replace(&self, before: (usize, usize), after: (usize, usize)) {
        let now = self.now();
        let mut state = self.state.lock();
        state.advance(now);
        let s = &mut state.now;
        s.regions = (s.regions + after.0 as u64).saturating_sub(before.0 as u64);
        s.bytes = (s.bytes + after.1 as u64).saturating_sub(before.1 as u64);
        s.peak_regions = s.peak_regions.max(s.regions);
        s.peak_bytes = s.peak_bytes.max(s.bytes);
    }
}

/// A domain with a meter. After each change through it, and at each call of [`Domain::exposed`], the meter gets the new
/// values. (A tag that the peer has invalidated counts until then.)
struct Metered {
    domain: DomainRef,
    meter: Arc<ExposureMeter>,
    /// Regions and bytes that are recorded for this domain.
    added: Mutex<(usize, usize)>,
    /// Whether `added` is, or may become, other than zero. A server that exposes nothing measures that with each message, and
    /// takes no lock for it.
    records: AtomicBool,
}

impl Metered {
    fn measure(&self) -> (usize, usize) {
        if self.domain.exposed() == (0, 0) && !self.records.load(Ordering::SeqCst) {
            return (0, 0);
        }
        let mut added = self.added.lock();
        // Before the domain is asked: a thread that finds `false` has seen the change that this one sees.
        self.records.store(true, Ordering::SeqCst);
        let now = self.domain.exposed();
        if *added != now {
            self.meter.replace(*added, now);
            *added = now;
        }
        self.records.store(now != (0, 0), Ordering::SeqCst);
        now
    }
}

/// A connection's exposures end with its domain.
impl Drop for Metered {
    fn drop(&mut self) {
        self.meter.replace(*self.added.get_mut(), (0, 0));
    }
}

impl Domain for Metered {
    fn expose(&self, by: RegistrationKind, memory: Memory, access: Access) -> Result<Exposure, ExposeError> {
        let exposure = self.domain.expose(by, memory, access)?;
        self.measure();
        Ok(exposure)
    }

    fn revoke(&self, id: ExposureId) -> Option<Memory> {
        let memory = self.domain.revoke(id);
        self.measure();
        memory
    }

    fn release(&self, id: ExposureId) -> Option<Memory> {
        let memory = self.domain.release(id);
        self.measure();
        memory
    }

    fn invalidate_released(&self) -> usize {
        let windows = self.domain.invalidate_released();
        self.measure();
        windows
    }

    fn is_valid(&self, id: ExposureId) -> bool {
        self.domain.is_valid(id)
    }

    fn exposed(&self) -> (usize, usize) {
        self.measure()
    }

    fn reserve_windows(&self, count: usize, largest: usize) -> usize {
        self.domain.reserve_windows(count, largest)
    }

    fn enable_global(&self) -> bool {
        let enabled = self.domain.enable_global();
        self.measure();
        enabled
    }

    fn registers_local(&self, by: RegistrationKind) -> bool {
        self.domain.registers_local(by)
    }

    fn register_local(&self, by: RegistrationKind, pieces: &[&[u8]], used: LocalUse) -> Option<LocalKey> {
        self.domain.register_local(by, pieces, used)
    }

    fn keep_local(&self, span: &SpanRef) -> Option<LocalKey> {
        self.domain.keep_local(span)
    }

    fn deregister_local(&self, key: LocalKey) {
        self.domain.deregister_local(key);
    }

    fn copy_out(&self, id: ExposureId, to: &mut [u8]) -> bool {
        self.domain.copy_out(id, to)
    }

    fn copy_in(&self, id: ExposureId, from: &Views) -> bool {
        self.domain.copy_in(id, from)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::Duration,
    };

    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_runtime::{BoxFuture, Runtime, Sleep};

    use super::*;
    use crate::{MemoryRegion, Segments};

    /// A clock that the test sets.
    #[derive(Default)]
    struct Clock(AtomicU64);

    impl Runtime for Clock {
        fn now(&self) -> Instant {
            Instant::from_nanos(self.0.load(Ordering::Relaxed))
        }
        fn wall_clock(&self) -> Duration {
            Duration::ZERO
        }
        fn sleep_until(&self, _: Instant) -> Sleep {
            Box::pin(std::future::pending())
        }
        fn spawn(&self, _: &'static str, _: BoxFuture<'static, ()>) {}
        fn spawn_blocking(&self, _: Box<dyn FnOnce() + Send>) {}
        fn fill_random(&self, bytes: &mut [u8]) {
            bytes.fill(3);
        }
    }

    /// Keeps exposed memory in a list; the index is the id.
    #[derive(Default)]
    struct Table(Mutex<Vec<Option<Memory>>>);

    impl Domain for Table {
        fn expose(&self, _: RegistrationKind, memory: Memory, _: Access) -> Result<Exposure, ExposeError> {
            let mut t = self.0.lock();
            t.push(Some(memory));
            Ok(Exposure { id: ExposureId(t.len() as u64 - 1), segments: Segments::default() })
        }
        fn revoke(&self, id: ExposureId) -> Option<Memory> {
            self.0.lock().get_mut(id.0 as usize)?.take()
        }
        fn is_valid(&self, _: ExposureId) -> bool {
            false
        }
        fn exposed(&self) -> (usize, usize) {
            let t = self.0.lock();
            let memory = || t.iter().flatten();
            (memory().count(), memory().map(Memory::len).sum())
        }
    }

    fn region(domain: &DomainRef, len: usize) -> MemoryRegion {
        let arena = Arena::new(ArenaConfig { limit: 1 << 22, huge_pages: false });
        MemoryRegion::new(Arc::clone(domain), Memory::Owned(arena.alloc(len).unwrap()))
    }

    #[test]
    fn bytes_are_integrated_over_the_time_of_their_exposure() {
        let clock = Arc::new(Clock::default());
        let pass = |seconds: u64| clock.0.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
        let rt: RuntimeRef = clock.clone();
        let meter = Arc::new(ExposureMeter::default());
        let domain = || meter.meter(Arc::new(Table::default()), &rt);
        let (one, two) = (domain(), domain());
        pass(5); // Nothing is exposed, so the integral stays 0.
        let a = region(&one, 1000).expose(Access::RemoteRead).unwrap();
        pass(2);
        let b = region(&two, 100).expose(Access::RemoteWrite).unwrap();
        pass(3);
        drop(a);
        pass(1);
        let s = meter.snapshot();
        assert_eq!((s.regions, s.bytes, s.peak_regions, s.peak_bytes), (1, 100, 2, 1100));
        assert_eq!(s.byte_nanoseconds, (2 * 1000 + 3 * 1100 + 100) * 1_000_000_000);
        assert!(b.revoke().is_some());
        pass(7);
        assert_eq!(meter.snapshot(), ExposureStats { regions: 0, bytes: 0, ..s });
        assert_eq!(meter.snapshot().byte_seconds(), 5400.0);
    }

    #[test]
    fn changes_in_a_batch_are_recorded_with_one_time() {
        let clock = Arc::new(Clock::default());
        let pass = |seconds: u64| clock.0.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
        let rt: RuntimeRef = clock.clone();
        let meter = Arc::new(ExposureMeter::default());
        let domain = meter.meter(Arc::new(Table::default()), &rt);
        let expose = |len| region(&domain, len).expose(Access::RemoteRead).unwrap();
        let a = expose(1000);
        pass(1);
        let batch = meter.batch();
        pass(1); // The batch's time is that of its first change.
        let b = expose(100);
        pass(5);
        drop(a);
        drop(batch);
        assert_eq!(meter.snapshot().byte_nanoseconds, (2 * 1000 + 5 * 100) * 1_000_000_000);
        pass(3);
        drop(b);
        pass(1);
        assert_eq!(meter.snapshot().byte_nanoseconds, (2 * 1000 + 8 * 100) * 1_000_000_000);
    }

    #[test]
    fn exposure_ends_with_the_domain() {
        let rt: RuntimeRef = Arc::new(Clock::default());
        let meter = Arc::new(ExposureMeter::default());
        let table = Arc::new(Table::default());
        let domain = meter.meter(table.clone(), &rt);
        let (kept, lost) = (region(&domain, 1000), region(&domain, 500));
        let (kept, lost) =
            (kept.expose(Access::RemoteRead).unwrap(), lost.expose(Access::RemoteRead).unwrap());
        table.0.lock().truncate(1); // The provider releases the memory itself.
        assert!(lost.revoke().is_none());
        assert_eq!((meter.snapshot().regions, meter.snapshot().bytes), (1, 1000));
        drop(domain);
        assert_eq!(meter.snapshot().regions, 1, "the region still references the domain");
        table.0.lock().clear();
        drop(kept);
        assert_eq!((meter.snapshot().regions, meter.snapshot().bytes), (0, 0));
    }
}
