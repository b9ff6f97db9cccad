//! Random operations of several tasks on a device, with faults of the network and crashes of the target, which loses
//! unstable data.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::{Either, join, join_all, select};
use millrace_crashtest::{Disk, DiskConfig, Random, seeds::RunStats, unstable::choice};
use millrace_iscsi_initiator::{BlockDevice, Buffer, DigestPolicy, Error, Options, Transport, View, Views};
use millrace_rdma_sim::{Faults, Profile, Seed, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, timeout, virtual_time::VirtualTime};
use millrace_scsi::BlockSize;
use millrace_vfs::FileSystemRef;

use crate::{
    cluster::{Cluster, url},
    model::{Model, SECTOR},
    sparse::Sparse,
};

/// Tasks that use the device at the same time.
const TASKS: usize = 4;
/// Steps of each task in a session.
const STEPS: usize = 25;
/// Sessions of the device: each opens and closes it.
const SESSIONS: usize = 2;
/// Bytes that a command of the device transfers at most, as all larger operations are divided.
const MAX_COMMAND: u64 = 1 << 20;
/// Time limit of a run, in virtual time.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Counters of the events in all runs of this process.
#[derive(Debug, Default)]
pub(crate) struct Occurred {
    /// Flushes that reported a loss.
    pub(crate) losses: AtomicU64,
    /// Operations that failed at their time limit.
    pub(crate) timeouts: AtomicU64,
    /// Operations whose futures were dropped.
    pub(crate) cancelled: AtomicU64,
    /// Resets of the disk by another initiator.
    pub(crate) resets: AtomicU64,
    /// Operations of more than one command.
    pub(crate) divided: AtomicU64,
}

pub(crate) static OCCURRED: Occurred = Occurred {
    losses: AtomicU64::new(0),
    timeouts: AtomicU64::new(0),
    cancelled: AtomicU64::new(0),
    resets: AtomicU64::new(0),
    divided: AtomicU64::new(0),
};

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The parameters of a run.
struct Plan {
    transport: Transport,
    options: Options,
    /// Size of the disk in bytes.
    size: u64,
    /// Length of a block of the disk in bytes.
    block: u64,
    faults: Faults,
    /// Whether the target crashes, and futures are dropped.
    crashes: bool,
    cancels: bool,
}

/// Runs `seed`; stores the world in `shown` as soon as it exists.
pub(crate) fn run(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
) -> Result<RunStats, String> {
    let world = World::new(time, Profile::named("sdr-opensolaris").map_err(|e| e.to_string())?);
    shown.set(Some(world.clone()));
    if trace {
        world.begin_trace(seed);
    }
    let rt = time.runtime();
    let all = timeout(&*rt, LIMIT, run_world(time, world, seed));
    let stats = time.block_on(all).map_err(|stuck| stuck.to_string())?;
    stats.ok_or_else(|| format!("the run exceeded {LIMIT:?}"))?
}

async fn run_world(time: &VirtualTime, world: World, seed: Seed) -> Result<RunStats, String> {
    let mut random = Random::new(seed.0);
    let config = DiskConfig { latency: Duration::from_millis(2), wcc_before: true, seed: seed.0 };
    let disk = Disk::new(time.runtime(), config);
    let fs: FileSystemRef = match random.below(2) {
        0 => Sparse::new(Arc::clone(&disk)),
        _ => Arc::clone(&disk) as _,
    };
    let block_size = choice(&mut random, &[BlockSize::B512, BlockSize::B4096]);
    let size = if random.below(8) > 0 { 64 << 10 } else { 3 << 20 };
    let cluster = RefCell::new(Cluster::new(time, world, fs, (size, block_size)).await);
    Cluster::start(&cluster, time).await;
    let plan = plan(&cluster.borrow(), &mut random, size, block_size);
    let model = Model::new(size);
    let mut crashes = 0;
    for _ in 0..SESSIONS {
        let session = Session { plan: &plan, model: &model, rt: &time.runtime(), parts: Cell::new(0) };
        crashes += session.run(time, &cluster, &disk, &mut random).await?;
    }
    time.runtime().sleep(Duration::from_secs(120)).await;
    let cluster = cluster.into_inner();
    let (world, used) = (&cluster.world, cluster.memory.stats().in_use);
    if world.exposed() != (0, 0) || used != 0 {
        return Err(format!(
            "at the end, {:?} is exposed, and the target uses {used} bytes",
            world.exposed()
        ));
    }
    let reconnects = cluster.stats.connections.load(Ordering::Relaxed) - SESSIONS as u64;
    Ok(RunStats { trace: world.trace(), reconnects, crashes, replayed: 0 })
}

fn plan(cluster: &Cluster, random: &mut Random, size: u64, block_size: BlockSize) -> Plan {
    let transport = choice(random, &[Transport::Tcp, Transport::Iser]);
    let mut options = cluster.options();
    options.queue_depth = choice(random, &[1, 3, 128]);
    options.memory = 32 << 20;
    if transport == Transport::Tcp {
        options.digests = choice(random, &[DigestPolicy::Accept, DigestPolicy::Require]);
    }
    // TCP sends about this number of segments per RDMA message.
    let parts = if transport == Transport::Tcp { 4 } else { 1 };
    // Every fourth run has no fault of the network.
    let some = random.below(4).min(1) * parts;
    let faults = Faults {
        lose_one_in: choice(random, &[0, 60, 200]) * some,
        delay_one_in: choice(random, &[0, 50]) * some,
        longest_delay: Duration::from_millis(choice(random, &[20, 8000])),
        stall_one_in: choice(random, &[0, 300]) * some,
        longest_stall: Duration::from_millis(choice(random, &[50, 8000])),
    };
    let (crashes, cancels) = (random.below(4) > 0, random.below(3) == 0);
    Plan { transport, options, size, block: block_size.bytes().into(), faults, crashes, cancels }
}

/// The use of a device from its opening to its close.
struct Session<'a> {
    plan: &'a Plan,
    model: &'a Model,
    rt: &'a RuntimeRef,
    /// Commands that change the device or read from it, if none is sent twice.
    parts: Cell<u64>,
}

impl Session<'_> {
    /// Returns the number of crashes of the target.
    async fn run(
        &self,
        time: &VirtualTime,
        cluster: &RefCell<Cluster>,
        disk: &Disk,
        random: &mut Random,
    ) -> Result<u64, String> {
        let device = self.connect().await?;
        let memory = free(&device);
        let before = executed(&cluster.borrow());
        let (world, stats) = (cluster.borrow().world.clone(), Arc::clone(&cluster.borrow().stats));
        world.set_faults(self.plan.faults.clone());
        let connections = stats.connections.load(Ordering::Relaxed);
        let done = Cell::new(false);
        let mut seeds: Vec<_> = (0..TASKS).map(|_| Random::new(random.next_u64())).collect();
        let tasks = async {
            let ended = join_all(seeds.iter_mut().map(|random| self.task(&device, random))).await;
            done.set(true);
            ended.into_iter().collect::<Result<(), String>>()
        };
        let (ended, crashes) = join(tasks, self.disturb(time, cluster, disk, random, &done)).await;
        ended?;
        world.set_faults(Faults::default());
        self.flush(&device, true).await?;
        self.read(&device, 0..self.plan.size.min(4 << 20)).await?;
        let exposed = world.exposed();
        if !self.plan.cancels && exposed != (0, 0) {
            return Err(format!("{exposed:?} is exposed after the outcomes of all operations"));
        }
        device.close().await;
        self.model.quiet();
        let same = stats.connections.load(Ordering::Relaxed) == connections;
        let sent = executed(&cluster.borrow()) - before;
        if same && crashes == (0, 0) && sent != self.parts.get() {
            return Err(format!("{} commands were executed as {sent}", self.parts.get()));
        }
        let left = free(&device);
        if left != memory {
            return Err(format!("{left} buffers are free instead of {memory}"));
        }
        Ok(crashes.0)
    }

    /// Opens the device. The target may be absent for a while.
    async fn connect(&self) -> Result<BlockDevice, String> {
        loop {
            match BlockDevice::connect(&url(self.plan.transport), &self.plan.options).await {
                Ok(device) => return Ok(device),
                Err(Error::Connect { .. } | Error::Lost { .. } | Error::LoginLost { .. }) => {
                    self.rt.sleep(Duration::from_secs(1)).await;
                }
                Err(e) => return Err(format!("cannot open the device: {e}")),
            }
        }
    }

    /// Crashes and restarts the target, and resets its disk. Returns the numbers of crashes and resets.
    async fn disturb(
        &self,
        time: &VirtualTime,
        cluster: &RefCell<Cluster>,
        disk: &Disk,
        random: &mut Random,
        done: &Cell<bool>,
    ) -> (u64, u64) {
        let (mut crashes, mut resets, mut losses) = (0, 0, 0);
        loop {
            self.rt.sleep(Duration::from_micros(random.below(40_000))).await;
            // No faults after the twelfth event: a hanging run then reaches its time limit.
            let enough = crashes + resets + losses == 12;
            if done.get() || enough || !self.plan.crashes {
                return (crashes, resets);
            }
            match random.below(7) {
                // The file system restarts, and the target continues.
                3 if losses < 4 => {
                    disk.lose();
                    self.model.lost();
                    losses += 1;
                }
                0 if resets < 4 => {
                    cluster.borrow().reset();
                    count(&OCCURRED.resets);
                    resets += 1;
                }
                1 | 2 if crashes < 4 => {
                    cluster.borrow_mut().crash();
                    disk.lose();
                    self.model.lost();
                    // The server is rarely down for longer than the time limit of operations.
                    let longest = choice(random, &[10_000, 3_000_000, 3_000_000, 100_000_000]);
                    self.rt.sleep(Duration::from_micros(random.below(longest))).await;
                    Cluster::start(cluster, time).await;
                    crashes += 1;
                }
                _ => {}
            }
        }
    }

    /// A task that uses the device.
    async fn task(&self, device: &BlockDevice, random: &mut Random) -> Result<(), String> {
        for step in 0..STEPS {
            let range = self.range(random);
            let operation = async {
                match random.below(16) {
                    0..=6 => self.write(device, range, random.below(3) == 0).await,
                    7..=10 => self.read(device, range).await,
                    11 => self.write_zeroes(device, range).await,
                    12 => self.discard(device, range).await,
                    _ => self.flush(device, false).await,
                }
            };
            let operation = std::pin::pin!(operation);
            operation.await.map_err(|e| format!("step {step}: {e}"))?;
        }
        Ok(())
    }

    /// A random range of blocks; a few contain most of the writes.
    fn range(&self, random: &mut Random) -> Range<u64> {
        let Plan { size, block, .. } = *self.plan;
        let longest = choice(random, &[1, 4, 16, size / block / 2]);
        let start = random.below(size / block);
        let length = (1 + random.below(longest)).min(size / block - start);
        start * block..(start + length) * block
    }

    /// Waits for an operation, or drops it. Returns `None` if it was dropped.
    async fn outcome<T>(
        &self,
        range: &Range<u64>,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        let parts = (range.end - range.start).div_ceil(MAX_COMMAND);
        self.parts.set(self.parts.get() + parts);
        if parts > 1 {
            count(&OCCURRED.divided);
        }
        let rare = self.plan.cancels && self.rt.random_u64().is_multiple_of(8);
        let patience = Duration::from_micros(self.rt.random_u64() % 3000);
        let patience = if rare { patience } else { LIMIT };
        match select(std::pin::pin!(operation), self.rt.sleep(patience)).await {
            Either::Left((outcome, _)) => {
                if let Err(Error::TimedOut { .. }) = &outcome {
                    count(&OCCURRED.timeouts);
                }
                Some(outcome)
            }
            Either::Right(_) => {
                count(&OCCURRED.cancelled);
                None
            }
        }
    }

    /// Records the outcome of a change of the device.
    fn changed(&self, id: usize, outcome: Option<Result<(), Error>>) -> Result<(), String> {
        match outcome {
            Some(Ok(())) => self.model.end_write(id, true),
            Some(Err(Error::TimedOut { .. })) => self.model.end_write(id, false),
            Some(Err(e)) => return Err(e.to_string()),
            None => {}
        }
        Ok(())
    }

    /// Writes data in one piece or several.
    async fn write(&self, device: &BlockDevice, range: Range<u64>, pieces: bool) -> Result<(), String> {
        let id = self.model.begin_write(&range, false);
        let mut data = self.buffer(device, range.end - range.start).await;
        Model::data(id, &range, &mut data);
        let held = data.freeze();
        let whole = match pieces {
            true => self.halves(device, &held).await,
            false => held.clone().into(),
        };
        let outcome = self.outcome(&range, device.write_at_from(range.start, whole)).await;
        // With iSER, the target could read it otherwise. Over TCP, a connection that ends may still hold data.
        let over = outcome.is_some() && self.plan.transport == Transport::Iser;
        if over && !held.is_unique() {
            return Err(format!("the data of write {id} is in use after its outcome"));
        }
        self.changed(id, outcome)
    }

    /// The data of `whole` in two pieces.
    async fn halves(&self, device: &BlockDevice, whole: &View) -> Views {
        let mut views = Views::new();
        for part in whole.chunks(whole.len().div_ceil(2)) {
            let mut copy = self.buffer(device, part.len() as u64).await;
            copy.copy_from_slice(part);
            views.push(copy.freeze());
        }
        views
    }

    /// A buffer; waits until others are free.
    async fn buffer(&self, device: &BlockDevice, length: u64) -> Buffer {
        loop {
            match device.buffer(length as usize) {
                Ok(buffer) => return buffer,
                Err(_) => self.rt.sleep(Duration::from_millis(10)).await,
            }
        }
    }

    async fn read(&self, device: &BlockDevice, range: Range<u64>) -> Result<(), String> {
        let mut buffer = self.buffer(device, range.end - range.start).await;
        buffer.fill(0xee);
        let started = self.model.begin_read();
        let outcome = self.outcome(&range, device.read_at_into(range.start, buffer)).await;
        let data = match &outcome {
            Some(Ok(data)) => Some(&data[..]),
            Some(Err(Error::TimedOut { .. })) | None => None,
            Some(Err(e)) => return Err(e.to_string()),
        };
        self.model.end_read(started, range.start, data)
    }

    async fn write_zeroes(&self, device: &BlockDevice, range: Range<u64>) -> Result<(), String> {
        let id = self.model.begin_write(&range, true);
        // The operation is one command, because the device has WRITE SAME.
        let one = range.start..range.start + 1;
        let outcome = self.outcome(&one, device.write_zeroes(range)).await;
        self.changed(id, outcome)
    }

    async fn discard(&self, device: &BlockDevice, range: Range<u64>) -> Result<(), String> {
        if device.limits().max_discard.is_none() {
            return Ok(());
        }
        assert!(device.info().discard_reads_zeroes);
        let id = self.model.begin_write(&range, true);
        let one = range.start..range.start + 1;
        let outcome = self.outcome(&one, device.discard(range)).await;
        self.changed(id, outcome)
    }

    /// Flushes the device. With `must`, repeats until a flush succeeds.
    async fn flush(&self, device: &BlockDevice, must: bool) -> Result<(), String> {
        loop {
            let started = self.model.begin();
            let outcome = match must {
                true => Some(device.flush().await),
                false => self.outcome(&(0..0), device.flush()).await,
            };
            match outcome {
                Some(Ok(())) => self.model.flushed(started),
                Some(Err(Error::DataLost { .. })) => {
                    count(&OCCURRED.losses);
                    self.model.reported();
                    if must {
                        continue;
                    }
                }
                Some(Err(Error::TimedOut { .. })) if must => continue,
                Some(Err(Error::TimedOut { .. })) | None => {}
                Some(Err(e)) => return Err(e.to_string()),
            }
            return Ok(());
        }
    }
}

/// Number of commands with data that the target has received.
fn executed(cluster: &Cluster) -> u64 {
    let stats = &cluster.stats;
    stats.reads.load(Ordering::Relaxed) + stats.writes.load(Ordering::Relaxed)
}

/// Number of buffers that the device has memory for.
fn free(device: &BlockDevice) -> usize {
    let mut buffers = Vec::new();
    while let Ok(buffer) = device.buffer(SECTOR * 128) {
        buffers.push(buffer);
    }
    buffers.len()
}
