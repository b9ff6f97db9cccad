//! One thread: a runtime, a client, a file.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use futures::{StreamExt, stream::FuturesUnordered};
use millrace_buffer::{Buffer, View, Views};
use millrace_client::{
    Error,
    handles::Client,
    ops::{CreateHow, FileHandle, SetAttributes, StableHow},
};
use millrace_oncrpc::stages::StageStats;
use millrace_runtime::tokio_rt::TokioRuntime;
use tokio::sync::Mutex;

use super::{Iozone, Outcome, Run, Test};
use crate::{BenchError, VERSION, random::Random};

/// Total memory of all threads for data, in bytes, unless their files are smaller; exceeds the processor
/// caches, as with the raw streams.
pub const WORKING_SET: usize = 256 << 20;
/// Minimum size of records that use the whole working set; smaller records use few buffers, as applications
/// do.
const BULK: usize = 64 << 10;
/// Default maximum number of operations of a random test.
const RANDOM_OPS: u64 = 100_000;

/// A request to a thread.
pub(super) struct Request {
    pub(super) run: Run,
    pub(super) step: Step,
    pub(super) done: mpsc::Sender<Result<Outcome, BenchError>>,
}

/// What a thread does for a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    /// Allocates the memory for the data, and fills that of writes.
    Allocate,
    /// Runs the test.
    Measure,
}

/// Limits and provider of a thread's client.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientLimits {
    /// Maximum size of a READ in bytes.
    pub(super) rsize: usize,
    /// Maximum size of a WRITE in bytes.
    pub(super) wsize: usize,
    /// RDMA provider, if the transport is RDMA.
    pub(super) provider: Option<&'static str>,
}

impl ClientLimits {
    fn of(client: &Client) -> Self {
        let provider = client.stats().connections.first().and_then(|c| c.provider);
        Self { rsize: client.rsize() as usize, wsize: client.wsize() as usize, provider }
    }
}

/// Handle of a thread. Dropping it removes the file and ends the thread.
pub(super) struct Worker {
    requests: Option<mpsc::Sender<Request>>,
    limits: mpsc::Receiver<Result<ClientLimits, BenchError>>,
    thread: Option<JoinHandle<()>>,
}

pub(super) fn failed(e: Error) -> BenchError {
    BenchError::Client(e.to_string())
}

impl Worker {
    pub(super) fn start(number: usize, config: Arc<Iozone>) -> Result<Self, BenchError> {
        let (requests, inbox) = mpsc::channel::<Request>();
        let (say, limits) = mpsc::channel();
        let work = move || {
            let rt = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(rt) => rt,
                Err(e) => return drop(say.send(Err(BenchError::io("create a runtime")(e)))),
            };
            let file = match rt.block_on(File::make(number, &config)) {
                Ok(file) => file,
                Err(e) => return drop(say.send(Err(e))),
            };
            drop(say.send(Ok(ClientLimits::of(&file.client))));
            let file = Arc::new(Mutex::new(file));
            while let Ok(Request { run, step, done }) = inbox.recv() {
                let file = Arc::clone(&file);
                // As a task: whenever the future of `block_on` is woken, Tokio polls its driver before it.
                let work = rt.spawn(async move { file.lock().await.execute(&run, step).await });
                let outcome = rt.block_on(work);
                drop(done.send(outcome.unwrap_or_else(|e| Err(BenchError::Client(e.to_string())))));
            }
            rt.block_on(async { file.lock().await.remove().await });
        };
        let thread = std::thread::Builder::new()
            .name(format!("bench-{number}"))
            .spawn(work)
            .map_err(BenchError::io("start a thread"))?;
        Ok(Self { requests: Some(requests), limits, thread: Some(thread) })
    }

    /// Waits until the thread is connected, and returns the limits of its client.
    pub(super) fn ready(&self) -> Result<ClientLimits, BenchError> {
        self.limits.recv().map_err(|_| BenchError::Client("a thread ended early".into()))?
    }

    pub(super) fn request(&self, request: Request) -> Result<(), BenchError> {
        let gone = || BenchError::Client("a thread ended early".into());
        self.requests.as_ref().ok_or_else(gone)?.send(request).map_err(|_| gone())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(t) = self.thread.take() {
            drop(t.join());
        }
    }
}

/// The file of one thread, and its client.
pub struct File {
    /// The client.
    pub client: Client,
    dir: FileHandle,
    name: String,
    handle: FileHandle,
    size: u64,
    /// Size of this thread's part of the working set in bytes.
    working_set: usize,
    /// Buffers for reads, used in rotation.
    spare: VecDeque<Buffer>,
    /// Data for writes, in pieces of at most 1 MiB.
    pattern: Vec<View>,
    /// Generator of the offsets of random tests.
    random: Random,
}

/// Registrations and exposed memory of a client so far.
pub struct Exposure {
    /// Number of memory registrations.
    registrations: u64,
    /// Bytes that the server could access, integrated over time, in byte-nanoseconds.
    byte_nanoseconds: u128,
    stages: StageStats,
}

impl Exposure {
    /// The current values of `client`.
    pub fn of(client: &Client) -> Self {
        let stats = client.stats();
        let exposed = stats.connections.iter().filter_map(|c| c.requester.as_ref());
        Self {
            registrations: client.registration_stats().registrations,
            byte_nanoseconds: exposed.map(|r| r.exposure.byte_nanoseconds).sum(),
            stages: stats.stages,
        }
    }

    /// Adds the difference to `earlier` to `out`.
    pub fn add_since(&self, earlier: &Self, out: &mut Outcome) {
        out.registrations += self.registrations.saturating_sub(earlier.registrations);
        out.exposed_byte_nanoseconds += self.byte_nanoseconds.saturating_sub(earlier.byte_nanoseconds);
        out.stages = out.stages.plus(&self.stages.since(&earlier.stages));
    }
}

impl File {
    async fn make(number: usize, config: &Iozone) -> Result<Self, BenchError> {
        let rt = TokioRuntime::current();
        let mut options = config.options.clone().measure_exposure(true);
        options.vers.get_or_insert(VERSION);
        let client = Client::connect(rt, &config.url, options).await.map_err(failed)?;
        let share = WORKING_SET / config.threads;
        // The process id separates concurrent processes.
        let name = format!("millrace-bench-{}-{number}", std::process::id());
        Self::of(client, (number, name), config.size, share).await
    }

    /// Creates the empty file `name`, which tests fill to `size` bytes. `number` is the seed of its random
    /// offsets, and `share` limits the memory for its data, in bytes.
    ///
    /// # Errors
    /// The file cannot be created.
    pub async fn of(
        client: Client,
        (number, name): (usize, String),
        size: u64,
        share: usize,
    ) -> Result<Self, BenchError> {
        let (dir, _) = client.resolve(client.path_in_export()).await.map_err(failed)?;
        let how = CreateHow::Unchecked(SetAttributes {
            mode: Some(0o600),
            size: Some(0),
            ..SetAttributes::default()
        });
        let made = client.create(dir, &name, how).await.map_err(failed)?;
        Ok(Self {
            client,
            dir,
            name,
            handle: made.handle,
            size,
            working_set: usize::try_from(size).unwrap_or(usize::MAX).min(share),
            spare: VecDeque::new(),
            pattern: Vec::new(),
            random: Random::new(number as u64),
        })
    }

    async fn remove(&self) {
        if let Err(e) = self.client.remove(self.dir, &self.name).await {
            tracing::warn!("cannot remove a benchmark file: {e}");
        }
        self.client.shutdown().await;
    }

    async fn execute(&mut self, run: &Run, step: Step) -> Result<Outcome, BenchError> {
        match step {
            Step::Allocate => self.allocate(run).map(|()| Outcome::default()),
            Step::Measure => self.measure(run).await,
        }
    }

    /// Runs a test, and adds the registrations and exposed memory.
    async fn measure(&mut self, run: &Run) -> Result<Outcome, BenchError> {
        let before = Exposure::of(&self.client);
        let mut out = self.run(run).await?;
        Exposure::of(&self.client).add_since(&before, &mut out);
        Ok(out)
    }

    /// Runs a test without recording registrations and exposed memory ([`Exposure`]).
    ///
    /// # Errors
    /// An operation fails.
    pub async fn run(&mut self, run: &Run) -> Result<Outcome, BenchError> {
        if run.test == Test::Write {
            // Truncate, so that the file has no blocks.
            let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
            self.client.setattr(self.handle, cut, None).await.map_err(failed)?;
        }
        self.allocate(run)?;
        if run.test.writes() { self.write(run).await } else { self.read(run).await }
    }

    /// Allocates the memory for the data of a run, unless it exists. The memory of reads is not touched.
    fn allocate(&mut self, run: &Run) -> Result<(), BenchError> {
        if run.test.writes() { self.make_pattern(run.record.min(1 << 20)) } else { self.make_spare(run) }
    }

    fn make_spare(&mut self, run: &Run) -> Result<(), BenchError> {
        let fits = |b: &Buffer| b.capacity() == run.record.next_power_of_two().max(512);
        self.spare.retain(fits);
        let wanted = if run.record >= BULK { self.working_set / run.record } else { 0 };
        let wanted = wanted.max(run.outstanding);
        self.spare.truncate(wanted);
        while self.spare.len() < wanted {
            self.spare.push_back(self.client.arena().alloc(run.record)?);
        }
        Ok(())
    }

    fn make_pattern(&mut self, piece: usize) -> Result<(), BenchError> {
        if !self.pattern.is_empty() {
            return Ok(());
        }
        let step = piece.max(1 << 20);
        let total = self.working_set.max(step);
        for n in 0..total.div_ceil(step) {
            let mut b = self.client.arena().alloc(step)?;
            b.fill(n as u8 ^ 0x5a);
            self.pattern.push(b.freeze());
        }
        Ok(())
    }

    /// The data to write at `offset`.
    fn data(&self, offset: u64, len: usize) -> Views {
        let step = self.pattern.first().map_or(1, |v| v.len());
        let total = (self.pattern.len() * step) as u64;
        let mut at = (offset % total.max(1)) as usize;
        let mut out = Views::new();
        let mut left = len;
        while left > 0 {
            let Some(view) = self.pattern.get(at / step % self.pattern.len().max(1)) else { break };
            let from = at % step;
            let n = left.min(step - from);
            out.push(view.slice(from, n));
            at += n;
            left -= n;
        }
        out
    }

    /// The offsets of a run's operations.
    fn offsets(&mut self, run: &Run) -> Offsets {
        let records = (self.size / run.record as u64).max(1);
        let ops = match (run.test.random(), run.random_ops) {
            (true, 0) => records.min(RANDOM_OPS),
            (true, n) => n,
            (false, _) => records * run.passes.max(1),
        };
        Offsets {
            at: 0,
            ops,
            records,
            record: run.record as u64,
            random: run.test.random().then(|| Random::new(self.random.next())),
        }
    }

    async fn read(&mut self, run: &Run) -> Result<Outcome, BenchError> {
        let mut offsets = self.offsets(run);
        let mut out = Outcome::default();
        let mut flights = FuturesUnordered::new();
        let (client, handle, spare) = (&self.client, self.handle, &mut self.spare);
        loop {
            while let Some(offset) = if flights.len() < run.outstanding { offsets.next() } else { None } {
                let Some(mut buffer) = spare.pop_front() else { break };
                buffer.set_len(run.record);
                flights.push(async move {
                    let (clock, sent) = (client.runtime(), client.runtime().now());
                    let read = client.read_into(handle, offset, buffer).await;
                    read.map(|r| (r, clock.now().duration_since(sent)))
                });
            }
            let Some(done) = flights.next().await else { return Ok(out) };
            let (read, latency) = done.map_err(failed)?;
            if read.count != run.record {
                return Err(BenchError::Client(format!(
                    "READ returned {} of {} bytes",
                    read.count, run.record
                )));
            }
            out.bytes += read.count as u64;
            out.latencies.record(latency);
            spare.push_back(read.buffer);
        }
    }

    async fn write(&mut self, run: &Run) -> Result<Outcome, BenchError> {
        let mut offsets = self.offsets(run);
        let mut out = Outcome::default();
        let mut flights = FuturesUnordered::new();
        let this = &*self;
        loop {
            while let Some(offset) = if flights.len() < run.outstanding { offsets.next() } else { None } {
                let data = this.data(offset, run.record);
                flights.push(async move {
                    let (clock, sent) = (this.client.runtime(), this.client.runtime().now());
                    let written =
                        this.client.write_from(this.handle, offset, data, StableHow::Unstable).await;
                    written.map(|w| (w, clock.now().duration_since(sent)))
                });
            }
            let Some(done) = flights.next().await else { break };
            let (written, latency) = done.map_err(failed)?;
            if written.count != run.record {
                return Err(BenchError::Client(format!(
                    "WRITE accepted {} of {} bytes",
                    written.count, run.record
                )));
            }
            out.bytes += written.count as u64;
            out.latencies.record(latency);
        }
        this.client.commit(this.handle, 0, 0).await.map_err(failed)?;
        Ok(out)
    }
}

/// Offsets of records, in order or random.
struct Offsets {
    at: u64,
    ops: u64,
    records: u64,
    record: u64,
    random: Option<Random>,
}

impl Iterator for Offsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.at >= self.ops {
            return None;
        }
        let n = match &mut self.random {
            None => self.at % self.records,
            Some(random) => random.below(self.records),
        };
        self.at += 1;
        Some(n * self.record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_and_random_offsets_are_within_the_file() {
        let all: Vec<_> = Offsets { at: 0, ops: 5, records: 3, record: 10, random: None }.collect();
        assert_eq!(all, [0, 10, 20, 0, 10]);
        let some: Vec<_> =
            Offsets { at: 0, ops: 1000, records: 8, record: 4096, random: Some(Random::new(7)) }.collect();
        assert_eq!(some.len(), 1000);
        assert!(some.iter().all(|o| o % 4096 == 0 && *o < 8 * 4096));
        assert!((0..8).all(|n| some.contains(&(n * 4096))));
    }
}
