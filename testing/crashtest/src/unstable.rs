//! Unstable data: random overlapping writes, truncations and commits by several writers, on a server whose
//! disk loses uncommitted data. The data read must be permitted by the [`Model`](crate::Model).

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use futures::future::{join, join_all};
use millrace_client::{Proto, Strategy, Version, handles::Client};
use millrace_rdma_sim::{Faults, Seed, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};

use crate::{
    Disk, Random, Subject, Workload,
    cluster::{self, Cluster, mount, options},
    seeds::RunStats,
};

const CLIENTS: u8 = 2;
/// Writers per client.
pub const WRITERS: usize = 3;
const FILES: usize = 2;
const STEPS: usize = 30;
const FILE_BYTES: u64 = 48 << 10;
const LONGEST_WRITE: u64 = 12 << 10;
/// Time limit of a run, in virtual time.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The files that a subject must create and open for each writer.
pub struct Files {
    /// Names in the root of the export.
    pub names: Vec<String>,
    /// The server's disk.
    pub disk: Arc<Disk>,
    /// Random numbers for the subject.
    pub random: Random,
}

/// Runs the workload of `seed` on subjects that `make` creates from clients; stores the world in `shown` as
/// soon as it exists.
///
/// # Errors
/// The reason of the failure.
pub fn run<S: Subject>(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
    make: impl AsyncFn(Client, Files) -> Result<S, String>,
) -> Result<RunStats, String> {
    let mut cluster = Cluster::of_seed(time, (seed, trace, shown))?;
    let disk = cluster.use_disk(time, seed, seed.0 % 2 == 1);
    cluster.start(time);
    cluster::finish(time, LIMIT, run_cluster(time, &time.runtime(), &mut cluster, &disk, seed, make))
}

/// Chooses a random element.
pub fn choice<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

async fn run_cluster<S: Subject>(
    time: &VirtualTime,
    rt: &RuntimeRef,
    cluster: &mut Cluster,
    disk: &Arc<Disk>,
    seed: Seed,
    make: impl AsyncFn(Client, Files) -> Result<S, String>,
) -> Result<RunStats, String> {
    let mut random = Random::new(seed.0);
    let proto = choice(&mut random, &[Proto::Rdma, Proto::Tcp]);
    let version = if seed.0 % 5 < 2 { Version::V4_2 } else { Version::V3 };
    let (mut clients, mut subjects) = (Vec::new(), Vec::new());
    let mut workloads = Vec::new();
    for number in 0..CLIENTS {
        let options = options(choice(&mut random, &Strategy::ALL))
            .vers(Some(version))
            .wsize(Some(choice(&mut random, &[2 << 10, 8 << 10, 64 << 10])))
            .unstable_limit(choice(&mut random, &[16 << 10, 1 << 20]));
        let client = mount(&cluster.world, rt, number, proto, options).await;
        let client = client.map_err(|e| e.to_string())?;
        let names = (0..FILES).map(|file| format!("client-{number}-file-{file}")).collect();
        let files = Files { names, disk: Arc::clone(disk), random: Random::new(!seed.0 ^ u64::from(number)) };
        subjects.push(make(client.clone(), files).await?);
        clients.push(client);
        workloads.push(Workload::new(FILES, FILE_BYTES, LONGEST_WRITE, random.next_u64()));
    }
    let world = cluster.world.clone();
    world.set_faults(faults(&mut random, proto));
    let done = Cell::new(false);
    let cluster = RefCell::new(cluster);
    let writers = async {
        let runs = subjects.iter().zip(&workloads).flat_map(|(subject, workload)| {
            (0..WRITERS).map(move |writer| workload.run_writer(subject, writer, |n| n < STEPS))
        });
        let ended = join_all(runs).await;
        done.set(true);
        ended.into_iter().collect::<Result<(), String>>()
    };
    let losses = async {
        let mut crashes = 0;
        loop {
            rt.sleep(Duration::from_micros(random.below(60_000))).await;
            if done.get() {
                return crashes;
            }
            match random.below(8) {
                0 => disk.change_verifier(),
                1 => disk.lose(),
                2 if crashes < 4 => {
                    cluster.borrow_mut().crash();
                    disk.lose();
                    rt.sleep(Duration::from_micros(random.below(3_000_000))).await;
                    cluster.borrow_mut().start(time);
                    crashes += 1;
                }
                _ => {}
            }
        }
    };
    let (outcome, crashes) = join(writers, losses).await;
    outcome?;
    world.set_faults(Faults::default());
    for (number, (subject, workload)) in subjects.iter().zip(&workloads).enumerate() {
        workload.finish(subject).await.map_err(|e| format!("client {number}: {e}"))?;
    }
    let reconnects = clients.iter().map(|c| c.stats().reconnects).sum();
    let replayed = cluster.borrow().stats().replayed;
    Ok(RunStats { trace: world.trace(), reconnects, crashes, replayed })
}

/// Lost connections, delayed messages, and stops in which calls time out.
fn faults(random: &mut Random, proto: Proto) -> Faults {
    // TCP sends about this number of segments per RDMA message.
    let parts = if proto == Proto::Tcp { 8 } else { 1 };
    Faults {
        lose_one_in: choice(random, &[0, 100, 400]) * parts,
        delay_one_in: choice(random, &[0, 50]) * parts,
        longest_delay: Duration::from_millis(choice(random, &[20, 8000])),
        stall_one_in: choice(random, &[0, 400]) * parts,
        longest_stall: Duration::from_millis(choice(random, &[50, 8000])),
    }
}
