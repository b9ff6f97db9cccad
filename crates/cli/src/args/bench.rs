//! `bench`.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, Subcommand};
use millrace_client::Proto;
use millrace_program::{
    args::{proto, url},
    units::ByteSize,
};

use super::workloads::{CheckpointArgs, LatencyArgs, LoaderArgs, MetadataArgs};

/// Arguments of `millrace bench`.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Use a release build (cargo build --release) on an otherwise idle host.
1 MB is 10^6 bytes and 1 GB 10^9; sizes on the command line are powers of 1024.

JSON keys, the same for all benches, one object per line: workload, test, proto, provider, design,
registration, server_registration, threads, client_hosts, no_halt, record, outstanding, mb_per_s, ops_per_s,
p50_us, p99_us, client_cpu_s_per_gb, server_cpu_s_per_gb, client_cpu_us_per_op, server_cpu_us_per_op,
client_cpu_percent, server_cpu_percent, client_registrations, server_registrations, client_exposed_byte_s,
server_exposed_byte_s, accelerator_percent. no_halt is false if processors may halt, also where --no-halt
was not permitted. CPU % is of one core; exposed_byte_s is the number of bytes exposed to the peer
multiplied by the time of their exposure. Values that do not apply or were not measured are null. design
and client_hosts vary only in millrace-lab, which has the same keys. For raw, the client is the sender and
the server is the receiver.")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,

    /// Keep idle processors from halting while measuring, through /dev/cpu_dma_latency (root): waking one takes
    /// tens of microseconds on virtual machines [default: true for compare, otherwise false]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub(crate) no_halt: Option<bool>,
}

/// The benches.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure the limit of this host: plain TCP between two processes
    Raw(RawArgs),
    /// Read and write files, sequentially and at random, one file per thread
    Iozone(IozoneArgs),
    /// Run raw and iozone interleaved and print medians and ratios
    Compare(CompareArgs),
    /// Compare NFS servers: the same load on each
    Servers(ServersArgs),
    /// Read small records over many connections, and measure the memory of each connection
    Connections(ConnectionsArgs),
    /// Compare a mounted export with the client library without FUSE and with FUSE without NFS
    Mount(MountBenchArgs),
    /// Measure the latency of single operations
    Latency(LatencyArgs),
    /// Save and load the checkpoint of a language model, in the shapes of MLPerf Storage
    Checkpoint(CheckpointArgs),
    /// Load training samples for emulated accelerators, in the shapes of MLPerf Storage
    Loader(LoaderArgs),
    /// Measure the rates of operations on names, in the phases of mdtest
    Metadata(MetadataArgs),
    /// The peer process of `bench raw`
    #[command(hide = true)]
    RawPeer(RawPeerArgs),
    /// The passthrough of `bench mount`
    #[command(hide = true)]
    Passthrough(PassthroughArgs),
}

/// Arguments of the passthrough of `millrace bench mount`.
#[derive(Debug, Args)]
pub(crate) struct PassthroughArgs {
    /// The directory that it serves
    pub(crate) of: PathBuf,
    /// The mount point
    pub(crate) at: PathBuf,
}

/// Arguments of the peer process of `millrace bench raw`.
#[derive(Debug, Args)]
pub(crate) struct RawPeerArgs {
    /// The address on which it listens
    #[arg(long, value_name = "IP")]
    pub(crate) address: IpAddr,
}

/// Arguments of `millrace bench raw`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench raw
  millrace bench raw --size 8G --runs 5 --json
  millrace bench raw --no-halt --request 128 --reply 4224 --depth 1,16
  millrace bench raw --address 10.0.0.1 --provider verbs --pong 4096

Stream: one process writes records to another over one connection within this host, with the socket
settings of the iWARP provider; both working sets exceed the processor's cache. Ping-pong: one message in
each direction, over plain TCP and as bare Sends of the provider. Exchange: requests and replies over plain
TCP with several requests in flight, the bound of small operations; each end is one thread, which waits with
epoll, and sends and receives in batches.")]
pub(crate) struct RawArgs {
    /// Bytes to send in each stream
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub(crate) size: ByteSize,

    /// Sizes of a write, 1 byte to 1 MiB
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "64K,256K,1M")]
    pub(crate) writes: Vec<ByteSize>,

    /// Working set of each end
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

    /// Requests of each exchange
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: u64,

    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "128")]
    pub(crate) request: ByteSize,

    /// Bytes of a reply
    #[arg(long, value_name = "SIZE", default_value = "4224")]
    pub(crate) reply: ByteSize,

    /// Requests in flight of an exchange on each connection, 1 to 1024
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "16",
          value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) depth: Vec<u64>,

    /// Connections of an exchange, 1 to 4096
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(crate) connections: u64,

    /// Local address on which the peer process listens; that of an RDMA device for --provider verbs
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,

    /// Number of runs; the table shows medians
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

Lists are combined: every number of threads with every record size and test. Every run measures each
combination once; the table shows medians, --json and --csv list every run.

Each thread has its own connection, runtime and file (nconnect=N in the URL gives each thread N
connections). Writes are UNSTABLE and end with one COMMIT, which is included in the time. --self starts a
server with a memory export in another process, so that its processor time is measured separately; for a
remote server that column is '-'.")]
pub(crate) struct IozoneArgs {
    #[command(flatten)]
    pub(crate) bench: millrace_bench::command::iozone::IozoneOptions,
}

/// Arguments of `millrace bench compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench compare
  millrace bench compare --runs 9 --size 512M --json
  millrace bench compare --cold                the first touch of memory too
  millrace bench compare --disk                a disk over iSER and iSCSI too

One connection over loopback to a server with a memory export in another process, CRC off. The raw limit
runs before each run of a case, so that other load on the host affects both. The table shows medians.
Client and server, and the ends of the raw limit, are pinned to separate cores if this process may use two;
the header and the JSON keys client_processor and server_processor state where they ran (null: not pinned).")]
pub(crate) struct CompareArgs {
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Size of the file that is read and written
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(crate) size: ByteSize,

    /// Passes over the file in one run
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) passes: u16,

    /// Random reads of 4 KiB in one run
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) random_ops: u64,

    /// Also measure NFS over TCP
    #[arg(long)]
    pub(crate) tcp: bool,

    /// Also measure the first touch of memory: the first write into a fresh export, and the first read into fresh
    /// memory of the client
    #[arg(long)]
    pub(crate) cold: bool,

    /// Also measure a READ of 4 KiB, one at a time, while server and client poll for this number of microseconds before
    /// they sleep: 1 to 1000
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) busy_poll: Option<u64>,

    /// Also measure a disk over iSER and over iSCSI
    #[arg(long)]
    pub(crate) disk: bool,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace bench servers`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench servers nfs+tcp://filer/scratch --self --plot servers.svg
  millrace bench servers knfsd=nfs+tcp://server/srv/data millrace=nfs+tcp://server:20490/data
  millrace bench servers ganesha='nfs+tcp://127.0.0.1:20493/x?mountport=20494,4711' --self --json

One connection to each server, with NFSv3 unless the URL has vers=4.1 or 4.2. Its directory gets a file of
--size, directories and empty files, which are removed at the end. Each run measures each operation with all
servers, one after the other; the table shows medians, and ratios to the first server, which are medians of
the ratios of the runs. Figures compare only if the servers have the same machine, network and kind of
storage: the server of --self has a memory export on this host. JSON has the key server besides those of all
benches.")]
pub(crate) struct ServersArgs {
    /// A directory on a server, with its name in the table; with the ID of a process on this host, the processor time
    /// of each operation is measured too
    #[arg(value_name = "[NAME=]URL[,PID]", required = true, value_parser = url())]
    pub(crate) servers: Vec<String>,

    /// Also measure a server with a memory export, which this command starts, over TCP
    #[arg(long = "self")]
    pub(crate) self_server: bool,

    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Size of the file on each server
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = whole_record)]
    pub(crate) size: ByteSize,

    /// Random reads of 4 KiB in one run with 16 in flight; with one in flight, a quarter
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) random_ops: u64,

    /// Files, and directories, that one run creates and removes
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) items: u32,

    /// Draw the table as bars in an SVG image
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace bench connections`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace bench connections --no-halt
  millrace bench connections --proto tcp --connections 1,4,64,1000 --depth 1 --json

Each measurement starts a server with a memory export in another process, with memory for all connections.
One thread reads 4 KiB at random offsets of a file of 64 MiB on all connections. Before, an exchange of
requests and replies of the same sizes runs over as many plain TCP connections (see bench raw).

The memory of a connection is the growth of the resident memory of that process since before the
connections, divided by their number: after they are established (idle), and after the reads (used). JSON has
the keys connections, and server_ and client_bytes_per_idle_connection and _bytes_per_connection, besides
those of all benches.")]
pub(crate) struct ConnectionsArgs {
    /// Transports
    #[arg(long, value_name = "PROTO,...", value_delimiter = ',', default_value = "rdma,tcp", value_parser = proto())]
    pub(crate) proto: Vec<Proto>,

    /// Numbers of connections
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "4,1000",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) connections: Vec<u16>,

    /// Reads in flight on each connection
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) depth: u16,

    /// Reads of a measurement, on all connections together
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) reads: u64,

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
  millrace bench mount --size 8M --random-ops 400 --files 100 --entries 1000 --runs 1     a short run

It requires root or fusermount3, /dev/fuse and a tmpfs. It starts three processes: a server with a memory
export, a mount of that export, and a passthrough: a FUSE file system with the same library and options
that forwards each call to a directory in the tmpfs (not the kernel's FUSE_PASSTHROUGH). Each run measures
every row with the client library, the passthrough and the mount in turn; the table shows medians. The
library uses one connection with 8 calls in flight, and for each stat it sends a LOOKUP.

Before sequential reads and listings the file systems are mounted again, so that the kernel's caches are
empty; random reads bypass the page cache (O_DIRECT). A write ends with fsync (library: COMMIT). Files in
listings are empty.")]
pub(crate) struct MountBenchArgs {
    /// The transport [default: rdma]
    #[arg(long, value_name = "NAME", value_parser = proto())]
    pub(crate) proto: Option<Proto>,

    /// Local address on which the server listens
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,

    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runs: u16,

    /// Size of the file that is read and written
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = whole_record)]
    pub(crate) size: ByteSize,

    /// Random reads of 4 KiB in one run
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) random_ops: u64,

    /// Number of files for stat
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) files: u32,

    /// Number of entries of the listed directory
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) entries: u32,

    /// A directory in a tmpfs, which the passthrough serves
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) tmpfs: PathBuf,

    /// Print one JSON object per line: workload is library, passthrough or mount
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a size that is a multiple of the record size, 1 MiB.
fn whole_record(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|e: millrace_buffer::InvalidByteSize| e.to_string())?;
    let records = size.0 > 0 && size.0.is_multiple_of(1 << 20);
    records.then_some(size).ok_or_else(|| "the size must be a multiple of the record size, 1 MiB".into())
}
