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
            "Loopback, one connection, memory export, iwarp provider, CRC off; medians of {} runs in turns.\n\
             ratio: MB/s over the raw stream's, or latency over the bare ping-pong's. CPU ratio: the server's CPU per GB\n\
             over the raw sender's (READ) or the raw receiver's (WRITE); client and server of the raw stream are its\n\
             sender and receiver.\n",
            args.runs
        ))?;
        output::write(outcome.table().to_string().as_bytes())?;
    }
    Ok(Outcome::Done)
}
