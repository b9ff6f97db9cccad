//! Reads and writes of files, a file per thread: sequential write, rewrite, read, reread, random read and write.
//!
//! Each thread is an OS thread with a runtime, a client and a file of its own, and keeps `outstanding` records in
//! flight. All threads start a test together; its time is that of the slowest. UNSTABLE writes end with one COMMIT,
//! which is part of the time. Memory for data is taken once: a read gives its buffer to the next read, writes share
//! views of one pattern as long as the working set.

mod grid;
mod thread;

use std::{
    fmt,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use millrace_client::{Options, Url};
use millrace_oncrpc::{CallClass, stages::StageStats};

use crate::{
    BenchError, Figure,
    breakdown::Breakdown,
    cpu,
    embedded::EmbeddedServer,
    stats::Latencies,
    units::{cpu_s_per_gb, mb_per_s},
};
pub use grid::{Grid, Seen, Servers, measure};
pub use thread::{Exposure, File, WORKING_SET};
use thread::{Greeting, Order, Worker};

/// A test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// Write new files from start to end.
    Write,
    /// Write the same files again.
    Rewrite,
    /// Read from start to end.
    Read,
    /// Read again.
    Reread,
    /// Read records in random order.
    RandomRead,
    /// Write records in random order.
    RandomWrite,
}

impl Test {
    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Rewrite | Self::RandomWrite)
    }

    /// The calls in which its data moves.
    fn class(self) -> CallClass {
        if self.writes() { CallClass::Write } else { CallClass::Read }
    }

    fn random(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomWrite)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::Read => "read",
            Self::Reread => "reread",
            Self::RandomRead => "random-read",
            Self::RandomWrite => "random-write",
        })
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Iozone {
    /// The directory in which files are made.
    pub url: Url,
    /// How clients connect; what the URL states wins.
    pub options: Options,
    /// Threads.
    pub threads: usize,
    /// Bytes of each file.
    pub size: u64,
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The test.
    pub test: Test,
    /// Bytes of one operation.
    pub record: usize,
    /// Operations in flight per thread.
    pub outstanding: usize,
    /// Sequential tests: how often to go through the file.
    pub passes: u64,
    /// Random tests: operations per thread; 0: one for each record of the file, at most 100 000.
    pub random_ops: u64,
}

/// Threads with their clients connected and their files made.
pub struct Session {
    config: Iozone,
    workers: Vec<Worker>,
    /// What the clients agreed on.
    agreed: Greeting,
}

impl Session {
    /// Connects all threads and makes an empty file for each.
    ///
    /// # Errors
    /// When a client cannot connect, or a file cannot be made.
    pub fn open(config: Iozone) -> Result<Self, BenchError> {
        let config = Iozone { threads: config.threads.max(1), size: config.size.max(1), ..config };
        let shared = Arc::new(config.clone());
        let mut workers = Vec::with_capacity(config.threads);
        for n in 0..config.threads {
            workers.push(Worker::start(n, Arc::clone(&shared))?);
        }
        let mut agreed = Greeting { rsize: usize::MAX, wsize: usize::MAX, provider: None };
        for w in &workers {
            let Greeting { rsize, wsize, provider } = w.ready()?;
            agreed = Greeting { rsize: agreed.rsize.min(rsize), wsize: agreed.wsize.min(wsize), provider };
        }
        Ok(Self { config, workers, agreed })
    }

    /// Fills the files without measuring.
    ///
    /// # Errors
    /// When a write fails.
    pub fn prepare(&self) -> Result<(), BenchError> {
        // To the last byte.
        let most = 1_u64 << self.agreed.wsize.clamp(1, 1 << 20).ilog2();
        let record = common(most, self.config.size) as usize;
        let fill = Run { test: Test::Write, record, outstanding: 8, passes: 1, random_ops: 0 };
        self.run(&fill, None).map(drop)
    }

    /// Whether one READ or WRITE carries a record of the run.
    pub fn carries(&self, run: &Run) -> bool {
        (1..=self.largest(run.test)).contains(&run.record)
    }

    fn largest(&self, test: Test) -> usize {
        if test.writes() { self.agreed.wsize } else { self.agreed.rsize }
    }

    /// Measures once. What the server used and counted is known only of an embedded `server`.
    ///
    /// # Errors
    /// When an operation fails, or the record is larger than the server takes.
    pub fn run(&self, run: &Run, server: Option<&EmbeddedServer>) -> Result<Figure, BenchError> {
        if !self.carries(run) {
            return Err(BenchError::Parameter(format!(
                "a record of {} bytes is not between 1 and {}, the most that one {} of this server and \
                 transport carries; choose a smaller --record, or raise rsize and wsize in the URL",
                run.record,
                self.largest(run.test),
                if run.test.writes() { "WRITE" } else { "READ" },
            )));
        }
        if run.record as u64 > self.config.size {
            return Err(BenchError::Parameter("a record cannot be larger than the file".into()));
        }
        let counted = server.map(EmbeddedServer::counters).transpose()?;
        let proto = self.proto().to_string();
        let stages = || server.map(|s| s.stages(&proto)).transpose();
        let stages_before = stages()?;
        let server_before = server.and_then(EmbeddedServer::cpu);
        let (start, before) = (Instant::now(), cpu::own());
        let all = self.ordered(run)?;
        let took = start.elapsed();
        let client = cpu::own() - before;
        let server_cpu = server.and_then(EmbeddedServer::cpu).zip(server_before).map(|(after, b)| after - b);
        let counted = match (server, counted) {
            (Some(server), Some(before)) if self.rdma() => Some(server.counters()?.since(before)),
            _ => None,
        };
        let stages = stages()?.zip(stages_before).map(|(after, before)| after.since(&before));
        let class = run.test.class();
        let breakdown = Breakdown {
            client: *all.stages.of(class),
            server: stages.map(|s| *s.of(class)),
            mean_us: all.latencies.mean_us(),
        };
        Ok(Figure {
            breakdown: Some(breakdown),
            server_registrations: counted.map(|c| c.registrations),
            server_exposed_byte_s: counted.map(|c| c.exposed_byte_seconds),
            client_registrations: self.rdma().then_some(all.registrations as f64),
            client_exposed_byte_s: self.rdma().then_some(all.exposed_byte_nanoseconds as f64 / 1e9),
            ..all.figure(self.unmeasured(run, server), took, client, server_cpu)
        })
    }

    /// Has all threads run, and waits for the last.
    fn ordered(&self, run: &Run) -> Result<Outcome, BenchError> {
        let (done, outcomes) = mpsc::channel();
        for w in &self.workers {
            w.order(Order { run: *run, done: done.clone() })?;
        }
        drop(done);
        let mut all = Outcome::default();
        for outcome in outcomes {
            all.merge(outcome?);
        }
        Ok(all)
    }

    fn proto(&self) -> millrace_client::Proto {
        self.config.url.proto.unwrap_or(self.config.options.proto)
    }

    fn rdma(&self) -> bool {
        self.proto() == millrace_client::Proto::Rdma
    }

    /// What is known of a run before it is measured.
    pub fn unmeasured(&self, run: &Run, server: Option<&EmbeddedServer>) -> Figure {
        let (rdma, url, options) = (self.rdma(), &self.config.url, &self.config.options);
        let of_server = server.filter(|_| rdma).and_then(|s| s.registration());
        Figure {
            workload: "iozone".into(),
            test: run.test.to_string(),
            proto: self.proto().to_string(),
            provider: self.agreed.provider.map(Into::into),
            design: rdma.then(|| options.design.to_string()),
            registration: rdma.then(|| url.registration.unwrap_or(options.registration).to_string()),
            server_registration: of_server.map(|r| r.to_string()),
            threads: self.config.threads,
            record: run.record as u64,
            outstanding: run.outstanding,
            ..Figure::default()
        }
    }
}

/// The measured values of one thread, or the sums over all threads.
#[derive(Default)]
pub struct Outcome {
    /// Bytes read or written.
    pub bytes: u64,
    /// The latency of each operation.
    pub latencies: Latencies,
    /// Memory registrations.
    pub registrations: u64,
    /// Bytes that the server could access, times the duration, in nanoseconds.
    pub exposed_byte_nanoseconds: u128,
    /// The stages of sampled calls.
    pub stages: StageStats,
}

impl Outcome {
    /// Adds the values of another thread.
    pub fn merge(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.latencies.merge(&other.latencies);
        self.registrations += other.registrations;
        self.exposed_byte_nanoseconds += other.exposed_byte_nanoseconds;
        self.stages = self.stages.plus(&other.stages);
    }

    /// Completes `line` with rates, latencies and processor time of a test that took `took`.
    pub fn figure(&self, line: Figure, took: Duration, client: Duration, server: Option<Duration>) -> Figure {
        let percent = |cpu: Duration| cpu.as_secs_f64() * 100.0 / took.as_secs_f64().max(1e-9);
        let operations = self.latencies.len();
        Figure {
            mb_per_s: Some(mb_per_s(self.bytes, took)),
            ops_per_s: Some(operations as f64 / took.as_secs_f64().max(1e-9)),
            p50_us: Some(self.latencies.percentile_us(50.0)),
            p99_us: Some(self.latencies.percentile_us(99.0)),
            client_cpu_s_per_gb: Some(cpu_s_per_gb(client, self.bytes)),
            server_cpu_s_per_gb: server.map(|cpu| cpu_s_per_gb(cpu, self.bytes)),
            server_cpu_us_per_op: server.map(|cpu| cpu.as_secs_f64() * 1e6 / operations.max(1) as f64),
            client_cpu_percent: Some(percent(client)),
            server_cpu_percent: server.map(percent),
            ..line
        }
    }
}

/// The greatest common divisor; of `a` and 0, `a`.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}
