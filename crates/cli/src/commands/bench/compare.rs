//! `millrace bench compare`.

use std::time::Duration;

use millrace_bench::{compare::Compare, no_halt};
use millrace_program::{
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
        cold: args.cold,
        disk: args.disk,
        busy_poll: args.busy_poll.map_or(Duration::ZERO, Duration::from_micros),
    };
    let mut printed = Ok(());
    let outcome = compare.run(RAW_PEER, |figure| {
        if args.json && printed.is_ok() {
            printed = output::line(&figure.json());
        }
    })?;
    printed?;
    if args.json {
        outcome.json().iter().try_for_each(|line| output::line(line))?;
        return Ok(Outcome::Done);
    }
    output::line(&format!(
        "Loopback, one connection, memory export, iwarp provider, CRC off; medians of {} runs, each after a run of its reference.\n{}\n{}\n{}\n{EXPLANATION}",
        args.runs,
        no_halt::condition(),
        outcome.placement(),
        outcome.small_read(),
    ))?;
    output::write(outcome.table().to_string().as_bytes())?;
    Ok(Outcome::Done)
}

const EXPLANATION: &str = "\
ratio: MB/s divided by that of the raw stream; for READs of 4 KiB, ops/s divided by that of the exchange of the same
bytes, and latency divided by that of the ping-pong. server CPU, client CPU: the CPU time of that end per GB divided by
that of the raw sender or receiver, or per operation divided by that of the exchange's ends. iSER, and random reads of a
disk: divided by those of NFS over RDMA. Client and server of the raw stream are its sender and receiver. Ratios are
medians of the ratios of runs beside each other, because the speed of a shared host changes within seconds.
";
