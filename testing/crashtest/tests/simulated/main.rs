//! Client and server on a *simulated* network, where a seed determines lost connections, delayed messages,
//! stopped processors and server crashes.
//!
//! For every seed: no acknowledged byte is lost, no memory stays exposed, no call is executed twice, and no
//! call hangs. `MILLRACE_SIM_SEEDS=10000 cargo test -p millrace-crashtest --test simulated` runs more seeds.
//! A failed seed is printed, with the command that repeats it and writes its trace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod delegations;
mod idle;
mod lost_locks;
mod mixed;
mod replacements;
mod transports;
mod waiting_locks;

use std::{cell::Cell, sync::atomic::Ordering, time::Duration};

use millrace_client::{handles::Client, rpcrdma::ProtocolRef};
use millrace_crashtest::{
    Library,
    seeds::{self, Kind, RunStats},
    unstable::{self, Files, WRITERS},
};
use millrace_rdma_sim::{Seed, World};
use millrace_runtime::virtual_time::VirtualTime;

/// The protocol over RDMA in the tests `idle` and `mixed`, which the lab repeats with others.
fn protocol() -> ProtocolRef {
    ProtocolRef::default()
}

const COMMAND: &str = "cargo test -p millrace-crashtest --test simulated replay";
const MIXED: Kind = Kind { name: "mixed", run: mixed::run, command: COMMAND };
const REPLACEMENTS: Kind = Kind { name: "replacements", run: replacements::run, command: COMMAND };
const DELEGATIONS: Kind = Kind { name: "delegations", run: delegations::run, command: COMMAND };
const LOST_LOCKS: Kind = Kind { name: "lost-locks", run: lost_locks::run, command: COMMAND };
const UNSTABLE: Kind = Kind { name: "unstable", run: run_unstable, command: COMMAND };

fn run_unstable(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
) -> Result<RunStats, String> {
    unstable::run(time, seed, trace, shown, async |client: Client, files: Files| {
        let made = Library::new(client, files.names, WRITERS, Duration::from_millis(2)).await;
        made.map(|library| library.on_disk(&files.disk)).map_err(|e| e.to_string())
    })
}

#[test]
fn faults_lose_no_data_and_execute_no_call_twice() {
    let (seeds, [reconnects, crashes, replayed]) = MIXED.run_seeds();
    // The faults did occur.
    assert!(reconnects > seeds && crashes > seeds / 4 && replayed > 0);
}

#[test]
fn committed_data_persists_after_losses() {
    let (seeds, [reconnects, crashes, _]) = UNSTABLE.run_seeds();
    assert!(reconnects > seeds && crashes > seeds / 4, "too few reconnections or crashes");
}

#[test]
fn a_replaced_file_is_complete_and_no_acknowledged_version_is_lost() {
    let (seeds, [reconnects, crashes, _]) = REPLACEMENTS.run_seeds();
    assert!(reconnects > seeds && crashes > seeds, "too few reconnections or crashes");
}

#[test]
fn delegated_files_are_current() {
    let (seeds, [reconnects, ..]) = DELEGATIONS.run_seeds();
    let [cached, recalls] = [0, 1].map(|n| delegations::USES[n].load(Ordering::Relaxed));
    println!("{cached} reads from caches, {recalls} recalls");
    assert!(reconnects > seeds && cached > 10 * seeds && recalls > seeds);
}

#[test]
fn data_of_a_lost_lock_replaces_nothing() {
    let (seeds, [reconnects, crashes, _]) = LOST_LOCKS.run_seeds();
    println!("{:?}", *lost_locks::COUNTS);
    assert!(reconnects > seeds && crashes > seeds);
    lost_locks::COUNTS.assert_frequent(seeds);
}

#[test]
fn replay() {
    seeds::replay(&[MIXED, REPLACEMENTS, DELEGATIONS, LOST_LOCKS, UNSTABLE]);
}

#[test]
fn runs_with_the_same_seed_are_identical() {
    MIXED.assert_repeatable();
    REPLACEMENTS.assert_repeatable();
    DELEGATIONS.assert_repeatable();
    LOST_LOCKS.assert_repeatable();
    UNSTABLE.assert_repeatable();
}
