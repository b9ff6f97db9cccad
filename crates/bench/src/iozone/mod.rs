//! Reads and writes of files, one file per thread: sequential write, rewrite, read, reread, random read and
//! write.
//!
//! Each thread is an OS thread with its own runtime, client and file, and keeps `outstanding` records in
//! flight. All threads start a test together; its time is that of the slowest. UNSTABLE writes end with one
//! COMMIT, which is included in the time. Memory for data is allocated once: reads reuse their buffers, and
//! writes share views of one pattern of the size of the working set.

mod grid;
mod thread;

use std::{
    fmt,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

pub use grid::{Grid, Seen, Servers, measure};
use millrace_client::{Options, Url};
use millrace_oncrpc::{CallClass, stages::StageStats};
use millrace_program::{
    cpu,
    units::{cpu_s_per_gb, cpu_us_per_op, mb_per_s},
};
use thread::{ClientLimits, Request, Step, Worker};
pub use thread::{Exposure, File, WORKING_SET};

use crate::{
    BenchError, Figure, breakdown::Breakdown, embedded::EmbeddedServer, no_halt, stats::Latencies,
    workload::proto_of,
};

/// A test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Test {
    /// Write new files sequentially
    Write,
    /// Write the same files again
    Rewrite,
    /// Read the files sequentially
    Read,
    /// Read them again
    Reread,
    /// Read records in random order
    RandomRead,
    /// Write records in random order
    RandomWrite,
}

impl Test {
    /// Whether the test writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Rewrite | Self::RandomWrite)
    }

    /// The class of calls that transfer the data.
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

/// Parameters of the threads.
#[derive(Debug, Clone)]
pub struct Iozone {
    /// URL of the directory in which files are created.
    pub url: Url,
    /// Client options; settings in the URL take precedence.
    pub options: Options,
    /// Number of threads.
    pub threads: usize,
    /// Size of each file in bytes.
    pub size: u64,
}

/// Parameters of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The test.
    pub test: Test,
    /// Record size in bytes.
    pub record: usize,
    /// Number of operations in flight per thread.
    pub outstanding: usize,
    /// Sequential tests: number of passes over the file.
    pub passes: u64,
    /// Random tests: number of operations per thread; 0: one for each record of the file, at most 100 000.
    pub random_ops: u64,
}

/// Threads with connected clients and created files.
pub struct Session {
    config: Iozone,
    workers: Vec<Worker>,
    /// Common limits of the clients.
    limits: ClientLimits,
}

impl Session {
    /// Connects all threads and creates an empty file for each.
    ///
    /// # Errors
    /// A client cannot connect, or a file cannot be created.
    pub fn open(config: Iozone) -> Result<Self, BenchError> {
        let config = Iozone { threads: config.threads.max(1), size: config.size.max(1), ..config };
        let shared = Arc::new(config.clone());
        let mut workers = Vec::with_capacity(config.threads);
        for n in 0..config.threads {
            workers.push(Worker::start(n, Arc::clone(&shared))?);
        }
        let mut limits = ClientLimits { rsize: usize::MAX, wsize: usize::MAX, provider: None };
        for w in &workers {
            let ClientLimits { rsize, wsize, provider } = w.ready()?;
            limits =
                ClientLimits { rsize: limits.rsize.min(rsize), wsize: limits.wsize.min(wsize), provider };
        }
        Ok(Self { config, workers, limits })
    }

    /// Fills the files without measuring.
    ///
    /// # Errors
    /// A write fails.
    pub fn prepare(&self) -> Result<(), BenchError> {
        // A divisor of the size, so that the file is filled completely.
        let most = 1_u64 << self.limits.wsize.clamp(1, 1 << 20).ilog2();
        let record = gcd(most, self.config.size) as usize;
        let fill = Run { test: Test::Write, record, outstanding: 8, passes: 1, random_ops: 0 };
        self.run(&fill, None).map(drop)
    }

    /// Whether one READ or WRITE can transfer a record of the run.
    pub fn carries(&self, run: &Run) -> bool {
        (1..=self.largest(run.test)).contains(&run.record)
    }

    fn largest(&self, test: Test) -> usize {
        if test.writes() { self.limits.wsize } else { self.limits.rsize }
    }

    /// Runs one measurement. Counters and processor time of the server are available only for an embedded
    /// `server`.
    ///
    /// # Errors
    /// An operation fails, or the record exceeds the server's maximum.
    pub fn run(&self, run: &Run, server: Option<&EmbeddedServer>) -> Result<Figure, BenchError> {
        if !self.carries(run) {
            return Err(BenchError::Parameter(format!(
                "invalid record size {}: the server and transport support 1 to {} bytes in one {}; \
                 choose a smaller --record, or raise rsize and wsize in the URL",
                run.record,
                self.largest(run.test),
                if run.test.writes() { "WRITE" } else { "READ" },
            )));
        }
        if run.record as u64 > self.config.size {
            return Err(BenchError::Parameter("the record is larger than the file".into()));
        }
        self.run_all(run, Step::Allocate)?;
        let counted = server.map(EmbeddedServer::counters).transpose()?;
        let proto = self.proto().to_string();
        let stages = || server.map(|s| s.stages(&proto)).transpose();
        let stages_before = stages()?;
        let server_before = server.and_then(EmbeddedServer::cpu);
        let (start, before) = (Instant::now(), cpu::own());
        let all = self.run_all(run, Step::Measure)?;
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

    /// Lets all threads execute a step, and waits for them.
    fn run_all(&self, run: &Run, step: Step) -> Result<Outcome, BenchError> {
        let (done, outcomes) = mpsc::channel();
        for w in &self.workers {
            w.request(Request { run: *run, step, done: done.clone() })?;
        }
        drop(done);
        let mut all = Outcome::default();
        for outcome in outcomes {
            all.merge(outcome?);
        }
        Ok(all)
    }

    fn proto(&self) -> millrace_client::Proto {
        proto_of(&self.config.url, &self.config.options, self.limits.provider)
    }

    fn rdma(&self) -> bool {
        self.proto() == millrace_client::Proto::Rdma
    }

    /// The figure of a run without measured values.
    pub fn unmeasured(&self, run: &Run, server: Option<&EmbeddedServer>) -> Figure {
        let (rdma, url, options) = (self.rdma(), &self.config.url, &self.config.options);
        let of_server = server.filter(|_| rdma).and_then(|s| s.registration());
        Figure {
            workload: "iozone".into(),
            test: run.test.to_string(),
            proto: self.proto().to_string(),
            provider: self.limits.provider.map(Into::into),
            design: rdma.then(|| options.rdma_protocol.name().to_owned()),
            registration: rdma.then(|| url.registration.unwrap_or(options.registration).to_string()),
            server_registration: of_server.map(|r| r.to_string()),
            threads: self.config.threads,
            no_halt: Some(no_halt::held()),
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
    /// Latencies of the operations.
    pub latencies: Latencies,
    /// Number of memory registrations.
    pub registrations: u64,
    /// Bytes that the server could access, integrated over time, in byte-nanoseconds.
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

    /// Adds rates, latencies and processor time of a test with the duration `took` to `line`.
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
            client_cpu_us_per_op: Some(cpu_us_per_op(client, operations)),
            server_cpu_us_per_op: server.map(|cpu| cpu_us_per_op(cpu, operations)),
            client_cpu_percent: Some(percent(client)),
            server_cpu_percent: server.map(percent),
            ..line
        }
    }
}

/// Greatest common divisor; `a` if `b` is 0.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
