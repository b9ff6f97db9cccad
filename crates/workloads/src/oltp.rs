//! The oltp personality of FileBench: a database's log writer, writers and readers.

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
/// Reads for one write of the log, and for one round of a database writer.
const READS_PER_LOG_WRITE: u32 = 3200;
const READS_PER_ROUND: u32 = 1000;
/// Writes that a database writer starts together in a round.
const WRITES_PER_ROUND: u64 = 100;
/// Where the log begins again.
const LOG_BYTES: u64 = 10 << 20;

/// `oltp.f` of FileBench 1.x, with the mean I/O of Designing 2007 (figure 8: 128 KB): shadow processes read records
/// at random places of the data files; a log writer writes 256 KB for each 3,200 reads; database writers write 100
/// records at random places for each 1,000 reads. Writes are stable before they count (`O_DSYNC`).
///
/// As in the original all run on one client (one connection here), readers and writers at once, and semaphores keep the
/// proportion. Left out: the time that the original's processes burn between calls (`hog`), so the figures are what
/// storage allows. The number of reads is given, not the time.
#[derive(Debug, Clone)]
pub struct Oltp {
    /// Shadow processes: reads in flight. The original has 200.
    pub shadows: u32,
    /// Database writers. The original has 10.
    pub writers: u32,
    /// Bytes of one read, and of one write of the database.
    pub io: u32,
    /// Data files. The original has 10.
    pub files: u32,
    /// Bytes of each.
    pub file_size: u64,
    /// Reads, of all shadow processes together.
    pub reads: u32,
    /// What decides on places.
    pub seed: u64,
}

struct Database<'a> {
    config: &'a Oltp,
    files: Vec<Data>,
    log: Data,
    record: Views,
    log_record: Views,
    random: Mutex<Random>,
    /// Reads, and rounds of database writers, that are still to begin.
    reads_left: Mutex<u32>,
    rounds_left: Mutex<u32>,
    /// What reads have done for the log writer and for the database writers.
    for_log: Semaphore,
    for_writers: Semaphore,
    tally: Mutex<&'a mut Tally>,
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes one of what is left, if there is any.
fn take_one(left: &Mutex<u32>) -> bool {
    let mut left = lock(left);
    let any = *left > 0;
    *left -= u32::from(any);
    any
}

/// Waits until that many reads were made since the last time.
async fn wait_for(reads: &Semaphore, count: u32) {
    // Fails only when it is closed, which it never is.
    if let Ok(permits) = reads.acquire_many(count).await {
        permits.forget();
    }
}

impl Oltp {
    /// The most operations in flight: reads, writes of the database, and one of the log.
    pub(super) const fn outstanding(&self) -> usize {
        self.shadows as usize + self.writers as usize * WRITES_PER_ROUND as usize + 1
    }

    async fn run(&self, directory: &Directory, tally: &mut Tally) -> Result<(), BenchError> {
        let records = self.file_size / u64::from(self.io.max(1));
        if self.io == 0 || records == 0 || self.files == 0 || self.shadows == 0 {
            return Err(BenchError::Parameter(
                "oltp needs at least one data file, one shadow process, and files that hold a record".into(),
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
    fn somewhere(&self) -> (&Data, u64) {
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

    /// The shadow processes.
    async fn all_reads(&self) -> Result<(), BenchError> {
        let began = lock(&self.tally).begin();
        try_join_all((0..self.config.shadows).map(|_| self.read())).await?;
        let (reads, io) = (u64::from(self.config.reads), u64::from(self.config.io));
        lock(&self.tally).whole("shadow read", reads, reads * io, &began);
        Ok(())
    }

    async fn read(&self) -> Result<(), BenchError> {
        while take_one(&self.reads_left) {
            let (file, at) = self.somewhere();
            let read = self.timed("shadow read", file.read(at, self.config.io as usize, |_, _| ())).await?;
            if read != self.config.io as usize {
                return Err(BenchError::Client(format!("a data file gave {read} bytes at {at}")));
            }
            self.for_log.add_permits(1);
            self.for_writers.add_permits(1);
        }
        Ok(())
    }

    /// The log writer: gives the number of its writes.
    async fn write_log(&self) -> Result<u64, BenchError> {
        let writes = self.config.reads / READS_PER_LOG_WRITE;
        for n in 0..writes {
            wait_for(&self.for_log, READS_PER_LOG_WRITE).await;
            let at = u64::from(n) * LOG_WRITE as u64 % LOG_BYTES;
            self.timed("log write", self.log.write_stable(at, &self.log_record)).await?;
        }
        Ok(writes.into())
    }

    /// A database writer: gives the number of its writes.
    async fn write(&self) -> Result<u64, BenchError> {
        let mut writes = 0;
        while take_one(&self.rounds_left) {
            wait_for(&self.for_writers, READS_PER_ROUND).await;
            let round = (0..WRITES_PER_ROUND).map(|_| {
                let (file, at) = self.somewhere();
                self.timed("database write", file.write_stable(at, &self.record))
            });
            let round: Result<Vec<()>, _> =
                stream::iter(round).buffer_unordered(WRITES_PER_ROUND as usize).try_collect().await;
            writes += round?.len() as u64;
        }
        Ok(writes)
    }
}
