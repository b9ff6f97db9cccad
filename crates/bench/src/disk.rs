//! Reads and writes of a disk of an iSCSI target.
//!
//! A number of operations is kept in flight. Memory for data is allocated before the measurement: reads reuse
//! their buffers, and writes share views of them.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, channel::mpsc as asynchronous, stream::FuturesUnordered};
use millrace_iscsi_initiator::{BlockDevice, Buffer, Error, Options, Transport, Url, View};
use millrace_program::cpu;
use millrace_runtime::{RuntimeRef, tokio_rt::TokioRuntime};

use crate::{
    BenchError, Figure,
    embedded::EmbeddedServer,
    iozone::{Outcome, Test},
    no_halt,
    random::Random,
};

/// Parameters of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct DiskRun {
    /// The test. There is no difference between writing and rewriting, or reading and rereading.
    pub test: Test,
    /// Bytes of an operation, a multiple of the disk's block size and at most 4 MiB.
    pub record: usize,
    /// Number of operations in flight.
    pub outstanding: usize,
    /// Number of operations. Sequential tests begin again at the start of the disk.
    pub operations: u64,
    /// Bytes of the disk that are used, from its start.
    pub span: u64,
    /// Bytes of memory for data, at least one buffer for each operation in flight.
    pub memory: usize,
    /// Whether writes end with one flush, which is included in the time.
    pub flush: bool,
}

fn failed(e: Error) -> BenchError {
    BenchError::Client(e.to_string())
}

/// A measurement whose memory is allocated.
pub struct Prepared<'a> {
    run: &'a DiskRun,
    /// Records of the disk.
    records: u64,
    disk: &'a BlockDevice,
    rt: &'a RuntimeRef,
    started: Cell<u64>,
    random: RefCell<Random>,
    /// Buffers of reads.
    free: RefCell<VecDeque<Buffer>>,
    /// Data of writes.
    data: Vec<View>,
    outcome: RefCell<Outcome>,
}

impl DiskRun {
    /// Allocates the memory of a test on `disk`.
    ///
    /// # Errors
    /// A parameter is invalid, or the memory is exhausted.
    pub fn prepare<'a>(
        &'a self,
        disk: &'a BlockDevice,
        rt: &'a RuntimeRef,
    ) -> Result<Prepared<'a>, BenchError> {
        let span = self.span.min(disk.capacity());
        if self.record == 0 || self.record as u64 > span || self.outstanding == 0 {
            return Err(BenchError::Parameter(format!(
                "{} operations of {} bytes in flight; choose at least one, of at most the {span} bytes of the disk",
                self.outstanding, self.record
            )));
        }
        let count = (self.memory / self.record).max(self.outstanding);
        let mut random = Random::new(1);
        let buffer = |_| {
            let mut buffer = disk.buffer(self.record).map_err(failed)?;
            buffer.fill(random.next() as u8);
            Ok(buffer)
        };
        let mut buffers = (0..count).map(buffer).collect::<Result<VecDeque<_>, BenchError>>()?;
        let data = match self.test.writes() {
            true => buffers.drain(..).map(Buffer::freeze).collect(),
            false => Vec::new(),
        };
        Ok(Prepared {
            run: self,
            records: span / self.record as u64,
            disk,
            rt,
            started: Cell::new(0),
            random: RefCell::new(random),
            free: RefCell::new(buffers),
            data,
            outcome: RefCell::default(),
        })
    }
}

impl Prepared<'_> {
    /// Runs the test. Returns its outcome and duration, in the time of the runtime.
    ///
    /// # Errors
    /// An operation fails.
    pub async fn run(self) -> Result<(Outcome, Duration), BenchError> {
        let start = self.rt.now();
        // `try_join_all` would poll all workers at each wake-up.
        let workers: FuturesUnordered<_> = (0..self.run.outstanding).map(|_| self.worker()).collect();
        workers.try_collect::<()>().await.map_err(failed)?;
        if self.run.flush && self.run.test.writes() {
            self.disk.flush().await.map_err(failed)?;
        }
        Ok((self.outcome.into_inner(), self.rt.now().duration_since(start)))
    }

    /// One operation after another.
    async fn worker(&self) -> Result<(), Error> {
        while self.started.get() < self.run.operations {
            let number = self.started.replace(self.started.get() + 1);
            let record = match self.run.test {
                Test::RandomRead | Test::RandomWrite => self.random.borrow_mut().below(self.records),
                _ => number % self.records,
            };
            let offset = record * self.run.record as u64;
            let sent = self.rt.now();
            if let Some(data) = self.data.get(number as usize % self.data.len().max(1)) {
                self.disk.write_at_from(offset, data.clone().into()).await?;
            } else {
                let free = self.free.borrow_mut().pop_front();
                let buffer = free.map_or_else(|| self.disk.buffer(self.run.record), Ok)?;
                let buffer = self.disk.read_at_into(offset, buffer).await?;
                self.free.borrow_mut().push_back(buffer);
            }
            let mut outcome = self.outcome.borrow_mut();
            outcome.bytes += self.run.record as u64;
            outcome.latencies.record(self.rt.now().duration_since(sent));
        }
        Ok(())
    }
}

/// A thread with a runtime and a connected disk, which stays connected between measurements.
pub struct DiskSession {
    transport: Transport,
    requests: Option<asynchronous::UnboundedSender<Request>>,
    thread: Option<JoinHandle<()>>,
}

/// A request to the thread.
struct Request {
    run: DiskRun,
    /// Process of the server.
    server: u32,
    done: mpsc::Sender<Result<Figure, BenchError>>,
}

impl DiskSession {
    /// Connects a thread to the disk of `url`. `memory` limits the memory for data of a run, in bytes.
    ///
    /// # Errors
    /// The disk cannot be connected.
    pub fn open(url: Url, mut options: Options, memory: usize) -> Result<Self, BenchError> {
        options.memory = options.memory.saturating_add(memory);
        let transport = url.transport;
        let (requests, inbox) = asynchronous::unbounded();
        let (connected, result) = mpsc::channel();
        let work = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(rt) => rt.block_on(serve(&url, &options, inbox, &connected)),
            Err(e) => drop(connected.send(Err(BenchError::io("create a runtime")(e)))),
        };
        let thread = std::thread::Builder::new().name("bench-disk".into()).spawn(work);
        let thread = thread.map_err(BenchError::io("start a thread"))?;
        result.recv().map_err(|_| ended())??;
        Ok(Self { transport, requests: Some(requests), thread: Some(thread) })
    }

    /// Runs one measurement. The processor time of the server is that of `server`.
    ///
    /// # Errors
    /// A parameter is invalid, or an operation fails.
    pub fn run(&self, run: &DiskRun, server: &EmbeddedServer) -> Result<Figure, BenchError> {
        let (done, figure) = mpsc::channel();
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        let request = Request { run: *run, server: server.pid(), done };
        requests.unbounded_send(request).map_err(|_| ended())?;
        let figure = figure.recv().map_err(|_| ended())??;
        Ok(self.line(run, figure))
    }

    /// Adds the parameters of a run to its figure.
    fn line(&self, run: &DiskRun, figure: Figure) -> Figure {
        let rdma = self.transport == Transport::Iser;
        Figure {
            workload: "disk".into(),
            test: run.test.to_string(),
            proto: if rdma { "iser" } else { "iscsi" }.into(),
            provider: rdma.then(|| "iwarp".into()),
            threads: 1,
            no_halt: Some(no_halt::held()),
            record: run.record as u64,
            outstanding: run.outstanding,
            ..figure
        }
    }
}

impl Drop for DiskSession {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn ended() -> BenchError {
    BenchError::Client("a thread ended early".into())
}

/// Connects, and executes requests.
async fn serve(
    url: &Url,
    options: &Options,
    mut inbox: asynchronous::UnboundedReceiver<Request>,
    connected: &mpsc::Sender<Result<(), BenchError>>,
) {
    let disk = match BlockDevice::connect(url, options).await {
        Ok(disk) => disk,
        Err(e) => return drop(connected.send(Err(failed(e)))),
    };
    drop(connected.send(Ok(())));
    let rt = TokioRuntime::current();
    while let Some(request) = inbox.next().await {
        drop(request.done.send(measure(&request, &disk, &rt).await));
    }
    disk.close().await;
}

/// The measured values of a run.
async fn measure(request: &Request, disk: &BlockDevice, rt: &RuntimeRef) -> Result<Figure, BenchError> {
    let prepared = request.run.prepare(disk, rt)?;
    let (client, server) = (cpu::own(), cpu::of(request.server));
    let (outcome, took) = prepared.run().await?;
    let server = cpu::of(request.server).zip(server).map(|(after, before)| after - before);
    Ok(outcome.figure(Figure::default(), took, cpu::own() - client, server))
}
