//! Arguments of `millrace-lab iozone` and `breakdown`.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use millrace_bench::command::iozone;
use millrace_client::Proto;
use millrace_program::{args::proto, units::ByteSize};

/// The end of a connection that uses the compared strategies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndsName {
    /// Client and server
    Both,
    /// The client; the server uses `cache`
    Client,
    /// The server; the client uses `fast`
    Server,
}

/// Arguments of `millrace-lab iozone`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab iozone --self --threads 4 --record 128K --size 256M
  millrace-lab iozone 'nfs://server/scratch?proto=tcp' --threads 8 --record 128K --size 1G --json
  millrace-lab iozone --self --design read-write,read-read --registration dynamic,fast,cache,all-physical \\
      --threads 1,2,4,8 --record 128K,256K,512K,1M --size 64M --tests write,read --runs 3 --csv all.csv --plot out

Like `millrace bench iozone`, with lists of designs and strategies: every combination of design, strategy, number of
threads, record and test is measured. Each run measures all combinations once, with a new server for each design and
strategy; the table shows medians, --json and --csv all runs. docs/lab/registration.md explains the output. --self implies
the options that --design read-read and --registration all-physical require of a server and a client.")]
pub(crate) struct IozoneArgs {
    #[command(flatten)]
    pub(crate) bench: iozone::IozoneOptions,

    /// Which end uses the strategies of --registration; the other uses its default
    #[arg(long, value_name = "END", value_enum, default_value_t = EndsName::Both)]
    pub(crate) registration_of: EndsName,

    /// Plot the medians into a directory, as SVG and PNG, in the layout of the papers' figures
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
}

/// Arguments of `millrace-lab breakdown`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab breakdown
  millrace-lab breakdown --design read-write,read-read --threads 1,2,4,8 --record 128K,1M --plot out
  millrace-lab breakdown --registration dynamic,fast,cache,all-physical --json

A server with a memory export is started in a child process for each design and strategy; files are written, then
read. Every call is timed at each end (--sample-stages N: one in N), and the table shows the mean of each stage in
microseconds; the stages of a call are consecutive, and their sum is its time. docs/tuning.md explains each
stage. JSON keys, one object per line: those of the other benchmarks, and mean_us, client and server, each with
sampled_calls, sum_us and stages_us.")]
pub(crate) struct BreakdownArgs {
    /// The local address on which the server listens; that of an RDMA device for --provider verbs
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,

    /// The transport to the server
    #[arg(long, value_name = "PROTO", default_value = "rdma", value_parser = proto())]
    pub(crate) proto: Proto,

    /// Number of threads, each with its own connection and file
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Vec<u16>,

    /// Size of a read or write
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128K")]
    pub(crate) record: Vec<ByteSize>,

    /// Size of each file
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(crate) size: ByteSize,

    /// Number of records in flight per thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) outstanding: u16,

    /// Number of runs; the stages are means over all runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Plot the shares of the stages over the number of threads into a directory, as SVG and PNG, in the
    /// layout of TR06 figure 10
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}
