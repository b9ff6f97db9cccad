//! Reads and writes of a disk of an iSCSI target.
//!
//! A number of operations is kept in flight. Memory for data is allocated before the measurement: reads reuse
//! their buffers, and writes share views of them.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    time::Duration,
};

use futures::future::try_join_all;
use millrace_block::{BlockDevice, Buffer, Error, View};
use millrace_runtime::RuntimeRef;

use crate::{
    BenchError,
    iozone::{Outcome, Test},
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

/// A measurement in progress.
struct Running<'a> {
    run: &'a DiskRun,
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
    /// Runs the test on `disk`. Returns its outcome and duration, in the time of `rt`.
    ///
    /// # Errors
    /// A parameter is invalid, or an operation fails.
    pub async fn run(&self, disk: &BlockDevice, rt: &RuntimeRef) -> Result<(Outcome, Duration), BenchError> {
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
        let running = Running {
            run: self,
            disk,
            rt,
            started: Cell::new(0),
            random: RefCell::new(random),
            free: RefCell::new(buffers),
            data,
            outcome: RefCell::default(),
        };
        let start = rt.now();
        try_join_all((0..self.outstanding).map(|_| running.worker(span / self.record as u64)))
            .await
            .map_err(failed)?;
        if self.flush && self.test.writes() {
            disk.flush().await.map_err(failed)?;
        }
        Ok((running.outcome.into_inner(), rt.now().duration_since(start)))
    }
}

impl Running<'_> {
    /// One operation after another, on a disk with `records` records.
    async fn worker(&self, records: u64) -> Result<(), Error> {
        while self.started.get() < self.run.operations {
            let number = self.started.replace(self.started.get() + 1);
            let record = match self.run.test {
                Test::RandomRead | Test::RandomWrite => self.random.borrow_mut().below(records),
                _ => number % records,
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
