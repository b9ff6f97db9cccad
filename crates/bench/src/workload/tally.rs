//! What a workload did, by kinds of operation.

use std::{future::Future, time::Duration};

use millrace_runtime::{Instant, RuntimeRef};

use crate::{
    BenchError, Figure,
    simulated::{Hosts, Spent},
    stats::Latencies,
    units::{cpu_s_per_gb, mb_per_s},
};

/// What was done of one kind.
struct Kind {
    test: &'static str,
    ops: u64,
    bytes: u64,
    took: Duration,
    latencies: Latencies,
    /// What simulated hosts spent meanwhile.
    spent: Option<Spent>,
}

/// When something began that is timed as a whole.
pub(super) struct Began {
    at: Instant,
    spent: Option<Spent>,
}

/// What one member of a workload did, or all of them.
pub(super) struct Tally {
    clock: RuntimeRef,
    /// The hosts that the workload runs on, if they are simulated.
    hosts: Option<Hosts>,
    kinds: Vec<Kind>,
}

impl Tally {
    pub(super) fn new(clock: RuntimeRef) -> Self {
        Self { clock, hosts: None, kinds: Vec::new() }
    }

    /// Counts what these hosts spend, too.
    pub(super) fn on(self, hosts: Hosts) -> Self {
        Self { hosts: Some(hosts), ..self }
    }

    /// An empty one with the same clock, for what is not measured.
    pub(super) fn sibling(&self) -> Self {
        Self::new(RuntimeRef::clone(&self.clock))
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Something begins that is timed as a whole.
    pub(super) fn begin(&self) -> Began {
        Began { at: self.now(), spent: self.hosts.as_ref().map(Hosts::spent) }
    }

    /// Counts `ops` operations, which together took the time since `began`; once for each kind.
    pub(super) fn whole(&mut self, test: &'static str, ops: u64, bytes: u64, began: &Began) {
        let spent = self.hosts.as_ref().zip(began.spent).map(|(hosts, before)| hosts.spent().since(&before));
        let took = self.now().duration_since(began.at);
        self.add(test, ops, bytes, took);
        self.kind(test).spent = spent;
    }

    /// The kind `test`; kinds are listed in the order in which they came first.
    fn kind(&mut self, test: &'static str) -> &mut Kind {
        let at = self.kinds.iter().position(|k| k.test == test).unwrap_or_else(|| {
            let latencies = Latencies::new();
            self.kinds.push(Kind { test, ops: 0, bytes: 0, took: Duration::ZERO, latencies, spent: None });
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

    fn add(&mut self, test: &'static str, ops: u64, bytes: u64, took: Duration) {
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
            if k.took > mine.took {
                // The hosts are the same.
                (mine.took, mine.spent) = (k.took, k.spent);
            }
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
            ..processor_time(k, line)
        };
        self.kinds.iter().map(figure).collect()
    }
}

/// `line` with what hosts spent while operations of a kind were going on.
fn processor_time(k: &Kind, line: &Figure) -> Figure {
    let Some(Spent { clients_cpu, server_cpu, .. }) = k.spent else { return line.clone() };
    let percent = |cpu: Duration| Some(cpu.as_secs_f64() * 100.0 / k.took.as_secs_f64().max(1e-9));
    let per_gb = |cpu| (k.bytes > 0).then(|| cpu_s_per_gb(cpu, k.bytes));
    Figure {
        client_cpu_s_per_gb: per_gb(clients_cpu),
        server_cpu_s_per_gb: per_gb(server_cpu),
        server_cpu_us_per_op: Some(server_cpu.as_secs_f64() * 1e6 / k.ops.max(1) as f64),
        client_cpu_percent: percent(clients_cpu),
        server_cpu_percent: percent(server_cpu),
        ..line.clone()
    }
}
