//! A mixed workload of file operations with faults and crashes.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use futures::{
    StreamExt,
    future::{join, join_all},
    stream::FuturesUnordered,
};
use millrace_client::{
    Error, Proto, Strategy, Version,
    handles::{Client, File},
    ops::{Procedure, SetAttributes},
};
use millrace_nfs::v4::Operation;
use millrace_rdma_sim::{Faults, Seed, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};

use millrace_crashtest::{
    cluster::{self, Cluster, mount, options},
    seeds::RunStats,
};

const CLIENTS: u8 = 2;
/// Number of steps of each client.
const STEPS: usize = 25;
/// Size of each client's file in bytes.
const FILE: usize = 300_000;
/// Time limit of a run, in virtual time.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Runs `seed`; stores the world in `shown` as soon as it exists.
pub(crate) fn run(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
) -> Result<RunStats, String> {
    let strategy = Strategy::ALL[(seed.0 % 4) as usize];
    let mut cluster = Cluster::of_seed(time, (seed, trace, shown))?;
    cluster.config.rdma_protocol = crate::protocol();
    cluster.start(time);
    cluster::finish(time, LIMIT, execute(time, &time.runtime(), &mut cluster, strategy, seed))
}

/// The acknowledged state of a client.
struct ClientState {
    client: Client,
    file: File,
    content: Vec<u8>,
    number: u8,
    made: Vec<String>,
}

async fn execute(
    time: &VirtualTime,
    rt: &RuntimeRef,
    cluster: &mut Cluster,
    strategy: Strategy,
    seed: Seed,
) -> Result<RunStats, String> {
    let text = |e: Error| e.to_string();
    let proto = if seed.0 % 3 == 2 { Proto::Tcp } else { Proto::Rdma };
    let version = if seed.0 % 7 < 3 { Version::V4_2 } else { Version::V3 };
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let options = options(strategy).rdma_protocol(crate::protocol()).vers(Some(version));
        let client = mount(&cluster.world, rt, number, proto, options).await.map_err(text)?;
        let file = client.create_file(format!("file-{number}"), 0o600).await.map_err(text)?;
        clients.push(ClientState { client, file, content: vec![0; FILE], number, made: Vec::new() });
    }
    let (world, before) = (cluster.world.clone(), changes(cluster));
    world.set_faults(faults(proto));
    let done = Cell::new(false);
    let cluster = RefCell::new(cluster);
    let runs = async {
        let runs = join_all(clients.iter_mut().map(|p| p.run_writer(rt)));
        let ended = runs.await;
        done.set(true);
        ended.into_iter().collect::<Result<(), String>>()
    };
    // Crashes for every other seed.
    let crashes = async {
        let mut crashes = 0;
        while seed.0.is_multiple_of(2) && !done.get() {
            rt.sleep(Duration::from_micros(rt.random_u64() % 100_000)).await;
            if done.get() || crashes == 3 {
                break;
            }
            cluster.borrow_mut().crash();
            rt.sleep(Duration::from_micros(rt.random_u64() % 3_000_000)).await;
            cluster.borrow_mut().start(time);
            crashes += 1;
        }
        crashes
    };
    let (outcome, crashes) = join(runs, crashes).await;
    outcome?;
    world.set_faults(Faults::default());
    let cluster = cluster.into_inner();
    let mut reconnects = 0;
    for p in &clients {
        p.check().await?;
        reconnects += p.client.stats().reconnects;
    }
    let stats = cluster.stats();
    if crashes == 0 {
        let asked: usize = clients.iter().map(|p| p.made.len()).sum();
        let executed = changes(cluster) - before;
        if executed != asked as u64 {
            return Err(format!("{asked} calls were made and {executed} executed"));
        }
    }
    drop(clients);
    rt.sleep(Duration::from_secs(120)).await;
    match world.exposed() {
        (0, 0) => {}
        (regions, bytes) => return Err(format!("{regions} regions with {bytes} bytes are still exposed")),
    }
    Ok(RunStats { trace: world.trace(), reconnects, crashes, replayed: stats.replayed })
}

/// Number of executed non-idempotent calls.
fn changes(cluster: &Cluster) -> u64 {
    let stats = cluster.stats();
    stats.calls_of(Procedure::Mkdir)
        + stats.calls_of(Procedure::Rename)
        + stats.operations_of(Operation::Create)
        + stats.operations_of(Operation::Rename)
}

fn faults(proto: Proto) -> Faults {
    // TCP sends about this number of segments per RDMA message.
    let parts = if proto == Proto::Tcp { 20 } else { 1 };
    Faults {
        lose_one_in: 60 * parts,
        delay_one_in: 50 * parts,
        longest_delay: Duration::from_millis(20),
        stall_one_in: 100 * parts,
        longest_stall: Duration::from_millis(50),
    }
}

impl ClientState {
    async fn run_writer(&mut self, rt: &RuntimeRef) -> Result<(), String> {
        for step in 0..STEPS {
            let dice = rt.random_u64();
            let done = match dice % 8 {
                0..=3 => self.write(rt).await,
                4 => self.read(dice >> 8).await,
                5 => self.file.commit().await.map_err(|e| e.to_string()),
                _ => self.change_names(step).await,
            };
            done.map_err(|e| format!("client {}, step {step}: {e}", self.number))?;
        }
        self.file.commit().await.map_err(|e| e.to_string())
    }

    /// Several concurrent writes to separate parts.
    async fn write(&mut self, rt: &RuntimeRef) -> Result<(), String> {
        const PARTS: usize = 3;
        let part = FILE / PARTS;
        let writes = FuturesUnordered::new();
        for n in 0..PARTS {
            let start = n * part + rt.random_u64() as usize % part;
            let len = 1 + rt.random_u64() as usize % (n * part + part - start);
            let mut bytes = vec![0; len];
            rt.fill_random(&mut bytes);
            self.content[start..start + len].copy_from_slice(&bytes);
            let file = &self.file;
            writes.push(async move { file.write(start as u64, &bytes).await });
        }
        let ended: Vec<Result<(), Error>> = writes.collect().await;
        ended.into_iter().collect::<Result<(), Error>>().map_err(|e| e.to_string())
    }

    async fn read(&self, dice: u64) -> Result<(), String> {
        let start = dice as usize % FILE;
        let mut bytes = vec![0; FILE - start];
        let n = self.file.read(start as u64, &mut bytes).await.map_err(|e| e.to_string())?;
        // Data that was never written is a hole, or beyond the end.
        let expected = &self.content[start..];
        let beyond = expected[n..].iter().all(|b| *b == 0);
        if bytes[..n] != expected[..n] || !beyond {
            return Err(format!("the data read from {start} on differs from the written data"));
        }
        Ok(())
    }

    /// Creates a directory, or renames the last one.
    async fn change_names(&mut self, step: usize) -> Result<(), String> {
        let root = self.client.root();
        let name = format!("dir-{}-{step}", self.number);
        let done = match self.made.last() {
            Some(old) if step.is_multiple_of(3) => self.client.rename(root, old, root, &name).await.map(drop),
            _ => self.client.mkdir(root, &name, SetAttributes::default()).await.map(drop),
        };
        done.map_err(|e| e.to_string())?;
        self.made.push(name);
        Ok(())
    }

    /// Checks that all acknowledged changes persist.
    async fn check(&self) -> Result<(), String> {
        self.read(0).await?;
        let last = self.made.last().map(|n| self.client.lookup(self.client.root(), n.clone()));
        match last {
            Some(found) => found.await.map(drop).map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }
}
