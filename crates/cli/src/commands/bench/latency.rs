//! `millrace bench latency`.

use millrace_bench::workload::Latency;
use millrace_cli_common::{
    failure::CommandResult,
    workload::{Place, run as run_workload},
};

use super::warn_of_debug_build;
use crate::{args::LatencyArgs, session};

pub(super) fn run(args: &LatencyArgs) -> CommandResult {
    warn_of_debug_build();
    let place = Place {
        url: args.url.clone(),
        self_server: args.self_server,
        dir: args.dir.clone(),
        address: args.address,
        proto: args.proto,
        runs: args.runs,
        json: args.json,
        options: session::options(),
        server_arguments: Vec::new(),
    };
    run_workload(&Latency { operations: args.operations }, &place)
}
