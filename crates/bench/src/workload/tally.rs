//! What a workload did, by kinds of operation.

use std::{future::Future, time::Duration};

use runtime::{Instant, RuntimeRef};

use crate::{BenchError, Figure, stats::Latencies, units::mb_per_s};

/// What was done of one kind.
struct Kind {
    test: &'static str,
    ops: u64,
    bytes: u64,
    took: Duration,
    latencies: Latencies,
}

/// What one member of a workload did, or all of them.
pub(super) struct Tally {
    clock: RuntimeRef,
    kinds: Vec<Kind>,
}

impl Tally {
    pub(super) fn new(clock: RuntimeRef) -> Self {
        Self { clock, kinds: Vec::new() }
    }

    /// An empty one with the same clock, for what is not measured.
    pub(super) fn sibling(&self) -> Self {
        Self::new(RuntimeRef::clone(&self.clock))
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The kind `test`; kinds are listed in the order in which they came first.
    fn kind(&mut self, test: &'static str) -> &mut Kind {
        let at = self.kinds.iter().position(|k| k.test == test).unwrap_or_else(|| {
            let latencies = Latencies::new();
            self.kinds.push(Kind { test, ops: 0, bytes: 0, took: Duration::ZERO, latencies });
            self.kinds.len() - 1
        });
        &mut self.kinds[at]
    }

    /// Carries `operation` out, and counts it with its time. The rate of a kind that is counted so is that of its
    /// operations one after the other.
    pub(super) async fn one<T>(
        &mut self,
        test: &'static str,
        bytes: u64,
        operation: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<T, BenchError> {
        let began = self.now();
        let out = operation.await?;
        let took = self.now().duration_since(began);
        self.latency(test, took);
        self.add(test, 1, bytes, took);
        Ok(out)
    }

    /// Counts `ops` operations that together took `took`.
    pub(super) fn add(&mut self, test: &'static str, ops: u64, bytes: u64, took: Duration) {
        let kind = self.kind(test);
        kind.ops += ops;
        kind.bytes += bytes;
        kind.took += took;
    }

    /// Notes how long one operation took.
    pub(super) fn latency(&mut self, test: &'static str, took: Duration) {
        self.kind(test).latencies.record(took);
    }

    /// Adds what another member did in the same time.
    pub(super) fn merge(&mut self, other: &Self) {
        for k in &other.kinds {
            let mine = self.kind(k.test);
            mine.ops += k.ops;
            mine.bytes += k.bytes;
            mine.took = mine.took.max(k.took);
            mine.latencies.merge(&k.latencies);
        }
    }

    /// A line for each kind.
    pub(super) fn figures(&self, line: &Figure) -> Vec<Figure> {
        let percentile = |k: &Kind, p| (!k.latencies.is_empty()).then(|| k.latencies.percentile_us(p));
        let figure = |k: &Kind| Figure {
            test: k.test.into(),
            record: k.bytes.checked_div(k.ops).unwrap_or(0),
            mb_per_s: (k.bytes > 0).then(|| mb_per_s(k.bytes, k.took)),
            ops_per_s: Some(k.ops as f64 / k.took.as_secs_f64().max(1e-9)),
            p50_us: percentile(k, 50.0),
            p99_us: percentile(k, 99.0),
            ..line.clone()
        };
        self.kinds.iter().map(figure).collect()
    }
}
