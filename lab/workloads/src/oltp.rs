//! The oltp personality of FileBench: the log writer, the writers and the readers of a database.

use std::sync::Mutex;

use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use millrace_buffer::Views;
use tokio::sync::Semaphore;

use millrace_bench::{
    BenchError,
    random::Random,
    workload::{Data, Directory, Part, Tally, Workload},
};

/// Bytes of one write of the log.
const LOG_WRITE: usize = 256 << 10;
/// Reads for each write of the log, and for each round of a database writer.
const READS_PER_LOG_WRITE: u32 = 3200;
const READS_PER_ROUND: u32 = 1000;
/// Writes that a database writer starts concurrently in a round.
const WRITES_PER_ROUND: u64 = 100;
/// Size of the log in bytes. Further writes start at offset 0 again.
const LOG_BYTES: u64 = 10 << 20;

/// `oltp.f` of FileBench 1.x, with the mean I/O size of Designing 2007 (figure 8: 128 KB). Shadow processes
/// read records at random offsets of the data files. A log writer writes 256 KB for each 3,200 reads.
/// Database writers write 100 records at random offsets for each 1,000 reads. Writes are stable (`O_DSYNC`).
///
/// As in the original, all processes run on one client (here with one connection), readers and writers
/// concurrently, and semaphores maintain the ratio. The workload omits the CPU time that the original's
/// processes spend between calls (`hog`), so that only the storage limits the figures. The configuration sets
/// the number of reads instead of a duration.
#[derive(Debug, Clone)]
pub struct Oltp {
    /// Number of shadow processes, each with one read in flight. The original has 200.
    pub shadows: u32,
    /// Number of database writers. The original has 10.
    pub writers: u32,
    /// Bytes of one read, and of one write of the database.
    pub io: u32,
    /// Number of data files. The original has 10.
    pub files: u32,
    /// Bytes of each data file.
    pub file_size: u64,
    /// Total number of reads of all shadow processes.
    pub reads: u32,
    /// Seed of the random offsets.
    pub seed: u64,
}

struct Database<'a> {
    config: &'a Oltp,
    files: Vec<Data>,
    log: Data,
    record: Views,
    log_record: Views,
    random: Mutex<Random>,
    /// Reads, and rounds of database writers, that have not started.
    reads_left: Mutex<u32>,
    rounds_left: Mutex<u32>,
    /// Completed reads that the log writer and the database writers have not consumed.
    for_log: Semaphore,
    for_writers: Semaphore,
    tally: Mutex<&'a mut Tally>,
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Decrements the counter and returns true, or returns false at 0.
fn try_decrement(left: &Mutex<u32>) -> bool {
    let mut left = lock(left);
    let any = *left > 0;
    *left -= u32::from(any);
    any
}

/// Waits until `count` further reads have completed, and consumes them.
async fn wait_for(reads: &Semaphore, count: u32) {
    // Fails only on a closed semaphore; this one is never closed.
    if let Ok(permits) = reads.acquire_many(count).await {
        permits.forget();
    }
}

impl Oltp {
    /// The maximum number of operations in flight: reads, writes of the database, and one of the log.
    pub(super) const fn outstanding(&self) -> usize {
        self.shadows as usize + self.writers as usize * WRITES_PER_ROUND as usize + 1
    }

    async fn run(&self, directory: &Directory, tally: &mut Tally) -> Result<(), BenchError> {
        let records = self.file_size / u64::from(self.io.max(1));
        if self.io == 0 || records == 0 || self.files == 0 || self.shadows == 0 {
            return Err(BenchError::Parameter(
                "oltp needs at least one data file, one shadow process, and files of at least one record"
                    .into(),
            ));
        }
        let record = directory.views(&vec![0x64; self.io as usize])?;
        let mut files = Vec::new();
        for n in 0..self.files {
            let file = directory.create(&format!("data-{n}")).await?;
            for at in 0..records {
                file.write(at * u64::from(self.io), &record).await?;
            }
            file.commit().await?;
            files.push(file);
        }
        let began = tally.begin();
        let db = Database {
            config: self,
            files,
            log: directory.create("log").await?,
            record,
            log_record: directory.views(&vec![0x6c; LOG_WRITE])?,
            random: Mutex::new(Random::new(self.seed)),
            reads_left: Mutex::new(self.reads),
            rounds_left: Mutex::new(self.reads / READS_PER_ROUND * u32::from(self.writers > 0)),
            for_log: Semaphore::new(0),
            for_writers: Semaphore::new(0),
            tally: Mutex::new(&mut *tally),
        };
        let (_, log, writes) = futures::try_join!(
            db.all_reads(),
            db.write_log(),
            try_join_all((0..self.writers).map(|_| db.write()))
        )?;
        drop(db);
        let (log, writes) = (log, writes.iter().sum::<u64>());
        tally.whole("log write", log, log * LOG_WRITE as u64, &began);
        tally.whole("database write", writes, writes * u64::from(self.io), &began);
        tally.whole("all operations", u64::from(self.reads) + log + writes, 0, &began);
        Ok(())
    }
}

impl Workload for Oltp {
    fn name(&self) -> &'static str {
        "oltp"
    }

    fn outstanding(&self) -> usize {
        Self::outstanding(self)
    }

    fn bytes(&self) -> u64 {
        u64::from(self.files) * self.file_size + (32 << 20)
    }

    async fn member(&self, directory: &Directory, _: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.run(directory, tally).await
    }
}

impl Database<'_> {
    fn random_record(&self) -> (&Data, u64) {
        let io = u64::from(self.config.io);
        let mut random = lock(&self.random);
        let file = &self.files[random.below(self.files.len() as u64) as usize];
        (file, random.below(self.config.file_size / io) * io)
    }

    async fn timed<T>(
        &self,
        test: &'static str,
        operation: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<T, BenchError> {
        let began = lock(&self.tally).now();
        let out = operation.await?;
        let mut tally = lock(&self.tally);
        let took = tally.now().duration_since(began);
        tally.latency(test, took);
        Ok(out)
    }

    /// Runs the shadow processes.
    async fn all_reads(&self) -> Result<(), BenchError> {
        let began = lock(&self.tally).begin();
        try_join_all((0..self.config.shadows).map(|_| self.read())).await?;
        let (reads, io) = (u64::from(self.config.reads), u64::from(self.config.io));
        lock(&self.tally).whole("shadow read", reads, reads * io, &began);
        Ok(())
    }

    async fn read(&self) -> Result<(), BenchError> {
        while try_decrement(&self.reads_left) {
            let (file, at) = self.random_record();
            let read = self.timed("shadow read", file.read(at, self.config.io as usize, |_, _| ())).await?;
            if read != self.config.io as usize {
                return Err(BenchError::Client(format!(
                    "a READ of a data file returned {read} bytes at offset {at}"
                )));
            }
            self.for_log.add_permits(1);
            self.for_writers.add_permits(1);
        }
        Ok(())
    }

    /// Runs the log writer and returns the number of its writes.
    async fn write_log(&self) -> Result<u64, BenchError> {
        let writes = self.config.reads / READS_PER_LOG_WRITE;
        for n in 0..writes {
            wait_for(&self.for_log, READS_PER_LOG_WRITE).await;
            let at = u64::from(n) * LOG_WRITE as u64 % LOG_BYTES;
            self.timed("log write", self.log.write_stable(at, &self.log_record)).await?;
        }
        Ok(writes.into())
    }

    /// Runs a database writer and returns the number of its writes.
    async fn write(&self) -> Result<u64, BenchError> {
        let mut writes = 0;
        while try_decrement(&self.rounds_left) {
            wait_for(&self.for_writers, READS_PER_ROUND).await;
            let round = (0..WRITES_PER_ROUND).map(|_| {
                let (file, at) = self.random_record();
                self.timed("database write", file.write_stable(at, &self.record))
            });
            let round: Result<Vec<()>, _> =
                stream::iter(round).buffer_unordered(WRITES_PER_ROUND as usize).try_collect().await;
            writes += round?.len() as u64;
        }
        Ok(writes)
    }
}
