//! The command line of `millrace-lab`: definitions only, without actions.
//!
//! `Cli` has a `Command`, which `commands` executes. Each command has its structure of arguments; groups that
//! several commands share are in `workload` and `simulated`.

mod bench;
#[cfg(test)]
mod documented;
mod reproduce;
mod security;
mod serve;
mod simulated;
mod study;
mod workload;

use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use millrace_client::{Invalidation, Strategy};
use millrace_rdma_providers::ProviderChoice;
use millrace_read_read::{Design, Padding};

pub(crate) use bench::{BreakdownArgs, EndsName, IozoneArgs};
pub(crate) use reproduce::ReproduceArgs;
pub(crate) use security::SecurityArgs;
pub(crate) use serve::ServeArgs;
pub(crate) use simulated::{MachinesArgs, SimulateArgs, WanArgs};
pub(crate) use study::StudyArgs;
pub(crate) use workload::{
    BtioArgs, ClientsArgs, FileopArgs, LatencyArgs, OltpArgs, PostmarkArgs, SourcesArgs, TileArgs, Where,
};

const ABOUT: &str = "Research tools of Millrace: RPC-over-RDMA designs, memory registration, latency breakdown, the papers' \
     workloads and claims, simulated machines.";

const AFTER: &str = "\
Start here:
  millrace-lab iozone --self --design read-write,read-read      compare designs on this machine
  millrace-lab breakdown                                        show the latency breakdown of a call
  millrace-lab security                                         attack servers and clients
  millrace-lab reproduce                                        test the papers' claims on simulated machines

Only figures of a release build (cargo build --release) on an otherwise idle machine are meaningful.
1 MB is 10^6 bytes and 1 GB 10^9; sizes on the command line are powers of 1024.

JSON keys of all benchmarks, one object per line: workload, test, proto, provider, design, registration,
server_registration, threads, client_hosts, no_halt, record, outstanding, mb_per_s, ops_per_s, p50_us,
p99_us, client_cpu_s_per_gb, server_cpu_s_per_gb, client_cpu_us_per_op, server_cpu_us_per_op,
client_cpu_percent, server_cpu_percent, client_registrations, server_registrations, client_exposed_byte_s,
server_exposed_byte_s, accelerator_percent. client_hosts is the number of simulated client hosts, and the
client's CPU is that of all of them; CPU % is relative to one core; exposed_byte_s is the memory that the
other end could access, integrated over time, in byte-seconds. Values that are missing or not applicable
are null.

Exit codes: 0 success, 1 failure, 2 wrong command line, 130 interrupted.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "millrace-lab", version, about = ABOUT, after_help = AFTER, max_term_width = 110)]
#[command(propagate_version = true, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
    /// Log filter for standard error: error, warn, info, debug, trace, or a filter such as
    /// "warn,millrace_rpcrdma=debug".
    #[arg(long, global = true, value_name = "FILTER", env = "RUST_LOG", help_heading = "Global options")]
    pub(crate) log: Option<String>,

    /// The RDMA provider: verbs (RDMA devices, through rdma-core), iwarp (software over TCP), or auto: verbs
    /// if the local address belongs to an RDMA device, otherwise iwarp [default: auto]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options",
          value_parser = PossibleValuesParser::new(["auto", "iwarp", "verbs"]).try_map(|s| s.parse::<ProviderChoice>()))]
    pub(crate) provider: Option<ProviderChoice>,

    /// The RPC-over-RDMA design: read-write, or read-read, which exposes the server's memory; both ends must
    /// use the same [default: read-write]. `iozone`, `breakdown` and `simulate` accept several, separated by
    /// commas
    #[arg(long = "design", global = true, value_name = "NAME", help_heading = "Global options", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(["read-write", "read-read"]).try_map(|s| s.parse::<Design>()))]
    pub(crate) designs: Vec<Design>,

    /// The registration strategy: dynamic, fast, cache or all-physical [default: fast; of a server: cache].
    /// `iozone`, `breakdown` and `simulate` accept several, separated by commas
    #[arg(
        long = "registration",
        global = true,
        value_name = "STRATEGY",
        help_heading = "Global options",
        value_delimiter = ','
    )]
    pub(crate) registrations: Vec<Strategy>,

    /// When windows of `fast` are invalidated: at-once, or batched:N, which leaves the server write access to
    /// memory of up to N completed calls [default: at-once]
    #[arg(long, global = true, value_name = "WHEN", help_heading = "Global options")]
    pub(crate) fast_invalidate: Option<Invalidation>,

    /// Permit the server access to all buffer memory at any time, as registration all-physical requires
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) i_trust_the_server: bool,

    /// With --design read-read: align the data of small calls of N bytes or more to A bytes (RDMA_MSGP)
    #[arg(long, global = true, value_name = "A:N", help_heading = "Global options")]
    pub(crate) padding: Option<Padding>,

    /// Sample one call in N for the latency breakdown; 0 disables it (docs/tuning.md)
    #[arg(long, global = true, value_name = "N", help_heading = "Global options")]
    pub(crate) sample_stages: Option<u32>,
}

impl Cli {
    /// Checks dependencies between options; returns the error message.
    pub(crate) fn check(&self) -> Result<(), String> {
        let only_read_read = self.global.designs.iter().all(|d| *d == Design::ReadRead);
        if self.global.padding.is_some() && (self.global.designs.is_empty() || !only_read_read) {
            return Err("--padding (RDMA_MSGP) requires --design read-read, without other designs".into());
        }
        let compares =
            matches!(&self.command, Command::Iozone(_) | Command::Breakdown(_) | Command::Simulate(_));
        let lists =
            [("--design", self.global.designs.len()), ("--registration", self.global.registrations.len())];
        match lists.into_iter().find(|(_, names)| *names > 1) {
            Some((option, _)) if !compares => Err(format!(
                "{option} accepts one name here; `millrace-lab iozone`, `breakdown` and `simulate` accept several and compare them"
            )),
            _ => Ok(()),
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read and write files with every design and registration strategy, sequentially and at random
    Iozone(IozoneArgs),
    /// Show the latency breakdown of READ and WRITE, by stage, at client and server
    Breakdown(BreakdownArgs),
    /// Attack servers of both designs and a client with a hostile peer, and show the results
    Security(SecurityArgs),
    /// Time metadata operations, as fileop does
    Fileop(FileopArgs),
    /// Run a mail server's small files workload, as PostMark does
    Postmark(PostmarkArgs),
    /// Unpack a source tree
    Untar(SourcesArgs),
    /// Run the file system operations of compiling a source tree
    Compile(SourcesArgs),
    /// Run a database workload, as FileBench's oltp does
    Oltp(OltpArgs),
    /// Write dumps of a solver's grid, as NAS BTIO does
    Btio(BtioArgs),
    /// Write and read tiles of an image, as MPI-Tile-IO does
    Tile(TileArgs),
    /// Time single operations without concurrency
    Latency(LatencyArgs),
    /// Write and read a large file on each of several clients
    Clients(ClientsArgs),
    /// Simulate distance, message and block sizes and outstanding RDMA Reads (no measurement)
    Wan(WanArgs),
    /// Simulate iozone between machines of a profile, in virtual time (no measurement)
    Simulate(SimulateArgs),
    /// Test the papers' claims on simulated machines, and write a report
    Reproduce(ReproduceArgs),
    /// Study modern machines and long distances by simulation
    Study(StudyArgs),
    /// Serve exports with a research design or registration strategy
    Serve(ServeArgs),
}
