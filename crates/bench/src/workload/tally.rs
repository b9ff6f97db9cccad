//! Operations of a workload by kind.

use std::{future::Future, sync::Arc, time::Duration};

use millrace_program::units::{cpu_s_per_gb, cpu_us_per_op, mb_per_s};
use millrace_runtime::{Instant, RuntimeRef};

use crate::{BenchError, Figure, stats::Latencies};

/// Measures the processor time of the hosts that a workload runs on.
pub trait CpuMeter: Send + Sync {
    /// The processor time of the hosts so far.
    fn cpu(&self) -> HostCpu;
}

/// Processor time of hosts.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostCpu {
    /// All client hosts together.
    pub clients: Duration,
    /// The server host.
    pub server: Duration,
}

impl HostCpu {
    fn since(self, earlier: Self) -> Self {
        Self {
            clients: self.clients.saturating_sub(earlier.clients),
            server: self.server.saturating_sub(earlier.server),
        }
    }
}

/// The operations of one kind.
struct Kind {
    test: &'static str,
    ops: u64,
    bytes: u64,
    took: Duration,
    latencies: Latencies,
    /// Processor time of the hosts during the operations.
    cpu: Option<HostCpu>,
    /// Time that emulated accelerators computed, and the time in which they did so.
    accelerators: (Duration, Duration),
}

/// Start time of operations that are timed as a whole.
pub struct Began {
    at: Instant,
    cpu: Option<HostCpu>,
}

/// Operations of one member of a workload, or of all members, by kind.
pub struct Tally {
    clock: RuntimeRef,
    /// Meter of the processor time of simulated hosts.
    meter: Option<Arc<dyn CpuMeter>>,
    kinds: Vec<Kind>,
}

impl Tally {
    pub(super) fn new(clock: RuntimeRef) -> Self {
        Self { clock, meter: None, kinds: Vec::new() }
    }

    /// Enables the recording of the processor time that `meter` measures.
    pub(super) fn metered(self, meter: Option<Arc<dyn CpuMeter>>) -> Self {
        Self { meter, ..self }
    }

    /// Creates an empty tally with the same clock, for operations that are not reported.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self::new(RuntimeRef::clone(&self.clock))
    }

    /// The clock.
    pub fn clock(&self) -> &RuntimeRef {
        &self.clock
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Starts to time operations as a whole.
    pub fn begin(&self) -> Began {
        Began { at: self.now(), cpu: self.meter.as_ref().map(|m| m.cpu()) }
    }

    /// Counts `ops` operations with a total of `bytes` bytes that took the time since `began`; to be called
    /// once for each kind.
    pub fn whole(&mut self, test: &'static str, ops: u64, bytes: u64, began: &Began) {
        let cpu = self.meter.as_ref().zip(began.cpu).map(|(meter, before)| meter.cpu().since(before));
        let took = self.now().duration_since(began.at);
        self.add(test, ops, bytes, took);
        self.kind(test).cpu = cpu;
    }

    /// The kind `test`; kinds are listed in the order of their first use.
    fn kind(&mut self, test: &'static str) -> &mut Kind {
        let at = self.kinds.iter().position(|k| k.test == test).unwrap_or_else(|| {
            let latencies = Latencies::new();
            let accelerators = Default::default();
            let took = Duration::ZERO;
            self.kinds.push(Kind { test, ops: 0, bytes: 0, took, latencies, cpu: None, accelerators });
            self.kinds.len() - 1
        });
        &mut self.kinds[at]
    }

    /// Executes `operation`, and counts it with its latency. The reported rate of the kind is that of
    /// sequential operations.
    ///
    /// # Errors
    /// Those of `operation`.
    pub async fn one<T>(
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

    fn add(&mut self, test: &'static str, ops: u64, bytes: u64, took: Duration) {
        let kind = self.kind(test);
        kind.ops += ops;
        kind.bytes += bytes;
        kind.took += took;
    }

    /// Records the latency of one operation.
    pub fn latency(&mut self, test: &'static str, took: Duration) {
        self.kind(test).latencies.record(took);
    }

    /// Records that an emulated accelerator has computed for `busy` within `elapsed`.
    pub fn computed(&mut self, test: &'static str, busy: Duration, elapsed: Duration) {
        let (all_busy, all_elapsed) = &mut self.kind(test).accelerators;
        *all_busy += busy;
        *all_elapsed += elapsed;
    }

    /// Adds the operations of another member during the same time.
    pub(super) fn merge(&mut self, other: &Self) {
        for k in &other.kinds {
            let mine = self.kind(k.test);
            mine.ops += k.ops;
            mine.bytes += k.bytes;
            if k.took > mine.took {
                // Both tallies measured the same hosts.
                (mine.took, mine.cpu) = (k.took, k.cpu);
            }
            mine.latencies.merge(&k.latencies);
            mine.accelerators.0 += k.accelerators.0;
            mine.accelerators.1 += k.accelerators.1;
        }
    }

    /// A figure for each kind.
    pub(super) fn figures(&self, line: &Figure) -> Vec<Figure> {
        let percentile = |k: &Kind, p| (!k.latencies.is_empty()).then(|| k.latencies.percentile_us(p));
        let figure = |k: &Kind| Figure {
            test: k.test.into(),
            record: k.bytes.checked_div(k.ops).unwrap_or(0),
            mb_per_s: (k.bytes > 0).then(|| mb_per_s(k.bytes, k.took)),
            ops_per_s: Some(k.ops as f64 / k.took.as_secs_f64().max(1e-9)),
            p50_us: percentile(k, 50.0),
            p99_us: percentile(k, 99.0),
            accelerator_percent: (!k.accelerators.1.is_zero())
                .then(|| k.accelerators.0.as_secs_f64() * 100.0 / k.accelerators.1.as_secs_f64()),
            ..processor_time(k, line)
        };
        self.kinds.iter().map(figure).collect()
    }
}

/// Adds the processor time of the hosts during the operations of a kind to `line`.
fn processor_time(k: &Kind, line: &Figure) -> Figure {
    let Some(HostCpu { clients, server }) = k.cpu else { return line.clone() };
    let percent = |cpu: Duration| Some(cpu.as_secs_f64() * 100.0 / k.took.as_secs_f64().max(1e-9));
    let per_gb = |cpu| (k.bytes > 0).then(|| cpu_s_per_gb(cpu, k.bytes));
    Figure {
        client_cpu_s_per_gb: per_gb(clients),
        server_cpu_s_per_gb: per_gb(server),
        client_cpu_us_per_op: Some(cpu_us_per_op(clients, k.ops)),
        server_cpu_us_per_op: Some(cpu_us_per_op(server, k.ops)),
        client_cpu_percent: percent(clients),
        server_cpu_percent: percent(server),
        ..line.clone()
    }
}
