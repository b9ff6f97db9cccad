//! Client and server of the Read-Read design on a *simulated* network, with the stories of RFC 8166: for every seed, no
//! acknowledged byte is lost, no memory stays exposed, no call is executed twice, and no call hangs.
//! `MILLRACE_SIM_SEEDS=10000 cargo test -p millrace-read-read --test read_read` runs more seeds.

use std::time::Duration;

use millrace_client::{Proto, RetryPolicy, Strategy};
use millrace_crashtest::{
    cluster::{Cluster, mount, options},
    seeds::{self, Kind},
};
use millrace_rdma_sim::Profile;
use millrace_runtime::virtual_time::VirtualTime;

use crate::{mixed, protocol};

const COMMAND: &str = "cargo test -p millrace-read-read --test read_read replay";
const MIXED: Kind = Kind { name: "mixed", run: mixed::run, command: COMMAND };

#[test]
fn faults_lose_no_data_and_execute_no_call_twice() {
    let (seeds, [reconnects, crashes, replayed]) = MIXED.run_seeds();
    // The faults did occur.
    assert!(reconnects > seeds && crashes > seeds / 4 && replayed > 0);
}

#[test]
fn replay() {
    seeds::replay(&[MIXED]);
}

#[test]
fn a_design_without_page_sized_segments_is_rejected_immediately() {
    let time = VirtualTime::new(7);
    let mut cluster = Cluster::new(&time, Profile::named("ddr-linux-allphys").expect("unknown profile"));
    cluster.config.rdma_protocol = protocol();
    cluster.start(&time);
    let rt = time.runtime();
    let done = time.block_on(async {
        let retry = RetryPolicy { max_elapsed: Duration::from_secs(1), ..RetryPolicy::default() };
        let options = options(Strategy::Dynamic).rdma_protocol(protocol()).retry(retry);
        let mounted = mount(&cluster.world, &rt, 0, Proto::Rdma, options).await;
        let error = mounted.map(drop).expect_err("the mount succeeded");
        assert!(error.to_string().contains("the peer closed the connection"), "{error}");
        // The rejection does not wait for a time limit.
        assert!(rt.now().as_nanos() < 2_000_000_000);
    });
    done.expect("the run made no progress");
}
