//! Counters of the procedures of NFSv3 and of the operations of NFSv4, by their numbers.
//!
//! Each shard has separate counters that only it writes; they are summed when they are read.

use std::sync::{Arc, atomic::AtomicU64};

use crate::usage::{CallDuration, Latency, LatencyStats, add, value};

/// Counters of one shard for the numbers below `N`. Others are not counted.
pub(crate) struct ProcedureCounters<const N: usize> {
    calls: [AtomicU64; N],
    failures: [AtomicU64; N],
    latency: [Latency; N],
}

impl<const N: usize> Default for ProcedureCounters<N> {
    fn default() -> Self {
        Self {
            calls: std::array::from_fn(|_| AtomicU64::default()),
            failures: std::array::from_fn(|_| AtomicU64::default()),
            latency: std::array::from_fn(|_| Latency::default()),
        }
    }
}

impl<const N: usize> ProcedureCounters<N> {
    /// Counts an execution.
    pub(crate) fn executed(&self, number: u32) {
        if let Some(calls) = self.calls.get(number as usize) {
            add(calls, 1);
        }
    }

    /// Counts a failing status.
    pub(crate) fn failed(&self, number: u32) {
        if let Some(failures) = self.failures.get(number as usize) {
            add(failures, 1);
        }
    }

    /// Counts the duration of an execution.
    pub(crate) fn took(&self, number: u32, duration: CallDuration) {
        if let Some(latency) = self.latency.get(number as usize) {
            latency.record(duration);
        }
    }

    /// Adds the counts of procedure `number` to `sum`.
    fn add_to(&self, number: u32, sum: &mut ProcedureStats) {
        let of = |counters: &[AtomicU64; N]| counters.get(number as usize).map_or(0, value);
        sum.calls += of(&self.calls);
        sum.failures += of(&self.failures);
        if let Some(latency) = self.latency.get(number as usize) {
            latency.add_to(&mut sum.latency);
        }
    }
}

/// Statistics of a procedure of NFSv3 or an operation of NFSv4.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcedureStats {
    /// Number of executions.
    pub calls: u64,
    /// Number of executions with a failing status, including LOOKUP of a missing name.
    pub failures: u64,
    /// Number and duration of the executions that are timed. Not timed are NULL, and the operations of NFSv4 that
    /// only select a session or a file handle: SEQUENCE, PUTFH, PUTPUBFH, PUTROOTFH, GETFH, SAVEFH, RESTOREFH. The
    /// next operation in the COMPOUND includes their time.
    pub latency: LatencyStats,
}

impl ProcedureStats {
    /// The sum over the counters of all shards for procedure `number`.
    pub(crate) fn sum<'s, S: 's, const N: usize>(
        shards: &'s [Arc<S>],
        counters: impl Fn(&'s S) -> &'s ProcedureCounters<N>,
        number: u32,
    ) -> Self {
        let mut sum = Self::default();
        shards.iter().for_each(|shard| counters(shard).add_to(number, &mut sum));
        sum
    }
}
