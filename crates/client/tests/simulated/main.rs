//! The real client and the real server on a *simulated* network that loses connections, holds up messages, stops
//! processors and crashes the server, as a seed has it.
//!
//! For every seed: no acknowledged byte is lost, nothing stays exposed, no call is executed twice, nothing hangs.
//! `MILLRACE_SIM_SEEDS=10000 cargo test -p millrace-client --test simulated` runs more seeds. A seed that fails is
//! printed, with the command that runs it again and writes its trace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod idle;
mod scene;
mod story;
mod transports;

use std::panic::{AssertUnwindSafe, catch_unwind};

use rdma::provider::sim::Seed;

use story::{Told, tell};

/// Seeds of a test run unless the environment says otherwise.
const SEEDS: u64 = 200;

/// Tells the story of a seed; what was wrong with it comes back as text.
fn outcome(seed: Seed, trace: bool) -> Result<Told, String> {
    catch_unwind(AssertUnwindSafe(|| tell(seed, trace))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned())
    })
}

/// Tells it again, and says how others can.
fn report(seed: Seed, why: &str) -> ! {
    let path = format!("{}/seed-{}.trace", env!("CARGO_TARGET_TMPDIR"), seed.0);
    story::write_trace(seed, &path);
    panic!(
        "{seed} failed: {why}\nits trace is in {path}; again:\nMILLRACE_SIM_REPLAY='{seed}' cargo test -p \
         millrace-client --test simulated replay"
    );
}

#[test]
fn whatever_happens_nothing_is_lost_exposed_executed_twice_or_stuck() {
    let seeds = std::env::var("MILLRACE_SIM_SEEDS").map_or(SEEDS, |n| n.parse().expect("a number of seeds"));
    let (mut reconnects, mut crashes, mut replayed) = (0, 0, 0);
    for seed in (0..seeds).map(Seed) {
        let told = outcome(seed, false).unwrap_or_else(|why| report(seed, &why));
        reconnects += told.reconnects;
        crashes += told.crashes;
        replayed += told.replayed;
    }
    println!(
        "{seeds} simulated runs: {reconnects} reconnects, {crashes} crashes, {replayed} replies replayed"
    );
    // The stories are worth telling.
    assert!(reconnects > seeds && crashes > seeds / 4 && replayed > 0);
}

#[test]
fn replay() {
    let Ok(text) = std::env::var("MILLRACE_SIM_REPLAY") else { return };
    let seed = text.parse().unwrap_or_else(|e| panic!("{e}"));
    if let Err(why) = outcome(seed, true) {
        report(seed, &why);
    }
}

#[test]
fn the_whole_stack_does_the_same_with_the_same_seed() {
    for seed in [3, 4, 5, 6].map(Seed) {
        let one = outcome(seed, true).unwrap_or_else(|why| report(seed, &why)).trace;
        let other = outcome(seed, true).unwrap_or_else(|why| report(seed, &why)).trace;
        assert!(one.lines().count() > 100, "{one}");
        assert_eq!(one.parse(), Ok(seed));
        let differ = one.lines().zip(other.lines()).position(|(a, b)| a != b);
        assert!(one == other, "{seed} differs from itself in line {differ:?}");
    }
}
