//! `millrace bench compare`.

use millrace_bench::compare::Compare;
use millrace_cli_common::{
    failure::{CommandResult, Outcome},
    output,
};

use super::{RAW_PEER, warn_of_debug_build};
use crate::args::CompareArgs;

pub(super) fn run(args: &CompareArgs) -> CommandResult {
    warn_of_debug_build();
    let compare = Compare {
        runs: args.runs.into(),
        size: args.size.0,
        passes: args.passes.into(),
        random_ops: args.random_ops,
        tcp: args.tcp,
        disk: args.disk,
    };
    let mut printed = Ok(());
    let outcome = compare.run(RAW_PEER, |figure| {
        if args.json && printed.is_ok() {
            printed = output::line(&figure.json());
        }
    })?;
    printed?;
    if !args.json {
        output::line(&format!(
            "Loopback, one connection, memory export, iwarp provider, CRC off; medians of {} interleaved runs.\n\
             ratio: MB/s divided by that of the raw stream, or latency divided by that of the bare ping-pong. CPU ratio: the\n\
             server's CPU per GB divided by that of the raw sender (READ) or receiver (WRITE). iSER, and random reads of a\n\
             disk: both divided by those of NFS over RDMA. Client and server of the raw stream are its sender and receiver.\n",
            args.runs
        ))?;
        output::write(outcome.table().to_string().as_bytes())?;
    }
    Ok(Outcome::Done)
}
