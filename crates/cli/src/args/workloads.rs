//! `bench latency`, `checkpoint`, `loader` and `metadata`.

use std::{net::IpAddr, path::PathBuf};

use clap::Args;
use millrace_bench::workload::{Model, Training};
use millrace_client::Proto;
use millrace_program::args::{proto, url};

/// Where a workload runs, and how often.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("place").required(true).args(["url", "self_server", "dir"]))]
pub(crate) struct PlaceArgs {
    /// A directory on a server; the bench creates a directory in it and removes it afterwards
    #[arg(value_name = "URL", value_parser = url())]
    pub(crate) url: Option<String>,

    /// Run on a memory export of a server that this command starts
    #[arg(long = "self")]
    pub(crate) self_server: bool,

    /// Run in a local directory, for comparison
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Local address on which the server of --self listens; that of an RDMA device for --provider verbs
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", requires = "self_server")]
    pub(crate) address: IpAddr,

    /// The transport; to the server of --self, rdma by default
    #[arg(long, value_name = "NAME", value_parser = proto())]
    pub(crate) proto: Option<Proto>,

    /// Number of runs; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace bench latency`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench latency --self
  millrace bench latency 'nfs://server/scratch?proto=tcp' --operations 10000 --json")]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Number of operations of each kind
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) operations: u32,
}

/// Arguments of `millrace bench checkpoint`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench checkpoint --self
  millrace bench checkpoint nfs://server/scratch --model llama3-70b --scale 0.1 --runs 5
  millrace bench checkpoint --dir /mnt/scratch --scale 1

The shapes are those of MLPerf Storage v2.0 (submission guidelines, table 2): checkpoints of 105 GB, 912 GB,
5.29 TB and 18 TB of 8, 64, 512 and 1024 processes; fewer processes are the mode 'subset'. Each process
writes weights (fp16) and optimizer state (fp32), makes them stable (fsync), and reads them after all have
written. All write the same number of bytes, as with ZeRO stage 3 (MLPerf Storage: stage 1 for llama3-405b and
llama3-1t). p50 and p99 are the durations of a process; MLPerf reports the slowest. With --dir, the page
cache may serve the reads. This is not an MLPerf result.")]
pub(crate) struct CheckpointArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// The model: llama3-8b, llama3-70b, llama3-405b or llama3-1t
    #[arg(long, value_name = "NAME", default_value = "llama3-8b")]
    pub(crate) model: Model,

    /// Processes on this host, each with its own connection
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) processes: u16,

    /// Bytes of each process relative to the published size, above 0
    #[arg(long, value_name = "FACTOR", default_value_t = 0.01, value_parser = scale)]
    pub(crate) scale: f64,

    /// Checkpoints of each run, which overwrite each other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) checkpoints: u16,
}

/// Arguments of `millrace bench loader`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench loader --self
  millrace bench loader nfs://server/scratch --training resnet50 --accelerators 4 --scale 1 --batches 50
  millrace bench loader --dir /mnt/scratch --training cosmoflow

The shapes are those of MLPerf Storage v2.0 for one H100 (DLIO configurations): unet3d, samples of 146.6 MB
in batches of 7; resnet50, samples of 115 kB, 1251 in each file, in batches of 400; cosmoflow, samples of 2.8
MB in batches of 1. The accelerators are emulated: after each batch they sleep for the time that an H100
computes (0.323, 0.224 and 0.0035 s). Each reads its samples in random order, 4 (resnet50: 8) at a time and
two batches ahead. The rows are the read of a sample, and the time that an accelerator waits for a batch.
accelerator_percent is the time of emulated computing relative to the time since the first batch; MLPerf
Storage requires 90 % (cosmoflow: 70 %). Sample sizes do not vary here as they do in the data sets, and this
is not an MLPerf result.")]
pub(crate) struct LoaderArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// The training workload: unet3d, resnet50 or cosmoflow
    #[arg(long, value_name = "NAME", default_value = "unet3d")]
    pub(crate) training: Training,

    /// Emulated accelerators, each with its own connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) accelerators: u16,

    /// Batches of each accelerator
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batches: u16,

    /// Size of a sample relative to the published size, above 0; the time to compute a batch stays the same
    #[arg(long, value_name = "FACTOR", default_value_t = 0.1, value_parser = scale)]
    pub(crate) scale: f64,
}

/// Arguments of `millrace bench metadata`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench metadata --self --members 4
  millrace bench metadata nfs://server/scratch --items 10000 --branch 4 --depth 4

The phases and their names are those of mdtest with a directory for each member (mdtest -u -n N): directories,
then empty files, are created, examined and removed; then a tree (-b, -z) is created and removed. A rate is
that of all members together. The library caches no names: a stat is a LOOKUP.")]
pub(crate) struct MetadataArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Members, each with its own connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) members: u16,

    /// Directories and files of each member
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) items: u32,

    /// Directories in each directory of the tree
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) branch: u32,

    /// Levels of the tree
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) depth: u32,
}

/// Parses a factor above 0.
fn scale(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "write a number, for example 0.1".to_owned())?;
    (factor > 0.0 && factor <= 1000.0)
        .then_some(factor)
        .ok_or_else(|| "the factor is above 0 and at most 1000".into())
}
