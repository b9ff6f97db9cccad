//! `bench`.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, Subcommand};
use millrace_bench::units::ByteSize;
use millrace_cli_common::args::proto;
use millrace_client::Proto;

/// Arguments of `millrace bench`.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Figures mean something only from a release build (cargo build --release) on a machine that is otherwise idle.
1 MB is 10^6 bytes and 1 GB 10^9; sizes on the command line are powers of 1024.

JSON keys, the same for all benches, one object per line: workload, test, proto, provider, design, registration,
server_registration, threads, client_hosts, record, outstanding, mb_per_s, ops_per_s, p50_us, p99_us, client_cpu_s_per_gb,
server_cpu_s_per_gb, server_cpu_us_per_op, client_cpu_percent, server_cpu_percent, client_registrations,
server_registrations, client_exposed_byte_s, server_exposed_byte_s. CPU % is of one core; exposed_byte_s are the bytes
that the other end could reach, times for how many seconds. What was not measured, or has no meaning, is null: design and
client_hosts vary only in the figures of millrace-lab, which has the same keys. For raw the client is the sender and the
server the receiver.")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

/// The benches.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Find the limit of this machine: plain TCP between two processes
    Raw(RawArgs),
    /// Read and write files, sequentially and at random, a file per thread
    Iozone(IozoneArgs),
    /// Run raw and iozone interleaved and print medians and ratios
    Compare(CompareArgs),
    /// Measure a mounted export beside the client library without FUSE and FUSE without NFS
    Mount(MountBenchArgs),
    /// One operation at a time
    Latency(LatencyArgs),
    /// The other process of `bench raw`
    #[command(hide = true)]
    RawPeer(RawPeerArgs),
    /// The passthrough of `bench mount`
    #[command(hide = true)]
    Passthrough(PassthroughArgs),
}

/// Arguments of the passthrough of `millrace bench mount`.
#[derive(Debug, Args)]
pub(crate) struct PassthroughArgs {
    /// What it shows
    pub(crate) of: PathBuf,
    /// Where
    pub(crate) at: PathBuf,
}

/// Arguments of the other process of `millrace bench raw`.
#[derive(Debug, Args)]
pub(crate) struct RawPeerArgs {
    /// Where it listens
    #[arg(long, value_name = "IP")]
    pub(crate) address: IpAddr,
}

/// Arguments of `millrace bench raw`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench raw
  millrace bench raw --size 8G --runs 5 --json
  millrace bench raw --address 10.0.0.1 --provider verbs --pong 4096

Streams: one process writes records to another over one connection within this machine, with the socket settings of the iWARP
provider, out of and into a working set larger than the processor's cache. Ping-pong: one message there, one back,
over plain TCP and as bare Sends of the provider.")]
pub(crate) struct RawArgs {
    /// Bytes to send in each stream
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub(crate) size: ByteSize,

    /// Sizes of one write, 1 byte to 1 MiB
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "64K,256K,1M")]
    pub(crate) writes: Vec<ByteSize>,

    /// Memory that each end cycles through
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(crate) working_set: ByteSize,

    /// Round trips of each ping-pong
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) pings: u64,

    /// Bytes of each ping
    #[arg(long, value_name = "SIZE", default_value = "128")]
    pub(crate) ping: ByteSize,

    /// Bytes of each pong
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128,4K")]
    pub(crate) pong: Vec<ByteSize>,

    /// The address of this machine where the other process listens; that of an RDMA device for --provider verbs
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,

    /// Runs of everything; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace bench iozone`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench iozone --self --threads 4 --record 128K --size 256M
  millrace bench iozone --self --record 1M --outstanding 8 --size 256M --tests read,write --runs 5
  millrace bench iozone 'nfs://server/scratch?proto=tcp' --threads 8 --record 128K --size 1G --json
  millrace bench iozone --self --threads 1,2,4,8 --record 128K,1M --size 64M --tests write,read --runs 3 --csv all.csv

Lists are multiplied: every number of threads with every record and test. Every run goes through all of them once; the
table shows medians, --json and --csv every run.

Each thread has a connection, a runtime and a file of its own (nconnect=N in the URL gives each thread N
connections). Writes are UNSTABLE and end with one COMMIT, which is part of the time. --self starts a server with a
memory export in another process, so that its processor time can be told from the client's; for a server elsewhere
that column is '-'.")]
pub(crate) struct IozoneArgs {
    #[command(flatten)]
    pub(crate) bench: millrace_cli_common::iozone::IozoneOptions,
}

/// Arguments of `millrace bench latency`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("place").required(true).args(["url", "self_server", "dir"]))]
#[command(after_help = "\
Examples:
  millrace bench latency --self
  millrace bench latency 'nfs://server/scratch?proto=tcp' --operations 10000 --json")]
pub(crate) struct LatencyArgs {
    /// A directory on a server; a new directory is made in it, and removed afterwards
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,

    /// Run on a memory export of a server that this command starts
    #[arg(long = "self")]
    pub(crate) self_server: bool,

    /// Run in a directory of this machine, for comparison
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// The address of this machine where the server of --self listens; that of an RDMA device for --provider verbs
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", requires = "self_server")]
    pub(crate) address: IpAddr,

    /// The transport to the server of --self
    #[arg(long, value_name = "PROTO", default_value = "rdma", value_parser = proto(), requires = "self_server")]
    pub(crate) proto: Proto,

    /// Runs of everything; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,

    /// Operations of each kind
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) operations: u32,
}

/// Arguments of `millrace bench compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench compare
  millrace bench compare --runs 9 --size 512M --json

One connection over loopback to a server with a memory export in another process, CRC off. Every run measures the
raw limit and each case once, in turn, so that noise of the machine meets all of them alike; the table shows medians.")]
pub(crate) struct CompareArgs {
    /// Runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Bytes of the file that is read and written
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(crate) size: ByteSize,

    /// How often the file is gone through in one run
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) passes: u16,

    /// Random reads of 4 KiB in one run
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) random_ops: u64,

    /// Measure NFS over TCP too
    #[arg(long)]
    pub(crate) tcp: bool,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace bench mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench mount
  millrace bench mount --proto tcp --runs 9
  millrace bench mount --size 8M --random-ops 400 --files 100 --entries 1000 --runs 1     a quick look

It needs root or fusermount3, /dev/fuse, and a tmpfs, and starts what it needs: a server with a memory export, its
mount, and a FUSE file system of the same library and options that hands each call to a directory in the tmpfs, each in
a process of its own. (That one is not the kernel's FUSE_PASSTHROUGH.) Each run measures every line with the client
library, the passthrough and the mount, one after another; the table shows medians. The library has one connection
and 8 calls in flight; for stat, which it does not cache, it does a LOOKUP each.

Before a sequential read and a listing the file systems are mounted anew, so that the kernel has nothing of them in its
caches; random reads go past its pages (O_DIRECT). A write ends with fsync (the library: COMMIT). Files in the list are
empty.")]
pub(crate) struct MountBenchArgs {
    /// The transport
    #[arg(long, value_name = "NAME", default_value = "rdma", value_parser = proto())]
    pub(crate) proto: Proto,

    /// An address of this machine where the server listens
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,

    /// Runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Bytes of the file that is read and written
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = whole_record)]
    pub(crate) size: ByteSize,

    /// Random reads of 4 KiB in one run
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) random_ops: u64,

    /// Files that are asked for their attributes
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) files: u32,

    /// Entries of the directory that is listed
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) entries: u32,

    /// A directory in a tmpfs, for what the passthrough shows
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) tmpfs: PathBuf,

    /// Print one JSON object per line: workload is library, passthrough or mount
    #[arg(long)]
    pub(crate) json: bool,
}

/// A size of whole records.
fn whole_record(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|e: millrace_buffer::InvalidByteSize| e.to_string())?;
    let records = size.0 > 0 && size.0.is_multiple_of(1 << 20);
    records
        .then_some(size)
        .ok_or_else(|| "the file is read and written in records of 1 MiB: give a multiple".into())
}
