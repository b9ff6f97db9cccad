//! `millrace bench mount`, and the passthrough that it starts.

use millrace_bench::mounted::{Case, MountBench, passthrough};
use millrace_client::Proto;
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};

use super::{at, warn_of_debug_build};
use crate::{
    args::{MountBenchArgs, PassthroughArgs},
    commands::serve::Signals,
};

/// Arguments with which this program runs as the passthrough.
const PASSTHROUGH: [&str; 2] = ["bench", "passthrough"];

pub(super) fn run(args: &MountBenchArgs) -> CommandResult {
    warn_of_debug_build();
    let bench = MountBench {
        runs: args.runs.into(),
        size: args.size.0,
        random_ops: args.random_ops,
        files: args.files,
        entries: args.entries,
        proto: args.proto.unwrap_or(Proto::Rdma),
        at: at(args.address),
        tmpfs: args.tmpfs.clone(),
        passthrough: PASSTHROUGH.to_vec(),
    };
    let mut printed = Ok(());
    let report = bench.run(|run| {
        if args.json && printed.is_ok() {
            printed = output::line(&run.figure.json());
        }
    })?;
    printed?;
    if args.json {
        return Ok(Outcome::Done);
    }
    let over = report.provider().map_or_else(|| "TCP".into(), |provider| format!("RDMA ({provider})"));
    output::line(&format!(
        "{} over {over}, memory export; file of {}; medians of {} interleaved runs.\n\
         ratio: the mount divided by the lower of library and passthrough for sequential reads and writes, otherwise by the \
         passthrough.\n",
        args.address,
        args.size.human(),
        args.runs
    ))?;
    output::write(report.table().to_string().as_bytes())?;
    let memory =
        |case| report.listing_memory(case).map_or_else(|| "-".into(), |size| size.human().to_string());
    output::line(&format!(
        "\nMaximum memory of the mount's process: {} in a listing of names, {} in one with attributes.",
        memory(Case::List),
        memory(Case::ListAttributes)
    ))?;
    Ok(Outcome::Done)
}

/// Serves the passthrough until it is unmounted or a signal ends it.
pub(super) fn passthrough(args: &PassthroughArgs) -> CommandResult {
    let rt = millrace_program::executor::small()?;
    let mut signals = rt.block_on(async { Signals::new() })?;
    let at = args.at.clone();
    std::thread::spawn(move || {
        rt.block_on(signals.end());
        drop(millrace_fuse::detach(&at));
    });
    let ready = || drop(output::line(&format!("ready {}", args.at.display())));
    passthrough::serve(&args.of, &args.at, ready).map_err(|e| Failure::new(e.to_string()))?;
    Ok(Outcome::Done)
}
