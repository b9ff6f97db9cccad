//! Tests of the verbs provider on an RDMA device, in hardware or software (the kernel's rxe and siw).
//!
//! The tests run if `MILLRACE_TEST_VERBS` contains the address of such a device, as in
//! `MILLRACE_TEST_VERBS=10.99.0.1 cargo test -p millrace-rdma-verbs --test verbs`; otherwise they are
//! skipped. If `MILLRACE_TEST_RXE_WINDOWS` is set, they also use memory windows on rxe.
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

/// Time limit of a test.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs `test` on the device with the address in `MILLRACE_TEST_VERBS`, if it is set.
fn on_a_device(test: impl AsyncFnOnce(Lab)) {
    let Ok(address) = std::env::var("MILLRACE_TEST_VERBS") else {
        eprintln!("skipped: MILLRACE_TEST_VERBS is not set to the address of an RDMA device");
        return;
    };
    if std::env::var_os("MILLRACE_TEST_RXE_WINDOWS").is_some() {
        millrace_rdma_verbs::trust_rxe_windows();
    }
    let ip = address.parse().expect("MILLRACE_TEST_VERBS is not an address");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("cannot create a runtime");
    let done = runtime.block_on(async {
        let provider = Arc::new(Verbs::new().expect("rdma-core is not available"));
        let lab = Lab { provider, rt: TokioRuntime::current(), ip };
        tokio::time::timeout(LIMIT, test(lab)).await
    });
    done.expect("the test timed out");
}
