//! `millrace bench`: measurements of a server, of a mount and of the network.
//!
//! `run` executes a subcommand, each of which has a file; the crate `bench` measures.

mod compare;
mod connections;
mod iozone;
mod mount;
mod raw;
mod servers;
mod workloads;

use std::net::IpAddr;

use millrace_bench::{At, no_halt::NoHalt};
use millrace_program::failure::{CommandResult, Outcome};

use crate::{
    args::{BenchArgs, BenchCommand},
    session,
};

/// Arguments with which this program runs as the peer of `bench raw`.
const RAW_PEER: &[&str] = &["bench", "raw-peer"];

pub(super) fn run(args: BenchArgs) -> CommandResult {
    let _no_halt = no_halt(&args);
    match args.command {
        BenchCommand::Raw(args) => raw::run(&args),
        BenchCommand::Iozone(args) => iozone::run(&args),
        BenchCommand::Compare(args) => compare::run(&args),
        BenchCommand::Servers(args) => servers::run(&args),
        BenchCommand::Connections(args) => connections::run(&args),
        BenchCommand::Latency(args) => workloads::latency(&args),
        BenchCommand::Checkpoint(args) => workloads::checkpoint(&args),
        BenchCommand::Loader(args) => workloads::loader(&args),
        BenchCommand::Metadata(args) => workloads::metadata(&args),
        BenchCommand::Mount(args) => mount::run(&args),
        BenchCommand::Passthrough(args) => mount::passthrough(&args),
        BenchCommand::RawPeer(args) => {
            millrace_bench::raw::serve_peer(&at(args.address))?;
            Ok(Outcome::Done)
        }
    }
}

/// Keeps processors from halting if the arguments request it, and reports on standard error if that is not permitted.
fn no_halt(args: &BenchArgs) -> Option<NoHalt> {
    let wanted = args.no_halt.unwrap_or(matches!(args.command, BenchCommand::Compare(_)));
    let held = wanted.then(NoHalt::hold)?;
    let report = |e| {
        eprintln!(
            "millrace: {e}; figures contain wake-ups of halted processors (to avoid them, run as root on a machine with \
             a cpuidle driver; add --no-halt=false to omit this message)"
        );
    };
    held.map_err(report).ok()
}

/// The address on which the peer process listens, and its provider.
fn at(address: IpAddr) -> At {
    At { address, provider: session::global().provider.unwrap_or_default() }
}

fn warn_of_debug_build() {
    millrace_program::warn_of_debug_build("millrace");
}
