//! Devices on a simulated network with faults, over TCP and with iSER. The seed determines a run completely.
//! `MILLRACE_SIM_SEEDS` gives their number or range; a failed seed names the command that repeats it and writes its
//! trace.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, which are to fail.

mod cluster;
mod model;
mod sparse;
mod story;

use std::sync::atomic::Ordering;

use millrace_crashtest::seeds::{self, Kind};

const COMMAND: &str = "cargo test -p millrace-iscsi-initiator --test simulated replay";
const SESSIONS: Kind = Kind { name: "block", run: story::run, command: COMMAND };

#[test]
fn each_operation_has_one_outcome_and_no_flushed_data_is_lost() {
    let (seeds, [reconnects, crashes, _]) = SESSIONS.run_seeds();
    let occurred = &story::OCCURRED;
    println!("{occurred:?}");
    // The faults did occur.
    assert!(reconnects > seeds && crashes > seeds / 2, "{reconnects} reconnects, {crashes} crashes");
    if seeds >= 100 {
        for counter in
            [&occurred.losses, &occurred.timeouts, &occurred.cancelled, &occurred.resets, &occurred.divided]
        {
            assert!(counter.load(Ordering::Relaxed) > seeds / 20, "{occurred:?}");
        }
    }
}

#[test]
fn replay() {
    seeds::replay(&[SESSIONS]);
}

#[test]
fn runs_with_the_same_seed_are_identical() {
    SESSIONS.assert_repeatable();
}
