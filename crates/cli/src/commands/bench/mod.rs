//! `millrace bench`.

mod breakdown;
mod compare;
mod iozone;
mod mount;
mod raw;
mod simulate;
mod wan;
mod workload;

use std::net::IpAddr;

use millrace_bench::At;

use crate::{
    args::BenchCommand,
    failure::{CommandResult, Outcome},
    session,
};

/// The arguments that make this program the peer of a raw measurement.
const RAW_PEER: &[&str] = &["bench", "raw-peer"];

pub(super) fn run(command: BenchCommand) -> CommandResult {
    match command {
        BenchCommand::Raw(args) => raw::run(&args),
        BenchCommand::Iozone(args) => iozone::run(&args),
        BenchCommand::Breakdown(args) => breakdown::run(&args),
        BenchCommand::Compare(args) => compare::run(&args),
        BenchCommand::Fileop(args) => workload::run(&(&args).into(), &args.place),
        BenchCommand::Postmark(args) => workload::run(&(&args).into(), &args.place),
        BenchCommand::Untar(args) => workload::run(&args.untar(), &args.place),
        BenchCommand::Compile(args) => workload::run(&args.compile(), &args.place),
        BenchCommand::Oltp(args) => workload::run(&(&args).into(), &args.place),
        BenchCommand::Btio(args) => workload::run(&(&args).into(), &args.place),
        BenchCommand::Tile(args) => workload::run(&(&args).into(), &args.place),
        BenchCommand::Latency(args) => workload::run(&(&args).into(), &args.place),
        BenchCommand::Clients(args) => workload::run(&(&args).into(), &args.place),
        BenchCommand::Wan(args) => wan::run(&args),
        BenchCommand::Simulate(args) => simulate::run(&args),
        BenchCommand::Mount(args) => mount::run(&args),
        BenchCommand::Passthrough(args) => mount::passthrough(&args),
        BenchCommand::RawPeer(args) => {
            millrace_bench::raw::serve_peer(&at(args.address))?;
            Ok(Outcome::Done)
        }
    }
}

/// Where the other process listens.
fn at(address: IpAddr) -> At {
    let stated = session::stated();
    let (provider, design) = (stated.provider.unwrap_or_default(), stated.design().unwrap_or_default());
    At { address, provider, design, registration: None, sample_stages: session::options().sample_stages }
}

/// Said before figures that mean little.
fn warn_of_debug_build() {
    if cfg!(debug_assertions) {
        eprintln!("millrace: this is a debug build; figures mean something only with cargo run --release");
    }
}
