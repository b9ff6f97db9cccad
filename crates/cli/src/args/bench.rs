//! `bench`.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use millrace_bench::units::Size;
use millrace_client::Proto;

use super::{
    BtioArgs, ClientsArgs, FileopArgs, LatencyArgs, OltpArgs, PostmarkArgs, SimulateArgs, SourcesArgs,
    TileArgs, WanArgs, proto,
};

/// Arguments of `millrace bench`.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Figures mean something only from a release build (cargo build --release) on a machine that is otherwise idle.
1 MB is 10^6 bytes and 1 GB 10^9; sizes on the command line are powers of 1024.

JSON keys, the same for all benches, one object per line: workload, test, proto, provider, design, registration,
server_registration, threads, client_hosts, record, outstanding, mb_per_s, ops_per_s, p50_us, p99_us, client_cpu_s_per_gb,
server_cpu_s_per_gb, server_cpu_us_per_op, client_cpu_percent, server_cpu_percent, client_registrations,
server_registrations, client_exposed_byte_s, server_exposed_byte_s. client_hosts is how many were simulated,
and the client's CPU is that of all of them; CPU % is of one core; exposed_byte_s are the bytes that
the other end could reach, times for how many seconds. What was not measured, or has no meaning, is null. For raw the
client is the sender and the server the receiver.")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

impl BenchCommand {
    /// Whether it measures several designs and registration strategies.
    pub(crate) fn compares(&self) -> bool {
        matches!(self, Self::Iozone(_) | Self::Breakdown(_) | Self::Simulate(_))
    }
}

/// The benches.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Find the limit of this machine: plain TCP between two processes
    Raw(RawArgs),
    /// Read and write files, sequentially and at random, a file per thread
    Iozone(IozoneArgs),
    /// Show where the time of READ and WRITE goes, stage by stage, at client and server
    Breakdown(BreakdownArgs),
    /// Run raw and iozone in turns and print medians and ratios
    Compare(CompareArgs),
    /// Measure a mounted export beside the client library without FUSE and FUSE without NFS
    Mount(MountBenchArgs),
    /// Time each operation on names, as fileop does
    Fileop(FileopArgs),
    /// A mail server's small files, as PostMark has them
    Postmark(PostmarkArgs),
    /// Unpack a tree of sources
    Untar(SourcesArgs),
    /// Ask of the file system what compiling a tree of sources does
    Compile(SourcesArgs),
    /// A database, as FileBench's oltp has it
    Oltp(OltpArgs),
    /// Dumps of a solver's grid, as NAS BTIO writes them
    Btio(BtioArgs),
    /// Tiles of a picture, as MPI-Tile-IO has them
    Tile(TileArgs),
    /// One operation at a time
    Latency(LatencyArgs),
    /// Several clients, each with a large file
    Clients(ClientsArgs),
    /// Distance, message and block sizes, outstanding RDMA Reads: simulated, nothing is measured
    Wan(WanArgs),
    /// Simulate iozone between machines of a profile, in virtual time: nothing is measured
    Simulate(SimulateArgs),
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
    pub(crate) size: Size,

    /// Sizes of one write, 1 byte to 1 MiB
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "64K,256K,1M")]
    pub(crate) writes: Vec<Size>,

    /// Memory that each end cycles through
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(crate) working_set: Size,

    /// Round trips of each ping-pong
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) pings: u64,

    /// Bytes of each ping
    #[arg(long, value_name = "SIZE", default_value = "128")]
    pub(crate) ping: Size,

    /// Bytes of each pong
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128,4K")]
    pub(crate) pong: Vec<Size>,

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

/// The tests of `millrace bench iozone`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestName {
    /// Write new files from start to end
    Write,
    /// Write the same files again
    Rewrite,
    /// Read the files from start to end
    Read,
    /// Read them again
    Reread,
    /// Read records in random order
    RandomRead,
    /// Write records in random order
    RandomWrite,
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndsName {
    /// Client and server
    Both,
    /// The client; the server uses `cache`
    Client,
    /// The server; the client uses `fast`
    Server,
}

/// Arguments of `millrace bench iozone`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench iozone --self --threads 4 --record 128K --size 256M
  millrace bench iozone --self --record 1M --outstanding 8 --size 256M --tests read,write --runs 5
  millrace bench iozone 'nfs://server/scratch?proto=tcp' --threads 8 --record 128K --size 1G --json
  millrace bench iozone --self --design read-write,read-read --registration dynamic,fast,cache,all-physical \\
      --threads 1,2,4,8 --record 128K,256K,512K,1M --size 64M --tests write,read --runs 3 --csv all.csv --plot out

Lists are multiplied: every design with every strategy, number of threads, record and test. Every run goes through all of
them once, with a fresh server for each design and strategy; the table shows medians, --json and --csv every run.
docs/registration.md says how to read it. --self accepts for its own server what --design read-read and --registration
all-physical ask to be accepted.

Each thread has a connection, a runtime and a file of its own (nconnect=N in the URL gives each thread N
connections). Writes are UNSTABLE and end with one COMMIT, which is part of the time. --self starts a server with a
memory export in another process, so that its processor time can be told from the client's; for a server elsewhere
that column is '-'.")]
pub(crate) struct IozoneArgs {
    /// A directory on a server, in which the files are made and removed
    #[arg(value_name = "URL", required_unless_present = "self_server")]
    pub(crate) url: Option<String>,

    /// Measure a server that this command starts
    #[arg(long = "self", conflicts_with = "url")]
    pub(crate) self_server: bool,

    /// The address of this machine where the server of --self listens; that of an RDMA device for --provider verbs
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", requires = "self_server")]
    pub(crate) address: IpAddr,

    /// The transport to the server of --self
    #[arg(long, value_name = "PROTO", default_value = "rdma", value_parser = proto(), requires = "self_server")]
    pub(crate) proto: Proto,

    /// Which end uses what --registration names; the other keeps to its own
    #[arg(long, value_name = "END", value_enum, default_value_t = EndsName::Both)]
    pub(crate) registration_of: EndsName,

    /// Threads, each with a connection and a file
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Vec<u16>,

    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128K")]
    pub(crate) record: Vec<Size>,

    /// Bytes of each file
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(crate) size: Size,

    /// Records in flight per thread
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) outstanding: u16,

    /// Which tests
    #[arg(long, value_name = "TEST,...", value_delimiter = ',', value_enum,
          default_values_t = [TestName::Write, TestName::Rewrite, TestName::Read, TestName::Reread,
                              TestName::RandomRead, TestName::RandomWrite])]
    pub(crate) tests: Vec<TestName>,

    /// Records of each random test [default: those of the file, at most 100000]
    #[arg(long, value_name = "N")]
    pub(crate) random_ops: Option<u64>,

    /// Runs of everything; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Have the lower layer check a CRC32C (iWARP)
    #[arg(long)]
    pub(crate) crc: bool,

    /// Most payload bytes in one frame that we send, to imitate a peer that frames by MTU (iWARP; 1424 for
    /// MTU 1500); READ data is framed by the server
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_frame: Option<Size>,

    /// Write every run to a file of comma-separated values; its columns are the JSON keys
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Draw the medians into a directory, as SVG and PNG, in the layout of the papers' figures
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace bench breakdown`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench breakdown
  millrace bench breakdown --design read-write,read-read --threads 1,2,4,8 --record 128K,1M --plot out
  millrace bench breakdown --registration dynamic,fast,cache,all-physical --json

A server with a memory export is started in another process for each design and strategy; files are written and then
read. Every call is timed at each end (--sample-stages N: one in N), and the table has the mean of each stage in
microseconds; the stages of a call follow one another and add up to its time. docs/breakdown.md says what each
stage covers. JSON keys, one object per line: as for the other benches, and mean_us, client and server, each with
sampled_calls, sum_us and stages_us.")]
pub(crate) struct BreakdownArgs {
    /// The address of this machine where the server listens; that of an RDMA device for --provider verbs
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,

    /// The transport to the server
    #[arg(long, value_name = "PROTO", default_value = "rdma", value_parser = proto())]
    pub(crate) proto: Proto,

    /// Threads, each with a connection and a file
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Vec<u16>,

    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128K")]
    pub(crate) record: Vec<Size>,

    /// Bytes of each file
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(crate) size: Size,

    /// Records in flight per thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) outstanding: u16,

    /// Runs of everything; the stages are those of all runs together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Draw the shares of the stages over threads into a directory, as SVG and PNG, in the layout of TR06 figure 10
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
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
    pub(crate) size: Size,

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
    pub(crate) size: Size,

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
fn whole_record(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|e: millrace_bench::units::BadSize| e.to_string())?;
    let records = size.0 > 0 && size.0.is_multiple_of(1 << 20);
    records
        .then_some(size)
        .ok_or_else(|| "the file is read and written in records of 1 MiB: give a multiple".into())
}
