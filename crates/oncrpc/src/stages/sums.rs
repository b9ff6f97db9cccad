//! Sums of the times of sampled calls.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{CallClass, Stage};

/// Sums of one class of calls.
#[derive(Debug, Default)]
struct Sums {
    calls: AtomicU64,
    nanos: [AtomicU64; Stage::COUNT],
}

/// Sums of sampled calls; samplers may share it.
#[derive(Debug, Default)]
pub struct StageTimes([Sums; CallClass::ALL.len()]);

impl StageTimes {
    pub(super) fn add(&self, class: CallClass, nanos: &[u64; Stage::COUNT]) {
        let Some(sums) = self.0.get(class as usize) else { return };
        sums.calls.fetch_add(1, Relaxed);
        sums.nanos
            .iter()
            .zip(nanos)
            .filter(|(_, n)| **n > 0)
            .for_each(|(sum, n)| _ = sum.fetch_add(*n, Relaxed));
    }

    /// A snapshot of the sums.
    pub fn snapshot(&self) -> StageStats {
        let of = |sums: &Sums| StageSums {
            calls: sums.calls.load(Relaxed),
            nanos: std::array::from_fn(|i| sums.nanos.get(i).map_or(0, |n| n.load(Relaxed))),
        };
        StageStats(self.0.each_ref().map(of))
    }
}

/// Times of the sampled calls of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageSums {
    /// Number of sampled calls.
    pub calls: u64,
    nanos: [u64; Stage::COUNT],
}

impl StageSums {
    /// Creates the sums of `calls` calls with the given times; other stages are zero.
    pub fn new(calls: u64, stages: impl IntoIterator<Item = (Stage, Duration)>) -> Self {
        let mut out = Self { calls, ..Self::default() };
        for (stage, time) in stages {
            if let Some(n) = out.nanos.get_mut(stage as usize) {
                *n = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            }
        }
        out
    }

    /// Total time in `stage` over all calls.
    pub fn time(&self, stage: Stage) -> Duration {
        Duration::from_nanos(self.nanos.get(stage as usize).copied().unwrap_or(0))
    }

    /// Total time of all stages over all calls.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.nanos.iter().sum())
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    fn with(&self, other: &Self, f: fn(u64, u64) -> u64) -> Self {
        let nanos = std::array::from_fn(|i| {
            let of = |sums: &Self| sums.nanos.get(i).copied().unwrap_or(0);
            f(of(self), of(other))
        });
        Self { calls: f(self.calls, other.calls), nanos }
    }
}

/// Times of sampled calls by class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageStats([StageSums; CallClass::ALL.len()]);

impl StageStats {
    /// Sums of one class.
    pub fn of(&self, class: CallClass) -> &StageSums {
        &self.0[class as usize]
    }

    /// Mutable sums of one class.
    pub fn of_mut(&mut self, class: CallClass) -> &mut StageSums {
        &mut self.0[class as usize]
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// The increase since `earlier`, an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(&self, other: &Self, f: fn(u64, u64) -> u64) -> Self {
        let mut out = *self;
        out.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a = a.with(b, f));
        out
    }
}
