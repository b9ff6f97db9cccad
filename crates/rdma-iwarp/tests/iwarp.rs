//! The conformance tests for providers, with software iWARP over loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../rdma/tests/suite/mod.rs"]
mod suite;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use millrace_rdma_iwarp::Iwarp;
use millrace_runtime::tokio_rt::TokioRuntime;

use suite::common::Lab;

/// Time limit of a test.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `test` with a new provider.
fn on_a_device(test: impl AsyncFnOnce(Lab)) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("cannot create a runtime");
    let done = runtime.block_on(async {
        let provider = Arc::new(Iwarp::new());
        let lab = Lab { provider, rt: TokioRuntime::current(), ip: Ipv4Addr::LOCALHOST.into() };
        tokio::time::timeout(LIMIT, test(lab)).await
    });
    done.expect("the test timed out");
}
