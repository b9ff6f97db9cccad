//! Tests that run many seeds: each seed decides one simulated run.
#![allow(clippy::expect_used, clippy::panic)]

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use millrace_rdma_sim::{Seed, World};
use millrace_runtime::virtual_time::VirtualTime;

/// Seeds of a test unless `MILLRACE_SIM_SEEDS` says otherwise.
const SEEDS: u64 = 200;

/// How a run went.
#[derive(Debug)]
pub struct Told {
    /// The trace of the world, if there was one.
    pub trace: String,
    /// Reconnects of all clients.
    pub reconnects: u64,
    /// Crashes of the server.
    pub crashes: u64,
    /// Replies that the last server sent again.
    pub replayed: u64,
}

/// What a seed decides. It runs in virtual time; with a trace if the flag is set; the cell gets the world as soon as there
/// is one.
pub type Run = fn(&VirtualTime, Seed, bool, &Cell<Option<World>>) -> Result<Told, String>;

/// A kind of run.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Its name, the first word of `MILLRACE_SIM_REPLAY`.
    pub name: &'static str,
    /// What it does.
    pub run: Run,
    /// The command that runs the test which calls [`replay`].
    pub command: &'static str,
}

impl Kind {
    /// Runs a seed.
    ///
    /// # Errors
    /// What was wrong; the text of a panic too.
    pub fn outcome(&self, seed: Seed, trace: bool) -> Result<Told, String> {
        let attempt = || (self.run)(&VirtualTime::new(seed.0), seed, trace, &Cell::new(None));
        catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned())
        })
    }

    /// Runs a failed seed again with a trace, which is written to a file.
    ///
    /// # Panics
    /// Always, with `why`, where the trace is, and how to run the seed again.
    pub fn report(&self, seed: Seed, why: &str) -> ! {
        let path = std::env::temp_dir().join(format!("millrace-{}-seed-{}.trace", self.name, seed.0));
        let (time, world) = (VirtualTime::new(seed.0), Cell::new(None));
        drop(catch_unwind(AssertUnwindSafe(|| (self.run)(&time, seed, true, &world))));
        let trace = world.take().map(|w| w.trace()).unwrap_or_default();
        std::fs::write(&path, trace).expect("the trace can be written");
        let (name, path, command) = (self.name, path.display(), self.command);
        panic!(
            "{name}, {seed} failed: {why}\nits trace is in {path}; again:\nMILLRACE_SIM_REPLAY='{name} {seed}' {command}"
        );
    }

    /// Runs all seeds; gives how many, and reconnects, crashes and replayed replies.
    ///
    /// # Panics
    /// As [`Self::report`], at the first seed that fails.
    pub fn run_seeds(&self) -> (u64, [u64; 3]) {
        let seeds =
            std::env::var("MILLRACE_SIM_SEEDS").map_or(SEEDS, |n| n.parse().expect("a number of seeds"));
        let mut sums = [0; 3];
        for seed in (0..seeds).map(Seed) {
            let told = self.outcome(seed, false).unwrap_or_else(|why| self.report(seed, &why));
            for (sum, n) in sums.iter_mut().zip([told.reconnects, told.crashes, told.replayed]) {
                *sum += n;
            }
        }
        let (name, [reconnects, crashes, replayed]) = (self.name, sums);
        println!(
            "{name}: {seeds} simulated runs: {reconnects} reconnects, {crashes} crashes, {replayed} replies replayed"
        );
        (seeds, sums)
    }

    /// Runs a few seeds twice with a trace.
    ///
    /// # Panics
    /// When the two traces of a seed differ, or the seed fails.
    pub fn is_repeatable(&self) {
        for seed in [3, 4, 5, 6].map(Seed) {
            let trace = || self.outcome(seed, true).unwrap_or_else(|why| self.report(seed, &why)).trace;
            let (one, other) = (trace(), trace());
            assert!(one.lines().count() > 100, "{one}");
            assert_eq!(one.parse(), Ok(seed));
            let differ = one.lines().zip(other.lines()).position(|(a, b)| a != b);
            assert!(one == other, "{}, {seed} differs from itself in line {differ:?}", self.name);
        }
    }
}

/// Runs the seed that `MILLRACE_SIM_REPLAY` has (the name of a kind and a seed), if it is of one of these kinds.
///
/// # Panics
/// As [`Kind::report`], and when the variable cannot be read.
pub fn replay(kinds: &[Kind]) {
    let Ok(text) = std::env::var("MILLRACE_SIM_REPLAY") else { return };
    let (name, seed) = text.split_once(' ').expect("the name of a run and a seed");
    let Some(kind) = kinds.iter().find(|k| k.name == name) else { return };
    let seed = seed.parse().unwrap_or_else(|e| panic!("{e}"));
    if let Err(why) = kind.outcome(seed, true) {
        kind.report(seed, &why);
    }
}
