//! Selection of calls, and the times of sampled calls.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use millrace_runtime::{Instant, RuntimeRef, sync::Mutex};

use super::{CallClass, Stage, StageTimes};

/// Maximum number of samples retained for reuse.
const SPARE: usize = 64;

/// Times of a sampled call.
struct Sample {
    rt: RuntimeRef,
    /// End of the last stage, in nanoseconds of the runtime's clock.
    last: AtomicU64,
    nanos: [AtomicU64; Stage::COUNT],
    class: AtomicU8,
    xid: AtomicU32,
}

/// The times of a call, if it is sampled. Clones refer to the same call.
#[derive(Clone, Default)]
pub struct Stages(Option<Arc<Sample>>);

impl Stages {
    /// The value of a call that is not sampled.
    pub const NONE: Self = Self(None);

    /// Whether the call is sampled.
    #[inline]
    pub fn is_sampled(&self) -> bool {
        self.0.is_some()
    }

    /// Ends `stage` now; it started at the end of the previous stage. A stage may have several parts.
    #[inline]
    pub fn end(&self, stage: Stage) {
        if let Some(sample) = &self.0 {
            sample.end(stage, sample.rt.now());
        }
    }

    /// As [`Self::end`], at the time `at`.
    #[inline]
    pub fn end_at(&self, stage: Stage, at: Instant) {
        if let Some(sample) = &self.0 {
            sample.end(stage, at);
        }
    }

    /// Sets the class of the call, initially [`CallClass::Other`].
    #[inline]
    pub fn set_class(&self, class: CallClass) {
        if let Some(sample) = &self.0 {
            sample.class.store(class as u8, Relaxed);
        }
    }

    /// Sets the XID of the call, by which the samples of both ends can be matched.
    #[inline]
    pub fn set_xid(&self, xid: u32) {
        if let Some(sample) = &self.0 {
            sample.xid.store(xid, Relaxed);
        }
    }
}

impl AsRef<Self> for Stages {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stages").field(&self.is_sampled()).finish()
    }
}

impl Sample {
    /// A time before `last` is ignored, so that clock differences between processors cannot make a stage
    /// negative.
    fn end(&self, stage: Stage, at: Instant) {
        let before = self.last.fetch_max(at.as_nanos(), Relaxed);
        if let Some(nanos) = self.nanos.get(stage as usize) {
            nanos.fetch_add(at.as_nanos().saturating_sub(before), Relaxed);
        }
    }
}

/// Selects the calls of one end whose stages are recorded, and sums up their times.
pub struct Sampler {
    rt: RuntimeRef,
    end: &'static str,
    every: u32,
    /// Calls until the next sample. Concurrent threads may lose a count, which makes samples slightly less
    /// frequent but avoids synchronization.
    left: AtomicU32,
    spare: Mutex<Vec<Arc<Sample>>>,
    times: Arc<StageTimes>,
}

impl Sampler {
    /// Creates a sampler that selects one call in `every`, or none if `every` is 0, and adds their times to
    /// `times`. `end` is the end of the connection in trace events (`client`, `server`). Times are those of
    /// `rt`.
    pub fn new(rt: RuntimeRef, end: &'static str, every: u32, times: Arc<StageTimes>) -> Self {
        let (left, spare) = (AtomicU32::new(every), Mutex::new(Vec::with_capacity(SPARE)));
        Self { rt, end, every, left, spare, times }
    }

    /// Whether one of the next `calls` calls will be sampled.
    #[inline]
    pub fn is_due(&self, calls: usize) -> bool {
        self.every > 0 && self.left.load(Relaxed) as usize <= calls
    }

    /// The present time, if one of the next `calls` calls will be sampled.
    #[inline]
    pub fn now_if_due(&self, calls: usize) -> Option<Instant> {
        self.is_due(calls).then(|| self.rt.now())
    }

    /// The stages of the next call, which starts at `begun`, or now.
    #[inline]
    pub fn next_call(&self, begun: Option<Instant>) -> Stages {
        if self.every == 0 {
            return Stages::NONE;
        }
        let left = self.left.load(Relaxed);
        if left > 1 {
            self.left.store(left - 1, Relaxed);
            return Stages::NONE;
        }
        self.left.store(self.every, Relaxed);
        Stages(Some(self.sample(begun.unwrap_or_else(|| self.rt.now()))))
    }

    #[cold]
    fn sample(&self, begun: Instant) -> Arc<Sample> {
        let mut spare = self.spare.lock().pop();
        // A sample that is still referenced (by an abandoned call) is not reused.
        if let Some(sample) = spare.as_mut().and_then(Arc::get_mut) {
            *sample.last.get_mut() = begun.as_nanos();
            sample.nanos.iter_mut().for_each(|n| *n.get_mut() = 0);
            (*sample.class.get_mut(), *sample.xid.get_mut()) = (0, 0);
        } else {
            spare = None;
        }
        spare.unwrap_or_else(|| {
            Arc::new(Sample {
                rt: Arc::clone(&self.rt),
                last: AtomicU64::new(begun.as_nanos()),
                nanos: Default::default(),
                class: AtomicU8::new(0),
                xid: AtomicU32::new(0),
            })
        })
    }

    /// Adds the times of a completed call to the sums, and traces them. Calls that end with their connection
    /// are not counted.
    #[inline]
    pub fn finish(&self, stages: Stages) {
        if let Stages(Some(sample)) = stages {
            self.record(sample);
        }
    }

    #[cold]
    fn record(&self, sample: Arc<Sample>) {
        let class = sample.class.load(Relaxed);
        let class = CallClass::ALL.into_iter().find(|c| *c as u8 == class).unwrap_or_default();
        let mut nanos = [0; Stage::COUNT];
        nanos.iter_mut().zip(&sample.nanos).for_each(|(n, s)| *n = s.load(Relaxed));
        self.times.add(class, &nanos);
        trace(self.end, class, sample.xid.load(Relaxed), &nanos);
        let mut spare = self.spare.lock();
        if spare.len() < SPARE {
            spare.push(sample);
        }
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("end", &self.end).field("every", &self.every).finish_non_exhaustive()
    }
}

/// Emits one event per sampled call, at level TRACE with the target `millrace::stages` and times in
/// nanoseconds (`--log millrace::stages=trace`).
fn trace(end: &str, class: CallClass, xid: u32, nanos: &[u64; Stage::COUNT]) {
    let ns = |stage: Stage| nanos.get(stage as usize).copied().unwrap_or(0);
    tracing::trace!(
        target: "millrace::stages",
        end,
        class = class.name(),
        xid,
        total_ns = nanos.iter().sum::<u64>(),
        encode = ns(Stage::Encode),
        queue = ns(Stage::Queue),
        receive = ns(Stage::Receive),
        decode = ns(Stage::Decode),
        buffer = ns(Stage::Buffer),
        registration = ns(Stage::Registration),
        send = ns(Stage::Send),
        wait = ns(Stage::Wait),
        rdma_read_wait = ns(Stage::ReadWait),
        execution = ns(Stage::Execution),
        rdma_write_post = ns(Stage::WritePost),
        reply = ns(Stage::Reply),
        completion = ns(Stage::Completion),
        deregistration = ns(Stage::Deregistration),
        delivery = ns(Stage::Delivery),
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_runtime::{BoxFuture, Runtime, Sleep};
    use proptest::prelude::*;

    use super::{super::StageSums, *};

    /// A clock that the test sets.
    #[derive(Default)]
    struct Clock(AtomicU64);

    impl Runtime for Clock {
        fn now(&self) -> Instant {
            Instant::from_nanos(self.0.load(Relaxed))
        }

        fn wall_clock(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep_until(&self, _: Instant) -> Sleep {
            Box::pin(std::future::pending())
        }

        fn spawn(&self, _: &'static str, _: BoxFuture<'static, ()>) {}

        fn spawn_blocking(&self, _: Box<dyn FnOnce() + Send>) {}

        fn fill_random(&self, _: &mut [u8]) {}
    }

    fn sampler(every: u32) -> (Arc<Clock>, Sampler) {
        let clock = Arc::new(Clock::default());
        (Arc::clone(&clock), Sampler::new(clock, "test", every, Arc::default()))
    }

    proptest! {
        #[test]
        fn the_stages_of_a_call_add_up_to_its_time(steps in prop::collection::vec((0..Stage::COUNT, 0..1_000_000_u64), 0..60)) {
            let (clock, sampler) = sampler(1);
            clock.0.store(17, Relaxed);
            let stages = sampler.next_call(None);
            let mut model = [0; Stage::COUNT];
            for (stage, time) in &steps {
                clock.0.fetch_add(*time, Relaxed);
                stages.clone().end(Stage::ALL[*stage]);
                model[*stage] += time;
            }
            sampler.finish(stages);
            let sums = *sampler.times.snapshot().of(CallClass::Other);
            for (stage, nanos) in Stage::ALL.into_iter().zip(model) {
                prop_assert_eq!(sums.time(stage), Duration::from_nanos(nanos));
            }
            prop_assert_eq!(sums.total().as_nanos(), u128::from(clock.0.load(Relaxed) - 17));
        }
    }

    #[test]
    fn one_call_per_interval_is_sampled() {
        for (every, sampled) in [(0, 0), (1, 60), (7, 8), (60, 1), (61, 0)] {
            let (_, sampler) = sampler(every);
            let mut n = 0;
            for _ in 0..60 {
                let due = sampler.is_due(1);
                let stages = sampler.next_call(None);
                assert_eq!(stages.is_sampled(), due);
                n += u64::from(due);
                sampler.finish(stages);
            }
            assert_eq!(
                (n, sampler.times.snapshot().of(CallClass::Other).calls),
                (sampled, sampled),
                "1 in {every}"
            );
        }
    }

    #[test]
    fn is_due_covers_a_batch_of_calls() {
        let (_, sampler) = sampler(3);
        assert_eq!((sampler.is_due(2), sampler.is_due(3)), (false, true));
        assert!(!sampler.next_call(None).is_sampled());
        assert!(sampler.is_due(2));
    }

    #[test]
    fn a_time_before_the_previous_one_counts_as_zero() {
        let (clock, sampler) = sampler(1);
        let stages = sampler.next_call(Some(Instant::from_nanos(100)));
        stages.end_at(Stage::Receive, Instant::from_nanos(90));
        stages.end_at(Stage::Decode, Instant::from_nanos(130));
        clock.0.store(150, Relaxed);
        stages.end(Stage::Reply);
        sampler.finish(stages);
        let sums = *sampler.times.snapshot().of(CallClass::Other);
        let nanos = [Stage::Receive, Stage::Decode, Stage::Reply].map(|s| sums.time(s).as_nanos());
        assert_eq!(nanos, [0, 30, 20]);
    }

    #[test]
    fn a_referenced_sample_is_not_reused() {
        let (clock, sampler) = sampler(1);
        let first = sampler.next_call(None);
        let held = first.clone();
        sampler.finish(first);
        let second = sampler.next_call(None);
        clock.0.store(5, Relaxed);
        held.end(Stage::Wait);
        second.set_class(CallClass::Read);
        second.end(Stage::Send);
        sampler.finish(second);
        let sums = *sampler.times.snapshot().of(CallClass::Read);
        assert_eq!(
            (sums.calls, sums.total(), sums.time(Stage::Wait)),
            (1, Duration::from_nanos(5), Duration::ZERO)
        );
    }

    #[test]
    fn sums_are_kept_by_class() {
        let (clock, sampler) = sampler(1);
        let call = |class, nanos| {
            let stages = sampler.next_call(None);
            stages.set_class(class);
            clock.0.fetch_add(nanos, Relaxed);
            stages.end(Stage::Execution);
            sampler.finish(stages);
            sampler.times.snapshot()
        };
        let first = call(CallClass::Read, 10);
        let then = call(CallClass::Write, 30);
        let alone = then.since(&first);
        assert_eq!((alone.of(CallClass::Read).calls, alone.of(CallClass::Write).calls), (0, 1));
        assert_eq!(first.plus(&alone), then);
        let write = StageSums::new(1, [(Stage::Execution, Duration::from_nanos(30))]);
        assert_eq!(alone.of(CallClass::Write), &write);
    }

    #[test]
    fn every_stage_is_listed_once_at_its_index() {
        for (i, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, i);
            assert!(Stage::CLIENT.contains(&stage) || Stage::SERVER.contains(&stage));
        }
        for (i, class) in CallClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, i);
        }
    }
}
