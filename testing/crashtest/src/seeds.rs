//! Tests that run many seeds; each seed determines one simulated run.
#![allow(clippy::expect_used, clippy::panic)]

use std::{
    cell::Cell,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

use millrace_rdma_sim::{Seed, World};
use millrace_runtime::virtual_time::VirtualTime;

/// Seeds of a test unless `MILLRACE_SIM_SEEDS` gives their number or a range, such as `1000..2000`.
const SEEDS: Range<u64> = 0..100;

/// Parses the value of `MILLRACE_SIM_SEEDS`: the number of seeds from 0, or a range without its end.
fn parse_seeds(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once("..").unwrap_or(("0", text));
    Some(start.parse().ok()?..end.parse().ok()?).filter(|seeds| !seeds.is_empty())
}

/// Statistics of a run.
#[derive(Debug)]
pub struct RunStats {
    /// Trace of the world; empty if it was not recorded.
    pub trace: String,
    /// Number of reconnections of all clients.
    pub reconnects: u64,
    /// Number of server crashes.
    pub crashes: u64,
    /// Number of replies that the last server retransmitted.
    pub replayed: u64,
}

/// A simulated run of a seed in virtual time, with a trace if the flag is set. It stores the world in the
/// cell as soon as it exists.
pub type Run = fn(&VirtualTime, Seed, bool, &Cell<Option<World>>) -> Result<RunStats, String>;

/// A kind of run.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Name, the first word of `MILLRACE_SIM_REPLAY`.
    pub name: &'static str,
    /// The run.
    pub run: Run,
    /// Command that runs the test that calls [`replay`].
    pub command: &'static str,
}

impl Kind {
    /// Runs a seed.
    ///
    /// # Errors
    /// The reason of the failure, including the text of a panic.
    pub fn outcome(&self, seed: Seed, trace: bool) -> Result<RunStats, String> {
        let attempt = || (self.run)(&VirtualTime::new(seed.0), seed, trace, &Cell::new(None));
        catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned())
        })
    }

    /// Repeats a failed seed with a trace, which is written to a file.
    ///
    /// # Panics
    /// Always, with `why`, the path of the trace, and the command that repeats the seed.
    pub fn report(&self, seed: Seed, why: &str) -> ! {
        let path = std::env::temp_dir().join(format!("millrace-{}-seed-{}.trace", self.name, seed.0));
        let (time, world) = (VirtualTime::new(seed.0), Cell::new(None));
        drop(catch_unwind(AssertUnwindSafe(|| (self.run)(&time, seed, true, &world))));
        let trace = world.take().map(|w| w.trace()).unwrap_or_default();
        std::fs::write(&path, trace).expect("cannot write the trace");
        let (name, path, command) = (self.name, path.display(), self.command);
        panic!(
            "{name}, {seed} failed: {why}\ntrace: {path}; to repeat:\nMILLRACE_SIM_REPLAY='{name} {seed}' {command}"
        );
    }

    /// Runs all seeds. Returns their number, and the numbers of reconnections, crashes and retransmitted
    /// replies.
    ///
    /// # Panics
    /// Like [`Self::report`], at the first failed seed, and if `MILLRACE_SIM_SEEDS` is invalid.
    pub fn run_seeds(&self) -> (u64, [u64; 3]) {
        let seeds = std::env::var("MILLRACE_SIM_SEEDS").map_or(SEEDS, |text| {
            parse_seeds(&text).unwrap_or_else(|| {
                panic!(
                    "MILLRACE_SIM_SEEDS={text:?} is neither a number of seeds nor a range such as 1000..2000"
                )
            })
        });
        let count = seeds.end - seeds.start;
        let mut sums = [0; 3];
        for seed in seeds.map(Seed) {
            let stats = self.outcome(seed, false).unwrap_or_else(|why| self.report(seed, &why));
            for (sum, n) in sums.iter_mut().zip([stats.reconnects, stats.crashes, stats.replayed]) {
                *sum += n;
            }
        }
        let (name, [reconnects, crashes, replayed]) = (self.name, sums);
        println!(
            "{name}: {count} simulated runs: {reconnects} reconnects, {crashes} crashes, {replayed} replies replayed"
        );
        (count, sums)
    }

    /// Runs some seeds twice with a trace.
    ///
    /// # Panics
    /// If the two traces of a seed differ, or a seed fails.
    pub fn assert_repeatable(&self) {
        for seed in [3, 4, 5, 6].map(Seed) {
            let trace = || self.outcome(seed, true).unwrap_or_else(|why| self.report(seed, &why)).trace;
            let (one, other) = (trace(), trace());
            assert!(one.lines().count() > 100, "{one}");
            assert_eq!(one.parse(), Ok(seed));
            let differ = one.lines().zip(other.lines()).position(|(a, b)| a != b);
            assert!(one == other, "{}, {seed}: the traces differ in line {differ:?}", self.name);
        }
    }
}

/// Runs the seed in `MILLRACE_SIM_REPLAY` (the name of a kind and a seed), if its kind is one of `kinds`.
///
/// # Panics
/// Like [`Kind::report`], and if the variable is invalid.
pub fn replay(kinds: &[Kind]) {
    let Ok(text) = std::env::var("MILLRACE_SIM_REPLAY") else { return };
    let (name, seed) =
        text.split_once(' ').expect("MILLRACE_SIM_REPLAY is not the name of a kind and a seed");
    let Some(kind) = kinds.iter().find(|k| k.name == name) else { return };
    let seed = seed.parse().unwrap_or_else(|e| panic!("{e}"));
    if let Err(why) = kind.outcome(seed, true) {
        kind.report(seed, &why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_or_a_range() {
        assert_eq!(parse_seeds("300"), Some(0..300));
        assert_eq!(parse_seeds("76000..76400"), Some(76000..76400));
        for invalid in ["", "0", "many", "5..5", "9..5", "5..", "..5", "1..2..3", "-1..2"] {
            assert_eq!(parse_seeds(invalid), None, "{invalid}");
        }
    }
}
