//! Unstable data: random overlapping writes, truncations and commits by several writers, on a server whose disk loses
//! what is not committed. What is read must be what the [`Model`](crate::Model) allows.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use futures::future::{join, join_all};
use millrace_client::{Design, Proto, Strategy, nfs3::Client};
use millrace_rdma_sim::{Faults, Profile, Seed, World};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};

use crate::{
    Disk, DiskConfig, Random, Subject, Workload,
    scene::{Scene, mount, options},
    seeds::Told,
};

const CLIENTS: u8 = 2;
/// Writers of each client.
pub const WRITERS: usize = 3;
const FILES: usize = 2;
const STEPS: usize = 30;
const FILE_BYTES: u64 = 48 << 10;
const LONGEST_WRITE: u64 = 12 << 10;
/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The files that a subject is to make, empty, and to open for each writer.
pub struct Files {
    /// Their names in the root of the export.
    pub names: Vec<String>,
    /// The server's disk.
    pub disk: Arc<Disk>,
    /// For the subject's own choices.
    pub random: Random,
}

/// Runs the workload of `seed` on subjects that `make` makes of clients; `shown` gets the world as soon as there is one.
///
/// # Errors
/// What was wrong.
pub fn run<S: Subject>(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
    make: impl AsyncFn(Client, Files) -> Result<S, String>,
) -> Result<Told, String> {
    let profile = Profile::named("sdr-opensolaris").map_err(|e| e.to_string())?;
    let mut scene = Scene::new(time, profile, Design::ReadWrite);
    shown.set(Some(scene.world.clone()));
    if trace {
        scene.world.begin_trace(seed);
    }
    let rt = time.runtime();
    let disk = Disk::new(
        rt.clone(),
        DiskConfig { latency: Duration::from_millis(2), tells_before: seed.0 % 2 == 1, seed: seed.0 },
    );
    scene.files = Some(disk.clone());
    scene.start(time);
    let all = millrace_runtime::timeout(&*rt, LIMIT, play(time, &rt, &mut scene, &disk, seed, make));
    let told = time.block_on(all).map_err(|stuck| stuck.to_string())?;
    told.ok_or_else(|| format!("it takes more than {LIMIT:?}"))?
}

/// One of several, at random.
pub fn choice<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

async fn play<S: Subject>(
    time: &VirtualTime,
    rt: &RuntimeRef,
    scene: &mut Scene,
    disk: &Arc<Disk>,
    seed: Seed,
    make: impl AsyncFn(Client, Files) -> Result<S, String>,
) -> Result<Told, String> {
    let mut random = Random::new(seed.0);
    let proto = choice(&mut random, &[Proto::Rdma, Proto::Tcp]);
    let (mut clients, mut subjects) = (Vec::new(), Vec::new());
    let mut workloads = Vec::new();
    for number in 0..CLIENTS {
        let options = options(choice(&mut random, &Strategy::ALL), Design::ReadWrite)
            .wsize(Some(choice(&mut random, &[2 << 10, 8 << 10, 64 << 10])))
            .unstable_limit(choice(&mut random, &[16 << 10, 1 << 20]));
        let client = mount(&scene.world, rt, number, proto, options).await;
        let client = client.map_err(|e| e.to_string())?;
        let names = (0..FILES).map(|file| format!("client-{number}-file-{file}")).collect();
        let files = Files { names, disk: Arc::clone(disk), random: Random::new(!seed.0 ^ u64::from(number)) };
        subjects.push(make(client.clone(), files).await?);
        clients.push(client);
        workloads.push(Workload::new(FILES, FILE_BYTES, LONGEST_WRITE, random.next_u64()));
    }
    let world = scene.world.clone();
    world.set_faults(faults(&mut random, proto));
    let done = Cell::new(false);
    let scene = RefCell::new(scene);
    let writers = async {
        let plays = subjects.iter().zip(&workloads).flat_map(|(subject, workload)| {
            (0..WRITERS).map(move |writer| workload.play(subject, writer, |n| n < STEPS))
        });
        let ended = join_all(plays).await;
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
                    scene.borrow_mut().crash();
                    disk.lose();
                    rt.sleep(Duration::from_micros(random.below(3_000_000))).await;
                    scene.borrow_mut().start(time);
                    crashes += 1;
                }
                _ => {}
            }
        }
    };
    let (played, crashes) = join(writers, losses).await;
    played?;
    world.set_faults(Faults::default());
    for (number, (subject, workload)) in subjects.iter().zip(&workloads).enumerate() {
        workload.finish(subject).await.map_err(|e| format!("client {number}: {e}"))?;
    }
    let reconnects = clients.iter().map(|c| c.stats().reconnects).sum();
    let replayed = scene.borrow().stats().replayed;
    Ok(Told { trace: world.trace(), reconnects, crashes, replayed })
}

/// Lost connections, late messages, and pauses in which calls time out.
fn faults(random: &mut Random, proto: Proto) -> Faults {
    // Of what is a message over RDMA, TCP makes about so many segments.
    let parts = if proto == Proto::Tcp { 8 } else { 1 };
    Faults {
        lose_one_in: choice(random, &[0, 100, 400]) * parts,
        delay_one_in: choice(random, &[0, 50]) * parts,
        longest_delay: Duration::from_millis(choice(random, &[20, 8000])),
        stall_one_in: choice(random, &[0, 400]) * parts,
        longest_stall: Duration::from_millis(choice(random, &[50, 8000])),
    }
}
