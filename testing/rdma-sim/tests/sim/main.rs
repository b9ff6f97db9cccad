//! Tests of the simulated provider in virtual time: the conformance tests, and the exact times of its model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;
mod profiles;
#[path = "../../../../crates/rdma/tests/suite/mod.rs"]
mod suite;
mod tcp;

use std::{future::poll_fn, net::SocketAddr, task::Poll, time::Duration};

use millrace_rdma::{Completion, ConnectParams, WorkId};
use millrace_rdma_sim::{Profile, World};
use millrace_runtime::virtual_time::VirtualTime;

use suite::common::*;

/// A profile with unrealistic, distinct values.
const ODD: &str = include_str!("odd.toml");

/// A profile with a source beside each value.
fn with_sources(text: &str) -> String {
    text.lines()
        .map(|l| if l.contains('=') { format!("{l} # of no machine\n") } else { format!("{l}\n") })
        .collect()
}

fn odd() -> Profile {
    Profile::parse(&with_sources(ODD)).unwrap()
}

/// Runs `test` on a simulated host that is connected to itself.
fn on_a_device(test: impl AsyncFnOnce(Lab)) {
    let time = VirtualTime::new(1);
    let ip = [10, 0, 0, 1].into();
    let provider = World::new(&time, odd()).add_host(ip);
    let done = time.block_on(test(Lab { provider, rt: time.runtime(), ip }));
    done.expect("the test made no progress");
}
