//! `millrace bench latency`, `checkpoint`, `loader` and `metadata`.

use millrace_bench::command::workload::{Place, run as run_workload};
use millrace_bench::workload::{Checkpoint, Latency, Loader, Metadata, Workload};
use millrace_client::Proto;
use millrace_program::{
    failure::{CommandResult, Outcome},
    output,
};

use super::warn_of_debug_build;
use crate::{
    args::{CheckpointArgs, LatencyArgs, LoaderArgs, MetadataArgs, PlaceArgs},
    session,
};

fn run(workload: &impl Workload, args: &PlaceArgs) -> CommandResult {
    warn_of_debug_build();
    let place = Place {
        url: args.url.clone(),
        self_server: args.self_server,
        dir: args.dir.clone(),
        address: args.address,
        proto: args.proto.unwrap_or(Proto::Rdma),
        runs: args.runs,
        json: args.json,
        options: session::options(),
        server_arguments: Vec::new(),
    };
    run_workload(workload, &place)
}

pub(super) fn latency(args: &LatencyArgs) -> CommandResult {
    run(&Latency { operations: args.operations }, &args.place)
}

pub(super) fn checkpoint(args: &CheckpointArgs) -> CommandResult {
    let CheckpointArgs { place, model, processes, scale, checkpoints } = args;
    let (model, processes, scale, checkpoints) = (*model, usize::from(*processes), *scale, *checkpoints);
    run(&Checkpoint { model, processes, scale, checkpoints }, place)
}

pub(super) fn loader(args: &LoaderArgs) -> CommandResult {
    let training = args.training;
    let accelerators = usize::from(args.accelerators);
    run(
        &Loader { training, accelerators, batches: usize::from(args.batches), scale: args.scale },
        &args.place,
    )?;
    if !args.place.json {
        output::line(&format!(
            "\nThe accelerators are emulated: each sleeps for {} s after a batch, as long as an H100 computes. MLPerf \
             Storage v2.0 requires that {training} keeps them busy for {} %.",
            training.compute().as_secs_f64(),
            training.minimum_percent()
        ))?;
    }
    Ok(Outcome::Done)
}

pub(super) fn metadata(args: &MetadataArgs) -> CommandResult {
    let MetadataArgs { place, members, items, branch, depth } = args;
    run(&Metadata { members: usize::from(*members), items: *items, branch: *branch, depth: *depth }, place)
}
