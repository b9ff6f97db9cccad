//! Locks that their holders lose, because the server restarts without its list of clients, or because a lease ends while
//! the holder cannot reach the server. Then another client locks the file and writes newer data, which nothing that the
//! earlier holder does may replace: close, commit, unlock, read.
//!
//! Each owner repeats: lock the file, read it, write its own version in several pieces, unlock. Versions are
//! numbered under the lock. A section whose calls all succeeded is durable. The holder of a lock must read versions that
//! are not older than the last durable one, and none that was numbered after its own.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::{join, join_all};
use millrace_client::{
    Design, Error, LockKind, Proto, Strategy, Version,
    nfs3::{Client, File},
};
use millrace_crashtest::{
    Disk, DiskConfig, Random,
    cluster::{Cluster, mount, options},
    seeds::RunStats,
};
use millrace_rdma_sim::{Faults, Profile, Seed, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};

const CLIENTS: u8 = 2;
/// Lock owners of each client.
const OWNERS: u64 = 2;
/// Sections of each owner.
const SECTIONS: usize = 6;
/// The file has this number of parts, each with the number of its version: a part is the unit of a loss.
const PARTS: u64 = 16;
const PART: u64 = 512;
const SIZE: usize = (PARTS * PART) as usize;
/// Seconds of a lease.
const LEASE: u64 = 10;
/// Time limit of a run, in virtual time.
const LIMIT: Duration = Duration::from_secs(12 * 3600);

/// Number of sections that were durable, that failed, and in which locks were lost, in all runs.
pub(crate) static SECTIONS_ENDED: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// The versions of the file. 0 is the first one.
#[derive(Default)]
struct History {
    /// Number of the last section that has begun.
    begun: Cell<u64>,
    /// Number of the newest durable section.
    durable: Cell<u64>,
}

/// A lock owner.
struct Owner<'r> {
    rt: &'r RuntimeRef,
    file: File,
    number: u64,
    random: RefCell<Random>,
    history: &'r History,
}

fn part(version: u64) -> Vec<u8> {
    version.to_be_bytes().repeat(PART as usize / 8)
}

impl Owner<'_> {
    fn below(&self, limit: u64) -> u64 {
        self.random.borrow_mut().below(limit)
    }

    async fn run(&self) -> Result<(), String> {
        for _ in 0..SECTIONS {
            self.rt.sleep(Duration::from_micros(self.below(200_000))).await;
            let ended = self.section().await;
            let result = match &ended {
                Ok(()) => 0,
                Err(Failure::Call(Error::LocksLost | Error::Discarded)) => 2,
                Err(Failure::Call(_)) => 1,
                Err(Failure::Data(why)) => return Err(why.clone()),
            };
            SECTIONS_ENDED[result].fetch_add(1, Ordering::Relaxed);
            if ended.is_err() {
                self.abandon().await;
            }
        }
        Ok(())
    }

    /// What a program does after an error, in any order.
    async fn abandon(&self) {
        for step in 0..3 {
            match (self.below(3), step) {
                (0, _) => drop(self.file.commit().await),
                (1, _) => drop(self.file.read(0, &mut [0; SIZE]).await),
                _ => drop(self.file.unlock(self.number, 0..u64::MAX).await),
            }
        }
        let _ = self.file.unlock(self.number, 0..u64::MAX).await;
        if self.below(2) == 0 {
            let _ = self.file.commit().await;
        }
    }

    async fn section(&self) -> Result<(), Failure> {
        self.file.lock(self.number, 0..u64::MAX, LockKind::Exclusive).await?;
        let (version, durable) = (self.history.begun.get() + 1, self.history.durable.get());
        self.history.begun.set(version);
        self.check(durable, version).await?;
        let mut parts: Vec<_> = (0..PARTS).collect();
        while !parts.is_empty() {
            let next = parts.swap_remove(self.below(parts.len() as u64) as usize);
            self.file.write(next * PART, &part(version)).await?;
            match self.below(16) {
                0 => self.file.commit().await?,
                1 => self.rt.sleep(Duration::from_millis(self.below(400))).await,
                _ => {}
            }
        }
        self.file.unlock(self.number, 0..u64::MAX).await?;
        self.history.durable.set(self.history.durable.get().max(version));
        Ok(())
    }

    /// Reads the file under the lock of the section `version`.
    async fn check(&self, durable: u64, version: u64) -> Result<(), Failure> {
        let mut content = vec![0; SIZE];
        self.file.read(0, &mut content).await?;
        for (n, read) in content.chunks(PART as usize).enumerate() {
            let found = u64::from_be_bytes(read[..8].try_into().unwrap());
            if read != part(found) || !(durable..version).contains(&found) {
                let owner = self.number;
                return Err(Failure::Data(format!(
                    "owner {owner} in section {version} read version {found} in part {n}, but {durable} is durable"
                )));
            }
        }
        Ok(())
    }
}

/// Why a section ended early.
enum Failure {
    Call(Error),
    /// Data that must not be there.
    Data(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

/// Runs `seed`; stores the world in `shown` as soon as it exists.
pub(crate) fn run(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
) -> Result<RunStats, String> {
    let profile = Profile::named("sdr-opensolaris").map_err(|e| e.to_string())?;
    let mut cluster = Cluster::new(time, profile, Design::ReadWrite);
    cluster.config.nfs4.lease = LEASE;
    shown.set(Some(cluster.world.clone()));
    if trace {
        cluster.world.begin_trace(seed);
    }
    let rt = time.runtime();
    let disk = Disk::new(
        rt.clone(),
        DiskConfig { latency: Duration::from_millis(2), wcc_before: false, seed: seed.0 },
    );
    cluster.files = Some(disk.clone());
    cluster.start(time);
    let all = millrace_runtime::timeout(&*rt, LIMIT, execute(time, &rt, &mut cluster, &disk, seed));
    let stats = time.block_on(all).map_err(|stuck| stuck.to_string())?;
    stats.ok_or_else(|| format!("the run exceeded {LIMIT:?}"))?
}

async fn execute(
    time: &VirtualTime,
    rt: &RuntimeRef,
    cluster: &mut Cluster,
    disk: &Arc<Disk>,
    seed: Seed,
) -> Result<RunStats, String> {
    let text = |e: Error| e.to_string();
    let mut random = Random::new(seed.0);
    let proto = if seed.0.is_multiple_of(2) { Proto::Tcp } else { Proto::Rdma };
    let version = if seed.0.is_multiple_of(3) { Version::V4_1 } else { Version::V4_2 };
    let mut clients: Vec<Client> = Vec::new();
    for number in 0..CLIENTS {
        let options = options(Strategy::ALL[0], Design::ReadWrite).vers(Some(version));
        clients.push(mount(&cluster.world, rt, number, proto, options).await.map_err(text)?);
    }
    let first = clients[0].create_file("f", 0o600).await.map_err(text)?;
    first.write(0, &[0; SIZE]).await.map_err(text)?;
    first.commit().await.map_err(text)?;
    let history = History::default();
    let owner = |(number, client): (u64, &Client)| Owner {
        rt,
        file: File::new(client.clone(), first.handle()),
        number,
        random: RefCell::new(Random::new(!seed.0 ^ number.rotate_left(32))),
        history: &history,
    };
    let owners: Vec<_> = (1..).zip(clients.iter().flat_map(|c| [c; OWNERS as usize])).map(owner).collect();
    let world = cluster.world.clone();
    world.set_faults(Faults {
        lose_one_in: [0, 200][random.below(2) as usize],
        stall_one_in: [200, 1000][random.below(2) as usize],
        longest_stall: Duration::from_secs(2 * LEASE),
        ..Faults::default()
    });
    let done = Cell::new(false);
    let runs = async {
        let ended = join_all(owners.iter().map(Owner::run)).await;
        done.set(true);
        ended.into_iter().collect::<Result<(), String>>()
    };
    // After a crash the server has no records of clients, so no lock can be reclaimed.
    let crashes = async {
        let mut crashes = 0;
        loop {
            rt.sleep(Duration::from_micros(random.below(2_000_000))).await;
            if done.get() {
                return crashes;
            }
            if random.below(2) == 0 && crashes < 6 {
                cluster.crash();
                disk.lose();
                rt.sleep(Duration::from_micros(random.below(500_000))).await;
                cluster.start(time);
                crashes += 1;
            }
        }
    };
    let (outcome, crashes) = join(runs, crashes).await;
    outcome?;
    world.set_faults(Faults::default());
    for owner in &owners {
        let _ = owner.file.unlock(owner.number, 0..u64::MAX).await;
        let _ = owner.file.commit().await;
    }
    let last = &owners[0];
    last.file.lock(last.number, 0..u64::MAX, LockKind::Shared).await.map_err(text)?;
    match last.check(history.durable.get(), history.begun.get() + 1).await {
        Ok(()) => {}
        Err(Failure::Call(e)) => return Err(e.to_string()),
        Err(Failure::Data(why)) => return Err(format!("at the end: {why}")),
    }
    let reconnects = clients.iter().map(|c| c.stats().reconnects).sum();
    Ok(RunStats { trace: world.trace(), reconnects, crashes, replayed: cluster.stats().replayed })
}
