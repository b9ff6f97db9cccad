//! A file that clients replace with `AtomicFile`, while clients are killed and a server loses unstable data: a reader finds
//! one version, complete, which is not older than the last acknowledged one.

use std::{
    cell::{Cell, RefCell},
    io::ErrorKind,
    pin::pin,
    time::Duration,
};

use futures::future::{Either, join3, select};
use millrace_client::{AtomicFile, Client, Error, Options, Proto, Strategy, Version, is_temporary_name};
use millrace_crashtest::{
    Disk, Random,
    cluster::{self, Cluster, mount, options},
    seeds::RunStats,
    unstable::choice,
};
use millrace_rdma_sim::{Faults, Seed, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};

const NAME: &str = "file";
/// Number of clients that write, one after the other. All but the last one are killed.
const WRITERS: u8 = 4;
/// Number of versions that the last one writes.
const VERSIONS: u64 = 6;
const LONGEST: u64 = 20 << 10;
/// Bytes that are written at a time.
const PIECE: usize = 5000;
/// Maximum number of attempts of a client to mount.
const MAX_MOUNTS: u32 = 20;
/// Time after which no call of a killed client can take effect any more: longer than messages are delayed.
const SETTLED: Duration = Duration::from_secs(3);

/// Time limit of a run, in virtual time.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The content of a version: its number, and bytes and a length that depend on it.
fn content(version: u64) -> Vec<u8> {
    let mut random = Random::new(version);
    let len = random.below(LONGEST);
    version.to_be_bytes().into_iter().chain((0..len).map(|_| random.next_u64() as u8)).collect()
}

/// The versions that may be read.
#[derive(Default)]
struct History {
    /// The newest version that is known to be in place; 0: none.
    acknowledged: Cell<u64>,
    /// The newest version that a client has started to write.
    started: Cell<u64>,
    /// Whether a client writes.
    writing: Cell<bool>,
}

impl History {
    /// Reads the file, and checks that it is a permitted version. Returns its number.
    async fn read(&self, client: &Client) -> Result<u64, String> {
        loop {
            let oldest = self.acknowledged.get();
            let data = match client.read(NAME).await {
                Ok(data) => data,
                Err(e) if e.kind() == ErrorKind::NotFound && oldest == 0 => return Ok(0),
                Err(e) if e.kind() == ErrorKind::StaleNetworkFileHandle => continue, // Replaced meanwhile.
                Err(e) => return Err(format!("the reader: {e}")),
            };
            let number = data.first_chunk().map(|number| u64::from_be_bytes(*number));
            let version = number.filter(|n| (oldest..=self.started.get()).contains(n)).ok_or_else(|| {
                format!("the file has version {number:?} of {oldest}..={}", self.started.get())
            })?;
            return if data == content(version) {
                Ok(version)
            } else {
                Err(format!("version {version} is mixed"))
            };
        }
    }

    /// Waits until calls without a reply have had their effect or never will.
    async fn settle(&self, rt: &RuntimeRef, client: &Client) -> Result<(), String> {
        self.writing.set(false);
        rt.sleep(SETTLED).await;
        self.writing.set(true);
        self.acknowledged.set(self.read(client).await?);
        Ok(())
    }

    /// Writes the next version in pieces, from a random one on.
    async fn replace(&self, client: &Client, random: &mut Random) -> Result<(), Error> {
        let version = self.started.get() + 1;
        self.started.set(version);
        let content = content(version);
        let mut file = AtomicFile::create(client, NAME).await?;
        let pieces: Vec<_> = content.chunks(PIECE).enumerate().collect();
        let first = random.below(pieces.len() as u64) as usize;
        for (index, piece) in pieces[first..].iter().chain(&pieces[..first]) {
            file.file().write((index * PIECE) as u64, piece).await?;
        }
        file.replace().await?;
        self.acknowledged.set(version);
        Ok(())
    }
}

/// Clients write versions until they are killed.
async fn write(
    time: &VirtualTime,
    history: &History,
    reader: &Client,
    random: &mut Random,
    connect: impl AsyncFn(u8, &RuntimeRef) -> Result<Client, Error>,
    kill: impl Fn(u8),
) -> Result<(), String> {
    let rt = time.runtime();
    history.writing.set(true);
    for number in 1..=WRITERS {
        let process = time.group();
        // A mount fails if the server crashes meanwhile.
        let mut mounted = connect(number, &process.runtime()).await;
        for _ in 0..MAX_MOUNTS {
            if mounted.is_err() {
                rt.sleep(Duration::from_millis(100)).await;
                mounted = connect(number, &process.runtime()).await;
            }
        }
        let client = mounted.map_err(|e| e.to_string())?;
        let end = history.started.get() + VERSIONS;
        let lifetime = Duration::from_micros(random.below(400_000));
        let writes = Box::pin(async {
            while number < WRITERS || history.started.get() < end {
                // After an error the version may be in place: a repeated RENAME does not find its file.
                if history.replace(&client, random).await.is_err() {
                    history.settle(&rt, reader).await?;
                }
            }
            Ok::<_, String>(())
        });
        if number == WRITERS {
            return writes.await;
        }
        match select(writes, pin!(rt.sleep(lifetime))).await {
            Either::Left((ended, _)) => return ended,
            Either::Right(((), writes)) => {
                process.end();
                kill(number);
                drop(writes);
            }
        }
        history.settle(&rt, reader).await?;
    }
    Ok(())
}

/// Reads while a client writes, until the last one has ended.
async fn read(rt: &RuntimeRef, history: &History, reader: &Client, done: &Cell<bool>) -> Result<(), String> {
    while !done.get() {
        if history.writing.get() {
            history.read(reader).await?;
        }
        rt.sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn run_cluster(
    time: &VirtualTime,
    cluster: &mut Cluster,
    disk: &Disk,
    seed: Seed,
) -> Result<RunStats, String> {
    let (rt, world, mut random) = (time.runtime(), cluster.world.clone(), Random::new(seed.0));
    let proto = choice(&mut random, &[Proto::Rdma, Proto::Tcp]);
    let version = choice(&mut random, &[Version::V3, Version::V4_2]);
    let options = || -> Options {
        options(Strategy::Cache).vers(Some(version)).wsize(Some(8 << 10)).rsize(Some(8 << 10))
    };
    let connect = async |number, rt: &RuntimeRef| -> Result<Client, Error> {
        Ok(mount(&world, rt, number, proto, options()).await?.into())
    };
    let reader = connect(0, &rt).await.map_err(|e| e.to_string())?;
    let delay_one_in = choice(&mut random, &[0, 50]);
    world.set_faults(Faults { delay_one_in, longest_delay: Duration::from_millis(20), ..Faults::default() });
    let (history, done) = (History::default(), Cell::new(false));
    let (cluster, mut losses) = (RefCell::new(cluster), Random::new(!seed.0));
    let writes = async {
        let kill = |number| world.crash([10, 0, 1, number].into());
        let ended = write(time, &history, &reader, &mut random, connect, kill).await;
        done.set(true);
        ended
    };
    let crashes = async {
        let mut crashes = 0;
        while !done.get() {
            rt.sleep(Duration::from_micros(losses.below(300_000))).await;
            match losses.below(4) {
                0 if crashes < 4 => {
                    cluster.borrow_mut().crash();
                    disk.lose();
                    rt.sleep(Duration::from_micros(losses.below(1_000_000))).await;
                    cluster.borrow_mut().start(time);
                    crashes += 1;
                }
                1 => disk.lose(),
                _ => {}
            }
        }
        crashes
    };
    let (written, read, crashes) = join3(writes, read(&rt, &history, &reader, &done), crashes).await;
    written.and(read)?;
    history.settle(&rt, &reader).await?;
    let mut left = 0;
    let mut entries = reader.read_dir("").await.map_err(|e| e.to_string())?;
    while let Some(entry) = entries.next_entry().await.map_err(|e| e.to_string())? {
        let name = entry.file_name().as_encoded_bytes();
        left += u64::from(is_temporary_name(name));
        if name != NAME.as_bytes() && !is_temporary_name(name) {
            return Err(format!("unknown file {name:?}"));
        }
    }
    if left >= u64::from(WRITERS) {
        return Err(format!("{left} temporary files remain of {} killed clients", WRITERS - 1));
    }
    let (reconnects, replayed) = (reader.stats().reconnects, cluster.borrow().stats().replayed);
    Ok(RunStats { trace: world.trace(), reconnects, crashes, replayed })
}

pub(crate) fn run(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
) -> Result<RunStats, String> {
    let mut cluster = Cluster::of_seed(time, (seed, trace, shown))?;
    let disk = cluster.use_disk(time, seed, true);
    cluster.start(time);
    cluster::finish(time, LIMIT, run_cluster(time, &mut cluster, &disk, seed))
}
