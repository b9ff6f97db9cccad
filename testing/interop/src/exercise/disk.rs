//! Random reads, writes and flushes of a disk: a block device of the kernel, or a disk of an iSCSI target with the
//! initiator in user space. Every read is compared with [`millrace_crashtest::Model`].

use std::{
    fs::{File, OpenOptions},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use anyhow::{Context, Result, anyhow};
use millrace_crashtest::{Model, Random};
use millrace_iscsi_initiator::{BlockDevice, Error, Options, Url};

use super::{End, TIMEOUT};

/// The part of the disk that is used, in bytes.
const SIZE: u64 = 4 << 20;
const LONGEST: u64 = 96 << 10;
/// Alignment of offsets and lengths, and of memory for direct I/O.
const BLOCK: u64 = 4096;
const WRITERS: u64 = 4;

/// A disk.
trait Disk {
    /// Writes; with `durable`, the data is durable afterwards.
    async fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<()>;
    async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>>;
    /// Makes all completed writes durable.
    async fn flush(&self) -> Result<()>;
}

/// A disk of an iSCSI target.
struct Library {
    device: BlockDevice,
    /// Flushes that reported that data may be lost.
    losses: AtomicU64,
}

impl Disk for Library {
    async fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<()> {
        let mut buffer = self.device.buffer(data.len())?;
        buffer.copy_from_slice(data);
        self.device.write_at_from(offset, buffer.freeze().into()).await?;
        if durable { self.flush().await } else { Ok(()) }
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        Ok(self.device.read_at_into(offset, self.device.buffer(length)?).await?.to_vec())
    }

    async fn flush(&self) -> Result<()> {
        loop {
            match self.device.flush().await {
                // The page cache of the target's host survives the target, so that the data is not lost.
                Err(Error::DataLost { .. }) => _ = self.losses.fetch_add(1, Ordering::Relaxed),
                flushed => return Ok(flushed?),
            }
        }
    }
}

/// A block device, without the page cache of this host.
struct Kernel {
    direct: File,
    /// Writes with FUA, or followed by a flush.
    durable: File,
}

/// `length` bytes of memory for direct I/O in a larger vector.
fn aligned(length: usize) -> (Vec<u8>, Range<usize>) {
    let memory = vec![0; length + BLOCK as usize];
    let start = memory.as_ptr().align_offset(BLOCK as usize);
    (memory, start..start + length)
}

impl Kernel {
    fn open(path: &Path) -> Result<Self> {
        use rustix::fs::OFlags;
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(flags.bits() as i32).open(path)
        };
        let durable = open(OFlags::DIRECT | OFlags::DSYNC)?;
        Ok(Self { direct: open(OFlags::DIRECT)?, durable })
    }
}

impl Disk for Kernel {
    async fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<()> {
        let (mut memory, range) = aligned(data.len());
        memory[range.clone()].copy_from_slice(data);
        let file = if durable { &self.durable } else { &self.direct };
        Ok(file.write_all_at(&memory[range], offset)?)
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let (mut memory, range) = aligned(length);
        self.direct.read_exact_at(&mut memory[range.clone()], offset)?;
        Ok(memory[range].to_vec())
    }

    async fn flush(&self) -> Result<()> {
        Ok(self.direct.sync_data()?)
    }
}

/// The expected content, and numbers of operations.
struct Workload {
    model: Model,
    seed: u64,
    end: End,
    writes: AtomicU64,
    reads: AtomicU64,
    flushes: AtomicU64,
}

impl Workload {
    async fn run_writer(&self, disk: &impl Disk, writer: u64) -> Result<()> {
        let mut random = Random::new(self.seed ^ (writer + 1).rotate_left(32));
        while !self.end.is_reached() {
            let start = random.below(SIZE / BLOCK) * BLOCK;
            let range = start..(start + (1 + random.below(LONGEST / BLOCK)) * BLOCK).min(SIZE);
            match random.below(16) {
                0..=8 => self.write(disk, range.clone(), random.below(3) == 0).await,
                9..=13 => self.read(disk, range.clone()).await,
                _ => self.flush(disk).await,
            }
            .with_context(|| format!("writer {writer}, {range:?}"))?;
        }
        Ok(())
    }

    async fn write(&self, disk: &impl Disk, range: Range<u64>, durable: bool) -> Result<()> {
        let (id, data) = self.model.begin_write(0, range.clone());
        disk.write(range.start, &data, durable).await?;
        self.model.end(0, id);
        self.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn read(&self, disk: &impl Disk, range: Range<u64>) -> Result<()> {
        let started = self.model.begin();
        let data = disk.read(range.start, (range.end - range.start) as usize).await?;
        self.model.check(0, &started, range.start, &data)?;
        self.model.finish(started);
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn flush(&self, disk: &impl Disk) -> Result<()> {
        disk.flush().await?;
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Zeros, with which the model begins.
    async fn clear(&self, disk: &impl Disk) -> Result<()> {
        for offset in (0..SIZE).step_by(1 << 20) {
            disk.write(offset, &vec![0; 1 << 20], true).await?;
        }
        Ok(())
    }

    /// Checks everything when all writers have ended.
    async fn finish(&self, disk: &impl Disk) -> Result<()> {
        self.flush(disk).await?;
        self.read(disk, 0..SIZE).await
    }
}

/// Runs the workload on the disk of `url`, or on a block device, and prints the numbers of operations.
///
/// # Errors
/// When an operation fails, or a read returns other data than the last that was written there.
pub(super) fn run(place: &str, seed: u64, end: End) -> Result<()> {
    let (model, count) = (Model::new(1, SIZE), AtomicU64::default);
    let workload = Workload { model, seed, end, writes: count(), reads: count(), flushes: count() };
    let losses = match place.parse::<Url>() {
        Ok(url) => library(&workload, &url),
        Err(_) => kernel(&workload, Path::new(place)).map(|()| 0),
    };
    let losses = losses.with_context(|| format!("{place}, seed {seed}"))?;
    let Workload { writes, reads, flushes, .. } = workload;
    println!(
        "seed {seed}: {writes:?} writes, {reads:?} reads, {flushes:?} flushes, {losses} possible losses"
    );
    Ok(())
}

/// Runs each writer in a task. Returns the number of flushes that reported a possible loss.
fn library(workload: &Workload, url: &Url) -> Result<u64> {
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    rt.block_on(async {
        let mut options = Options::default();
        options.timeout = TIMEOUT;
        let device = BlockDevice::connect(url, &options).await?;
        let disk = Library { device, losses: AtomicU64::default() };
        workload.clear(&disk).await?;
        let writers = (0..WRITERS).map(|writer| workload.run_writer(&disk, writer));
        futures::future::try_join_all(writers).await?;
        workload.finish(&disk).await?;
        disk.device.close().await;
        Ok(disk.losses.into_inner())
    })
}

/// Runs each writer in a thread.
fn kernel(workload: &Workload, path: &Path) -> Result<()> {
    let disk = Kernel::open(path)?;
    futures_executor::block_on(workload.clear(&disk))?;
    thread::scope(|s| {
        let write = |writer| {
            let disk = &disk;
            move || futures_executor::block_on(workload.run_writer(disk, writer))
        };
        let threads: Vec<_> = (0..WRITERS).map(|writer| s.spawn(write(writer))).collect();
        let ended =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(anyhow!("a writer panicked"))));
        ended.collect::<Result<()>>()
    })?;
    futures_executor::block_on(workload.finish(&disk))
}
