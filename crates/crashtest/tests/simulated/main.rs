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

use std::{cell::Cell, time::Duration};

use millrace_client::nfs3::Client;
use millrace_crashtest::{
    Library,
    seeds::{self, Kind, Told},
    unstable::{self, Files, WRITERS},
};
use millrace_rdma_sim::{Seed, World};
use millrace_runtime::virtual_time::VirtualTime;

const COMMAND: &str = "cargo test -p millrace-crashtest --test simulated replay";
const STORY: Kind = Kind { name: "story", run: story::run, command: COMMAND };
const UNSTABLE: Kind = Kind { name: "unstable", run: run_unstable, command: COMMAND };

fn run_unstable(
    time: &VirtualTime,
    seed: Seed,
    trace: bool,
    shown: &Cell<Option<World>>,
) -> Result<Told, String> {
    unstable::run(time, seed, trace, shown, async |client: Client, files: Files| {
        let made = Library::new(client, files.names, WRITERS, Duration::from_millis(2)).await;
        made.map(|library| library.on_disk(&files.disk)).map_err(|e| e.to_string())
    })
}

#[test]
fn whatever_happens_nothing_is_lost_exposed_executed_twice_or_stuck() {
    let (seeds, [reconnects, crashes, replayed]) = STORY.run_seeds();
    // The stories are worth telling.
    assert!(reconnects > seeds && crashes > seeds / 4 && replayed > 0);
}

#[test]
fn after_a_commit_no_older_data_is_read_whatever_was_lost() {
    let (seeds, [reconnects, crashes, _]) = UNSTABLE.run_seeds();
    assert!(reconnects > seeds && crashes > seeds / 4, "too few reconnections or crashes");
}

#[test]
fn replay() {
    seeds::replay(&[STORY, UNSTABLE]);
}

#[test]
fn the_whole_stack_does_the_same_with_the_same_seed() {
    STORY.is_repeatable();
    UNSTABLE.is_repeatable();
}
