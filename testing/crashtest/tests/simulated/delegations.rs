//! Clients that cache files under read delegations, with lost connections and outages: no read returns older data than a
//! write of any client that was acknowledged before the read began.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::{join, join_all};
use millrace_client::{
    Delegation, Error, Proto, Strategy, Version,
    handles::{Client, Delegated, File},
};
use millrace_crashtest::{
    Random,
    cluster::{self, Cluster, mount, options},
    seeds::RunStats,
};
use millrace_rdma_sim::{Faults, Profile, Seed, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};
use parking_lot::Mutex;

const CLIENTS: u8 = 3;
const FILES: usize = 3;
/// Number of steps of each client.
const STEPS: usize = 40;
/// Time limit of a run, in virtual time.
const LIMIT: Duration = Duration::from_secs(6 * 3600);
/// Longest time between the recall of a delegation and its return.
const RETURN_DELAY: u64 = 20;

/// Number of reads from a cache, and of recalls, in all runs.
pub(crate) static USES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The versions of a file. Its content is the number of its version.
#[derive(Default)]
struct Versions {
    /// The last one whose write has begun, and the last one whose write was acknowledged.
    begun: Cell<u64>,
    acknowledged: Cell<u64>,
    /// Held by a writer.
    turn: futures::lock::Mutex<()>,
}

/// A version that a client has read under a delegation.
struct Cached {
    delegation: Delegation,
    version: u64,
}

/// The cache of a client, by file, shared with the tasks that wait for recalls.
type Cache = Arc<Mutex<BTreeMap<usize, Cached>>>;

struct Holder<'r> {
    rt: &'r RuntimeRef,
    client: Client,
    files: Vec<File>,
    cache: Cache,
    random: RefCell<Random>,
    versions: &'r [Versions],
    /// Number of reads from the cache.
    cached: Cell<u64>,
}

/// Runs `seed`; stores the world in `shown` as soon as it exists.
pub(crate) fn run(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
) -> Result<RunStats, String> {
    let mut cluster = Cluster::of_seed(time, (seed, trace, shown))?;
    cluster.config.exports[0].delegations = millrace_server::Delegations::Read;
    cluster.start(time);
    cluster::finish(time, LIMIT, execute(&time.runtime(), &cluster, seed))
}

async fn execute(rt: &RuntimeRef, cluster: &Cluster, seed: Seed) -> Result<RunStats, String> {
    let text = |e: Error| e.to_string();
    let proto = if seed.0 % 3 == 2 { Proto::Tcp } else { Proto::Rdma };
    let versions: Vec<_> = (0..FILES).map(|_| Versions::default()).collect();
    let mut holders = Vec::new();
    for number in 0..CLIENTS {
        let options = options(Strategy::ALL[0]).vers(Some(Version::V4_2));
        let client = mount(&cluster.world, rt, number, proto, options).await.map_err(text)?;
        let mut files = Vec::new();
        for n in 0..FILES {
            let file = client.create_file(format!("f{n}"), 0o600).await.map_err(text)?;
            file.write(0, &0_u64.to_be_bytes()).await.map_err(text)?;
            file.commit().await.map_err(text)?;
            files.push(file);
        }
        let random = RefCell::new(Random::new(seed.0 * u64::from(CLIENTS) + u64::from(number)));
        let (cache, cached) = Default::default();
        holders.push(Holder { rt, client, files, cache, random, versions: &versions, cached });
    }
    let faults = || if seed.0.is_multiple_of(4) { Faults::default() } else { faults(proto) };
    cluster.world.set_faults(faults());
    let done = Cell::new(false);
    let runs = async {
        let ended = join_all(holders.iter().map(Holder::run)).await;
        done.set(true);
        ended.into_iter().collect::<Result<(), String>>()
    };
    // One outage, which may be longer than a lease.
    let outage = async {
        rt.sleep(Duration::from_micros(rt.random_u64() % 400_000)).await;
        if seed.0 % 2 == 1 && !done.get() {
            cluster.world.set_faults(Faults { lose_one_in: 1, ..faults() });
            rt.sleep(Duration::from_secs(rt.random_u64() % 200)).await;
            cluster.world.set_faults(faults());
        }
    };
    join(runs, outage).await.0?;
    let stats = cluster.stats();
    let cached = holders.iter().map(|holder| holder.cached.get()).sum();
    USES[0].fetch_add(cached, Ordering::Relaxed);
    USES[1].fetch_add(stats.nfs4_delegations_recalled, Ordering::Relaxed);
    cluster.world.set_faults(Faults::default());
    for holder in &holders {
        holder.client.shutdown().await;
    }
    let reconnects = holders.iter().map(|holder| holder.client.stats().reconnects).sum();
    Ok(RunStats { trace: cluster.world.trace(), reconnects, crashes: 0, replayed: stats.replayed })
}

fn faults(proto: Proto) -> Faults {
    // TCP sends about this number of segments per RDMA message.
    let parts = if proto == Proto::Tcp { 20 } else { 1 };
    Faults {
        lose_one_in: 300 * parts,
        delay_one_in: 20 * parts,
        longest_delay: Duration::from_millis(20),
        stall_one_in: 100 * parts,
        longest_stall: Duration::from_millis(50),
    }
}

impl Holder<'_> {
    async fn run(&self) -> Result<(), String> {
        for step in 0..STEPS {
            let dice = self.random.borrow_mut().next_u64();
            let file = (dice >> 8) as usize % FILES;
            match dice % 16 {
                0 => self.write(file).await,
                1 => {
                    self.rt.sleep(Duration::from_micros((dice >> 16) % 20_000)).await;
                    Ok(())
                }
                // The holder gives up a delegation.
                2 => {
                    drop(self.cache.lock().remove(&file));
                    Ok(())
                }
                _ => self.read(file).await,
            }
            .map_err(|e| format!("{}, step {step}: {e}", self.client.server()))?;
        }
        Ok(())
    }

    async fn write(&self, file: usize) -> Result<(), String> {
        let versions = &self.versions[file];
        let _turn = versions.turn.lock().await;
        let version = versions.begun.get() + 1;
        versions.begun.set(version);
        let text = |e: Error| e.to_string();
        self.files[file].write(0, &version.to_be_bytes()).await.map_err(text)?;
        self.files[file].commit().await.map_err(text)?;
        versions.acknowledged.set(version);
        if let Some(cached) = self.cache.lock().get_mut(&file) {
            cached.version = version;
        }
        Ok(())
    }

    async fn read(&self, file: usize) -> Result<(), String> {
        let floor = self.versions[file].acknowledged.get();
        let valid = |cached: &&Cached| cached.delegation.is_valid();
        let cached = self.cache.lock().get(&file).filter(valid).map(|cached| cached.version);
        if let Some(version) = cached {
            self.cached.set(self.cached.get() + 1);
            return self.check(file, floor, version, "from the cache");
        }
        let text = |e: Error| e.to_string();
        let granted = self.client.delegate(self.files[file].handle()).await.map_err(text)?;
        let mut bytes = [0; 8];
        self.files[file].read(0, &mut bytes).await.map_err(text)?;
        let version = u64::from_be_bytes(bytes);
        if let Some(granted) = granted {
            let recalled = granted.recalled;
            let previous = self.cache.lock().insert(file, Cached { delegation: granted.delegation, version });
            if previous.is_some() {
                return Err("two delegations of a file".into());
            }
            let delay = self.random.borrow_mut().below(RETURN_DELAY);
            let (cache, rt) = (Arc::clone(&self.cache), Arc::clone(self.rt));
            let ended = async move {
                recalled.await;
                rt.sleep(Duration::from_millis(delay)).await;
                // Another one cannot exist before this one is dropped.
                let ended = cache.lock().remove(&file).filter(|cached| !cached.delegation.is_valid());
                drop(ended);
            };
            self.rt.spawn("recall", Box::pin(ended));
        }
        self.check(file, floor, version, "from the server")
    }

    fn check(&self, file: usize, floor: u64, version: u64, source: &str) -> Result<(), String> {
        let newest = self.versions[file].begun.get();
        if (floor..=newest).contains(&version) {
            return Ok(());
        }
        Err(format!("file {file} has version {version} {source}, but {floor} was acknowledged"))
    }
}

/// A client that has a file delegated, and another one.
struct Scene<'s> {
    rt: RuntimeRef,
    time: &'s VirtualTime,
    cluster: &'s mut Cluster,
    holder: Client,
    other: File,
}

fn with_two_clients(test: impl AsyncFnOnce(Scene<'_>)) {
    let time = VirtualTime::new(7);
    let profile = Profile::named("gige-2003").expect("unknown profile");
    let mut cluster = Cluster::new(&time, profile);
    cluster.config.exports[0].delegations = millrace_server::Delegations::Read;
    cluster.start(&time);
    let (rt, world) = (time.runtime(), cluster.world.clone());
    let done = time.block_on(async {
        let options = || options(Strategy::ALL[0]).vers(Some(Version::V4_2));
        let holder = mount(&world, &rt, 0, Proto::Tcp, options()).await.expect("cannot mount");
        let other = mount(&world, &rt, 1, Proto::Tcp, options()).await.expect("cannot mount");
        let other = other.create_file("f", 0o600).await.expect("cannot create a file");
        let cluster = &mut cluster;
        test(Scene { rt: Arc::clone(&rt), time: &time, cluster, holder, other }).await;
    });
    done.expect("the run made no progress");
}

impl Scene<'_> {
    /// The file is delegated to the holder. A server delegates no file for 30 seconds after a recall.
    async fn delegated(&self) -> Delegated {
        loop {
            if let Some(delegated) = self.holder.delegate(self.other.handle()).await.expect("a reply") {
                return delegated;
            }
            self.rt.sleep(Duration::from_secs(10)).await;
        }
    }

    /// The other client changes the file. Returns the time that it took.
    async fn change(&self) -> Duration {
        let before = self.rt.now();
        self.other.write(0, b"changed").await.expect("the file can be written");
        self.other.commit().await.expect("the data can be committed");
        self.rt.now().duration_since(before)
    }
}

#[test]
fn a_recalled_delegation_is_not_trusted_before_the_change() {
    with_two_clients(async |s| {
        let Delegated { delegation, recalled, attributes } = s.delegated().await;
        assert_eq!(attributes.size, 0);
        assert!(delegation.is_valid());
        assert!(s.holder.delegate(s.other.handle()).await.expect("no call").is_none(), "it is delegated");
        let returning = async {
            recalled.await;
            assert!(!delegation.is_valid());
            s.rt.sleep(Duration::from_secs(1)).await;
            delegation.give_back().await;
        };
        let ((), took) = join(returning, s.change()).await;
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
        let stats = s.cluster.stats();
        assert_eq!((stats.nfs4_delegations, stats.nfs4_delegations_revoked), (0, 0));
    });
}

#[test]
fn a_revoked_delegation_is_freed_and_another_is_granted() {
    with_two_clients(async |s| {
        let first = s.delegated().await;
        // The holder keeps the delegation for longer than a lease.
        assert!(s.change().await >= Duration::from_secs(90));
        assert!(!first.delegation.is_valid());
        assert_eq!(s.cluster.stats().nfs4_delegations_revoked, 1);
        drop(first);
        // A revoked delegation that is not freed would end the next one.
        let second = s.delegated().await;
        s.rt.sleep(Duration::from_secs(300)).await;
        assert!(second.delegation.is_valid());
    });
}

#[test]
fn a_client_without_a_reply_for_a_lease_trusts_nothing() {
    with_two_clients(async |s| {
        let first = s.delegated().await;
        s.cluster.world.set_faults(Faults { lose_one_in: 1, ..Faults::default() });
        s.rt.sleep(Duration::from_secs(91)).await;
        assert!(!first.delegation.is_valid());
        s.cluster.world.set_faults(Faults::default());
        // The server ends the client whose lease has expired.
        s.change().await;
        s.holder.getattr(s.other.handle()).await.expect("the server can be reached");
        assert!(!first.delegation.is_valid());
        drop(first);
        let second = s.delegated().await;
        s.rt.sleep(Duration::from_secs(300)).await;
        assert!(second.delegation.is_valid(), "the lease is renewed");
    });
}

#[test]
fn a_restart_of_the_server_ends_delegations() {
    with_two_clients(async |s| {
        let first = s.delegated().await;
        s.cluster.crash();
        s.rt.sleep(Duration::from_secs(1)).await;
        s.cluster.start(s.time);
        s.holder.getattr(s.other.handle()).await.expect("the server can be reached");
        assert!(!first.delegation.is_valid());
        first.recalled.await;
        drop(first.delegation);
        assert!(s.delegated().await.delegation.is_valid());
    });
}
