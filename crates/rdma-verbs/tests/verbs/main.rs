//! The verbs provider on a real RDMA device, hardware or software (the kernel's rxe and siw).
//!
//! The tests run where `MILLRACE_TEST_VERBS` has the address of such a device, as in
//! `MILLRACE_TEST_VERBS=10.99.0.1 cargo test -p millrace-rdma-verbs --test verbs`; elsewhere each says so and passes.
//! With `MILLRACE_TEST_RXE_WINDOWS` set, they use memory windows on rxe too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod shared;
#[path = "../../../rdma/tests/suite/mod.rs"]
mod suite;

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_rdma::{ConnectParams, ConnectionError};
use millrace_rdma_verbs::Verbs;
use millrace_runtime::tokio_rt::TokioRuntime;

use suite::common::*;

/// What would take longer is stuck.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs `test` on the device that the environment names, if it names one.
fn on_a_device(test: impl AsyncFnOnce(Lab)) {
    let Ok(address) = std::env::var("MILLRACE_TEST_VERBS") else {
        eprintln!("skipped: MILLRACE_TEST_VERBS has no address of an RDMA device");
        return;
    };
    if std::env::var_os("MILLRACE_TEST_RXE_WINDOWS").is_some() {
        millrace_rdma_verbs::trust_rxe_windows();
    }
    let ip = address.parse().expect("MILLRACE_TEST_VERBS is an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let done = runtime.block_on(async {
        let provider = Arc::new(Verbs::new().expect("rdma-core"));
        let lab = Lab { provider, rt: TokioRuntime::current(), ip };
        tokio::time::timeout(LIMIT, test(lab)).await
    });
    done.expect("the test is stuck");
}
