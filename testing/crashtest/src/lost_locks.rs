//! Locks that their holders lose, because the server restarts, often without its list of clients, or because a lease ends
//! while the holder cannot reach the server. Then another holder locks the file and writes newer data, which nothing
//! that the earlier one does may replace: close, commit, unlock, read.
//!
//! Each owner repeats: lock the file, read it, write its own version in several pieces, append the number of the version at
//! the end that the read has shown, unlock. Versions are numbered under the lock. A section is durable whose calls have
//! succeeded up to a commit after its last write. The holder of a lock must read versions that are not older than the last
//! durable one, and none that was numbered after its own. An owner that has lost its lock reads no older version after the
//! unlock, and no commit succeeds between the first error that can only report this loss and the unlock. The appended
//! numbers increase and name all durable versions; unless crashes lose UNSTABLE data behind which others have appended,
//! there is no hole between them.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures::future::{join, try_join_all};
use millrace_client::{Error, Proto, Strategy, Version, handles::Client};
use millrace_rdma_sim::{Faults, Seed, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};

use crate::{
    Disk, Random,
    cluster::{self, Cluster, mount, options},
    seeds::RunStats,
};

/// The name of the file.
pub const NAME: &str = "f";
const CLIENTS: u64 = 2;
/// Lock owners of each client.
const OWNERS: u64 = 2;
/// Sections of each owner.
const SECTIONS: usize = 6;
/// The file has this number of parts, each with the number of its version: a part is the unit of a loss.
const PARTS: u64 = 16;
const PART: u64 = 512;
const SIZE: usize = (PARTS * PART) as usize;
/// Length of a read of the whole file, with the number of each section behind the parts.
const WHOLE: usize = SIZE + CLIENTS as usize * OWNERS as usize * SECTIONS * 8;
/// Seconds of a lease.
const LEASE: u64 = 10;
/// Time limit of a run, in virtual time.
const LIMIT: Duration = Duration::from_secs(12 * 3600);

/// What an owner does with the file. An error is the text for a failed run.
pub trait LockedFile {
    /// Waits for an exclusive lock of the file.
    fn lock(&self) -> impl Future<Output = Result<(), String>>;
    /// Unlocks the file.
    fn unlock(&self) -> impl Future<Output = Result<(), String>>;
    /// Closes the file, which unlocks it, and opens it again. An error is that of the close.
    fn close(&self) -> impl Future<Output = Result<(), String>>;
    /// Reads `len` bytes from the beginning.
    fn read(&self, len: usize) -> impl Future<Output = Result<Vec<u8>, String>>;
    /// Writes data at an offset.
    fn write(&self, offset: u64, data: &[u8]) -> impl Future<Output = Result<(), String>>;
    /// Whether a read ends at the end of the file at the server, so that the owner can append.
    fn has_current_size(&self) -> bool {
        true
    }
    /// Makes written data stable.
    fn sync(&self) -> impl Future<Output = Result<(), String>>;
}

/// What has happened in all runs.
#[derive(Debug, Default)]
pub struct Counts {
    /// Durable sections.
    pub durable: AtomicU64,
    /// Sections that have failed while their owner had the lock, as far as is known.
    pub failed: AtomicU64,
    /// Sections that have failed after another owner had got the lock.
    pub lost: AtomicU64,
    /// Reads without a lock after such a section.
    pub read_again: AtomicU64,
}

impl Counts {
    /// Asserts that the runs of `seeds` seeds had what they are for.
    ///
    /// # Panics
    /// If they had not.
    pub fn assert_frequent(&self, seeds: u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        assert!(
            of(&self.durable) > 10 * seeds && of(&self.lost) > seeds && of(&self.read_again) > seeds / 2,
            "{self:?}"
        );
    }
}

/// The versions of the file. 0 is the first one.
#[derive(Default)]
struct History {
    /// Number of the last section that has begun.
    begun: Cell<u64>,
    /// Numbers of the durable sections, and whether they have appended.
    durable: RefCell<BTreeMap<u64, bool>>,
    /// Whether crashes keep UNSTABLE data.
    keeps_unstable: bool,
}

impl History {
    /// Number of the newest durable section.
    fn durable(&self) -> u64 {
        self.durable.borrow().keys().next_back().copied().unwrap_or(0)
    }

    /// Checks the numbers behind the parts, which have those of the durable sections up to `durable`.
    fn check_log(&self, log: &[u8], durable: u64) -> Result<(), String> {
        let numbers: Vec<_> =
            log.chunks(8).map(|n| n.try_into().map_or(u64::MAX, u64::from_be_bytes)).collect();
        let written = || numbers.iter().filter(|n| **n != 0 || self.keeps_unstable);
        let is_complete =
            self.durable.borrow().range(..=durable).all(|(n, appended)| !appended || numbers.contains(n));
        if is_complete
            && written().is_sorted_by(|a, b| a < b)
            && written().all(|n| (1..=self.begun.get()).contains(n))
        {
            return Ok(());
        }
        Err(format!("read the appended numbers {numbers:?}, but durable are {:?}", self.durable.borrow()))
    }
}

/// A lock owner.
struct Owner<'r, F> {
    rt: &'r RuntimeRef,
    file: F,
    name: String,
    random: RefCell<Random>,
    history: &'r History,
    /// Number of calls of its client's owners that have failed: each file of the client may report them.
    failures: &'r Cell<u64>,
    counts: &'r Counts,
    /// The version of the section.
    version: Cell<u64>,
    /// Whether the owner has got the lock and not unlocked since.
    holds: Cell<bool>,
    /// The newest durable version at its last unlock. A later one, of a lock that it has not, may keep cached data.
    unlocked_at: Cell<u64>,
    /// Whether the owner has written since it got the lock, and not unlocked: otherwise a commit may have nothing to report.
    has_written: Cell<bool>,
    /// The failures of others that were before its last commit, which has reported them, and its own.
    reported: Cell<u64>,
    /// Whether a call has failed since, another owner had the lock, and the failure is of no other loss: the data of this
    /// owner may have been stable before it lost the lock.
    knows_loss: Cell<bool>,
}

/// Why a section ended early.
enum Failure {
    /// A call failed.
    Call,
    /// Data or a success that must not be there.
    Wrong(String),
}

fn part(version: u64) -> Vec<u8> {
    version.to_be_bytes().repeat(PART as usize / 8)
}

impl<F: LockedFile> Owner<'_, F> {
    fn below(&self, limit: u64) -> u64 {
        self.random.borrow_mut().below(limit)
    }

    async fn run(&self) -> Result<(), String> {
        for _ in 0..SECTIONS {
            self.rt.sleep(Duration::from_micros(self.below(200_000))).await;
            self.version.set(u64::MAX);
            let count = match self.section().await {
                Ok(()) => &self.counts.durable,
                Err(Failure::Wrong(why)) => return Err(why),
                Err(Failure::Call) => {
                    let is_lost = self.is_lost();
                    self.abandon(is_lost).await?;
                    if is_lost { &self.counts.lost } else { &self.counts.failed }
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether another owner has got the lock since this one has.
    fn is_lost(&self) -> bool {
        self.history.begun.get() > self.version.get()
    }

    /// The result of a call of the section.
    fn checked<T>(&self, called: Result<T, String>) -> Result<T, Failure> {
        called.map_err(|_| {
            let is_new = self.reported.get() == self.failures.get();
            let is_own = is_new && self.has_written.get() && self.is_lost();
            self.knows_loss.set(self.knows_loss.get() || is_own);
            self.failures.update(|n| n + 1);
            if is_new {
                self.reported.set(self.failures.get());
            }
            Failure::Call
        })
    }

    /// The result of a call that makes data stable, which must not succeed after the loss of the lock was reported.
    fn checked_sync(&self, knew_loss: bool, called: Result<(), String>) -> Result<(), Failure> {
        let synced = self.checked(called);
        self.reported.set(self.failures.get());
        synced?;
        if knew_loss {
            let reason = format!("{}, whose lock is lost, has made data stable", self.name);
            return Err(Failure::Wrong(reason));
        }
        Ok(())
    }

    async fn sync(&self) -> Result<(), Failure> {
        let knew_loss = self.knows_loss.get();
        self.checked_sync(knew_loss, self.file.sync().await)
    }

    async fn unlock(&self) -> Result<(), Failure> {
        self.note_unlock();
        let unlocked = self.file.unlock().await;
        self.release();
        self.checked(unlocked)
    }

    async fn close(&self) -> Result<(), Failure> {
        let knew_loss = self.knows_loss.get();
        self.note_unlock();
        let closed = self.file.close().await;
        self.release();
        self.checked_sync(knew_loss, closed)
    }

    fn note_unlock(&self) {
        if self.holds.replace(false) {
            self.unlocked_at.set(self.history.durable());
        }
    }

    fn release(&self) {
        self.has_written.set(false);
        self.knows_loss.set(false);
    }

    /// What a program does after an error, in any order; at last it has unlocked the file.
    async fn abandon(&self, is_lost: bool) -> Result<(), String> {
        for _ in 0..3 {
            let done = match self.below(4) {
                0 => self.sync().await,
                1 => self.checked(self.file.read(WHOLE).await).map(drop),
                2 => self.unlock().await,
                _ => self.close().await,
            };
            if let Err(Failure::Wrong(why)) = done {
                return Err(why);
            }
        }
        let _ = self.unlock().await;
        if is_lost && let Ok(content) = self.file.read(WHOLE).await {
            self.counts.read_again.fetch_add(1, Ordering::Relaxed);
            self.check(&content, self.unlocked_at.get(), self.history.begun.get())?;
        }
        if self.below(2) == 0 {
            let _ = self.file.sync().await;
        }
        Ok(())
    }

    async fn section(&self) -> Result<(), Failure> {
        self.checked(self.file.lock().await)?;
        let (version, durable) = (self.history.begun.get() + 1, self.history.durable());
        self.history.begun.set(version);
        self.version.set(version);
        self.holds.set(true);
        let content = self.checked(self.file.read(WHOLE).await)?;
        self.check(&content, durable, version - 1).map_err(Failure::Wrong)?;
        let mut parts: Vec<_> = (0..PARTS + u64::from(self.file.has_current_size())).collect();
        while !parts.is_empty() {
            let next = parts.swap_remove(self.below(parts.len() as u64) as usize);
            let written = match next {
                PARTS => self.file.write(content.len() as u64, &version.to_be_bytes()).await,
                _ => self.file.write(next * PART, &part(version)).await,
            };
            self.checked(written)?;
            self.has_written.set(true);
            match self.below(16) {
                0 => self.sync().await?,
                1 => self.rt.sleep(Duration::from_millis(self.below(400))).await,
                _ => {}
            }
        }
        let syncs_first = self.below(2) == 0;
        if syncs_first {
            self.sync().await?;
            self.history.durable.borrow_mut().insert(version, self.file.has_current_size());
        }
        self.unlock().await?;
        if !syncs_first {
            self.checked(self.file.sync().await)?;
            self.history.durable.borrow_mut().insert(version, self.file.has_current_size());
        }
        Ok(())
    }

    /// Checks that `content` has versions from `oldest` to `newest`.
    fn check(&self, content: &[u8], oldest: u64, newest: u64) -> Result<(), String> {
        let Some((parts, log)) = content.split_at_checked(SIZE) else {
            return Err(format!("{} read {} bytes", self.name, content.len()));
        };
        // Without the lock, the size may be a cached one.
        if self.holds.get() && self.file.has_current_size() {
            self.history.check_log(log, oldest).map_err(|why| format!("{} {why}", self.name))?;
        }
        for (n, read) in parts.chunks(PART as usize).enumerate() {
            let found = read.first_chunk().map_or(u64::MAX, |b| u64::from_be_bytes(*b));
            if read != part(found) || !(oldest..=newest).contains(&found) {
                return Err(format!(
                    "{} read version {found} in part {n}, but {oldest} to {newest} may be there",
                    self.name
                ));
            }
        }
        Ok(())
    }
}

/// Runs `seed` with files that `make` opens for the given number of owners of a client; stores the world in `shown` as
/// soon as it exists.
///
/// # Errors
/// The reason of the failure.
pub fn run<F: LockedFile>(
    time: &VirtualTime,
    (seed, trace, shown): (Seed, bool, &Cell<Option<World>>),
    counts: &Counts,
    make: impl AsyncFn(Client, u64, Random) -> Result<Vec<F>, String>,
) -> Result<RunStats, String> {
    let mut cluster = Cluster::of_seed(time, (seed, trace, shown))?;
    cluster.config.nfs4.lease = LEASE;
    // A third of the runs with each version and transport, which the remainder by 6 determines.
    let list =
        (seed.0 / 6).is_multiple_of(3).then(tempfile::tempdir).transpose().map_err(|e| e.to_string())?;
    cluster.config.state_dir = list.as_ref().map(|dir| dir.path().into());
    let disk = cluster.use_disk(time, seed, false);
    cluster.start(time);
    cluster::finish(time, LIMIT, execute(time, &mut cluster, &disk, seed, counts, make))
}

async fn execute<F: LockedFile>(
    time: &VirtualTime,
    cluster: &mut Cluster,
    disk: &Disk,
    seed: Seed,
    counts: &Counts,
    make: impl AsyncFn(Client, u64, Random) -> Result<Vec<F>, String>,
) -> Result<RunStats, String> {
    let text = |e: Error| e.to_string();
    let (rt, mut random) = (time.runtime(), Random::new(seed.0));
    let proto = if seed.0.is_multiple_of(2) { Proto::Tcp } else { Proto::Rdma };
    let version = if seed.0.is_multiple_of(3) { Version::V4_1 } else { Version::V4_2 };
    let (mut clients, mut history, mut owners) = (Vec::new(), History::default(), Vec::new());
    history.keeps_unstable = random.below(2) == 0;
    let history = history;
    let failures: [Cell<u64>; CLIENTS as usize] = Default::default();
    for (number, failures) in (0..).zip(&failures) {
        let options = options(Strategy::ALL[0]).vers(Some(version));
        let client = mount(&cluster.world, &rt, number as u8, proto, options).await.map_err(text)?;
        if number == 0 {
            let first = client.create_file(NAME, 0o600).await.map_err(text)?;
            first.write(0, &[0; SIZE]).await.map_err(text)?;
            first.commit().await.map_err(text)?;
        }
        let files = make(client.clone(), OWNERS, Random::new(!seed.0 ^ number)).await?;
        clients.push(client);
        owners.extend((0..).zip(files).map(|(n, file)| Owner {
            rt: &rt,
            file,
            name: format!("owner {n} of client {number}"),
            random: RefCell::new(Random::new(!seed.0 ^ (number * OWNERS + n + 1).rotate_left(32))),
            history: &history,
            failures,
            counts,
            version: Cell::default(),
            holds: Cell::default(),
            unlocked_at: Cell::default(),
            has_written: Cell::default(),
            reported: Cell::default(),
            knows_loss: Cell::default(),
        }));
    }
    let world = cluster.world.clone();
    world.set_faults(Faults {
        lose_one_in: [0, 200][random.below(2) as usize],
        stall_one_in: [200, 1000][random.below(2) as usize],
        longest_stall: Duration::from_secs(2 * LEASE),
        ..Faults::default()
    });
    let done = Cell::new(false);
    let runs = async {
        // The first failure ends the run: its owner may have the lock for which the others wait.
        let ended = try_join_all(owners.iter().map(Owner::run)).await;
        done.set(true);
        ended.map(drop)
    };
    // After a crash, a server without its list of clients grants no lock again.
    let crashes = async {
        let mut crashes = 0;
        loop {
            rt.sleep(Duration::from_micros(random.below(2_000_000))).await;
            if done.get() {
                return crashes;
            }
            if random.below(2) == 0 && crashes < 6 {
                cluster.crash();
                if !history.keeps_unstable {
                    disk.lose();
                }
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
        let _ = owner.file.close().await;
        let _ = owner.file.sync().await;
    }
    for owner in &owners {
        let at_the_end = |why| format!("{} at the end: {why}", owner.name);
        owner.file.lock().await.map_err(|e| at_the_end(format!("lock: {e}")))?;
        owner.holds.set(true);
        let content = owner.file.read(WHOLE).await.map_err(|e| at_the_end(format!("read: {e}")))?;
        owner.check(&content, history.durable(), history.begun.get()).map_err(at_the_end)?;
        owner.file.unlock().await.map_err(|e| at_the_end(format!("unlock: {e}")))?;
    }
    let reconnects = clients.iter().map(|c| c.stats().reconnects).sum();
    Ok(RunStats { trace: world.trace(), reconnects, crashes, replayed: cluster.stats().replayed })
}
