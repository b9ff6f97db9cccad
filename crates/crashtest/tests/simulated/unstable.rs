//! Unstable data: random overlapping writes, truncations and commits by several writers, on a server whose disk loses
//! what is not committed. What is read must be what the model of [`crashtest`] allows.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use client::{Design, Error, Options, Proto, Strategy};
use crashtest::{
    Disk, DiskConfig, Library, Random, Workload,
    scene::{Scene, mount, options},
};
use futures::future::{join, join_all};
use rdma::provider::sim::{Faults, Profile, Seed, World};
use runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};

use crate::story::Told;

const CLIENTS: u8 = 2;
const WRITERS: usize = 3;
const FILES: usize = 2;
const STEPS: usize = 30;
const FILE_BYTES: u64 = 48 << 10;
const LONGEST_WRITE: u64 = 12 << 10;
/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

fn text(e: Error) -> String {
    e.to_string()
}

/// Runs the workload of `seed`; `shown` gets the world as soon as there is one.
pub(crate) fn run(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
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
    let all = runtime::timeout(&*rt, LIMIT, play(time, &rt, &mut scene, &disk, seed));
    let told = time.block_on(all).map_err(|stuck| stuck.to_string())?;
    told.ok_or_else(|| format!("it takes more than {LIMIT:?}"))?
}

fn choice<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

async fn play(
    time: &VirtualTime,
    rt: &RuntimeRef,
    scene: &mut Scene,
    disk: &Arc<Disk>,
    seed: Seed,
) -> Result<Told, String> {
    let mut random = Random::new(seed.0);
    let proto = choice(&mut random, &[Proto::Rdma, Proto::Tcp]);
    let mut subjects = Vec::new();
    let mut workloads = Vec::new();
    for number in 0..CLIENTS {
        let options = Options {
            wsize: Some(choice(&mut random, &[2 << 10, 8 << 10, 64 << 10])),
            unstable_limit: choice(&mut random, &[16 << 10, 1 << 20]),
            ..options(choice(&mut random, &Strategy::ALL), Design::ReadWrite)
        };
        let client = mount(&scene.world, rt, number, proto, options).await.map_err(text)?;
        let names = (0..FILES).map(|file| format!("client-{number}-file-{file}")).collect();
        let subject = Library::new(client, names, WRITERS, Duration::from_millis(2)).await.map_err(text)?;
        subjects.push(subject.on_disk(disk));
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
    let mut reconnects = 0;
    for (number, (subject, workload)) in subjects.iter().zip(&workloads).enumerate() {
        workload.finish(subject).await.map_err(|e| format!("client {number}: {e}"))?;
        reconnects += subject.client().stats().reconnects;
    }
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
