//! The real client and the real server on a *simulated* network that loses connections, holds up messages, stops
//! processors and crashes the server, as a seed has it.
//!
//! For every seed: no acknowledged byte is lost, nothing stays exposed, no call is executed twice, nothing hangs.
//! `MILLRACE_SIM_SEEDS=10000 cargo test -p millrace-crashtest --test simulated` runs more seeds. A seed that fails is
//! printed, with the command that runs it again and writes its trace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod idle;
mod story;
mod transports;
mod unstable;

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use rdma::provider::sim::{Seed, World};
use runtime::virtual_time::VirtualTime;

use story::Told;

/// Seeds of a test run unless the environment says otherwise.
const SEEDS: u64 = 200;

/// A kind of run that a seed decides. It runs in virtual time; the world comes out as soon as there is one.
type Run = fn(&VirtualTime, Seed, bool, &Cell<Option<World>>) -> Result<Told, String>;

/// The kinds of runs, by name.
const RUNS: [(&str, Run); 2] = [("story", story::run), ("unstable", unstable::run)];

/// Runs a seed; what was wrong with it comes back as text.
fn outcome(run: Run, seed: Seed, trace: bool) -> Result<Told, String> {
    let attempt = || run(&VirtualTime::new(seed.0), seed, trace, &Cell::new(None));
    catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned())
    })
}

/// Runs a failed seed again with a trace, and says how to do that by hand.
fn report((name, run): (&str, Run), seed: Seed, why: &str) -> ! {
    let path = format!("{}/{name}-seed-{}.trace", env!("CARGO_TARGET_TMPDIR"), seed.0);
    let (time, world) = (VirtualTime::new(seed.0), Cell::new(None));
    drop(catch_unwind(AssertUnwindSafe(|| run(&time, seed, true, &world))));
    let trace = world.take().map(|w| w.trace()).unwrap_or_default();
    std::fs::write(&path, trace).expect("the trace can be written");
    panic!(
        "{name}, {seed} failed: {why}\nits trace is in {path}; again:\nMILLRACE_SIM_REPLAY='{name} {seed}' cargo test -p \
         millrace-crashtest --test simulated replay"
    );
}

/// Runs all seeds of one kind, and gives reconnects, crashes and replayed replies.
fn run_seeds(kind: (&str, Run)) -> (u64, [u64; 3]) {
    let seeds = std::env::var("MILLRACE_SIM_SEEDS").map_or(SEEDS, |n| n.parse().expect("a number of seeds"));
    let mut sums = [0; 3];
    for seed in (0..seeds).map(Seed) {
        let told = outcome(kind.1, seed, false).unwrap_or_else(|why| report(kind, seed, &why));
        for (sum, n) in sums.iter_mut().zip([told.reconnects, told.crashes, told.replayed]) {
            *sum += n;
        }
    }
    let (name, [reconnects, crashes, replayed]) = (kind.0, sums);
    println!(
        "{name}: {seeds} simulated runs: {reconnects} reconnects, {crashes} crashes, {replayed} replies replayed"
    );
    (seeds, sums)
}

#[test]
fn whatever_happens_nothing_is_lost_exposed_executed_twice_or_stuck() {
    let (seeds, [reconnects, crashes, replayed]) = run_seeds(RUNS[0]);
    // The stories are worth telling.
    assert!(reconnects > seeds && crashes > seeds / 4 && replayed > 0);
}

#[test]
fn after_a_commit_no_older_data_is_read_whatever_was_lost() {
    let (seeds, [reconnects, crashes, _]) = run_seeds(RUNS[1]);
    assert!(reconnects > seeds && crashes > seeds / 4, "the runs exercise loss");
}

#[test]
fn replay() {
    let Ok(text) = std::env::var("MILLRACE_SIM_REPLAY") else { return };
    let (name, seed) = text.split_once(' ').expect("the name of a run and a seed");
    let kind = *RUNS.iter().find(|(n, _)| *n == name).expect("the name of a run");
    let seed = seed.parse().unwrap_or_else(|e| panic!("{e}"));
    if let Err(why) = outcome(kind.1, seed, true) {
        report(kind, seed, &why);
    }
}

#[test]
fn the_whole_stack_does_the_same_with_the_same_seed() {
    for kind in RUNS {
        for seed in [3, 4, 5, 6].map(Seed) {
            let one = outcome(kind.1, seed, true).unwrap_or_else(|why| report(kind, seed, &why)).trace;
            let other = outcome(kind.1, seed, true).unwrap_or_else(|why| report(kind, seed, &why)).trace;
            assert!(one.lines().count() > 100, "{one}");
            assert_eq!(one.parse(), Ok(seed));
            let differ = one.lines().zip(other.lines()).position(|(a, b)| a != b);
            assert!(one == other, "{seed} differs from itself in line {differ:?}");
        }
    }
}
