//! Simulated machines on the command line.

use std::path::PathBuf;

use clap::Args;
use millrace_bench::units::ByteSize;
use millrace_cli_common::args::proto;
use millrace_client::Proto;
use millrace_simlab::Storage;

/// The machines to simulate.
#[derive(Debug, Args)]
pub(crate) struct MachinesArgs {
    /// Simulate machines of a profile, in virtual time: nothing is measured. A name (`millrace-lab simulate --profile
    /// list` names those that there are), or a TOML file (with a / or .toml in its name)
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,

    /// Simulated: miles of cable between two machines [default: as the profile says]
    #[arg(long, value_name = "MILES", requires = "profile")]
    pub(crate) miles: Option<f64>,

    /// Simulated: client machines, over which threads and members are spread [default: as in the papers]
    #[arg(long, value_name = "N", requires = "profile", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) client_hosts: Option<u16>,

    /// Simulated: the server's file system: free (takes no time), tmpfs, tmpfs-linear (which looks file handles up in a
    /// list), or raid:MEMORY, eight disks behind so much memory
    #[arg(long, value_name = "STORAGE", default_value = "free", requires = "profile")]
    pub(crate) storage: Storage,

    /// The seed: of what is simulated, and of what a workload chooses at random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Arguments of `millrace-lab simulate`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("machine").required(true).args(["profile"]))]
#[command(after_help = "\
Examples:
  millrace-lab simulate --profile ndr-400g --threads 8
  millrace-lab simulate --profile wan-infinihost --miles 1400 --threads 4 --registration all-physical
  millrace-lab simulate --profile sdr-opensolaris --design read-write,read-read --registration dynamic \\
      --threads 1,2,4,8 --csv all.csv --plot out
  millrace-lab simulate --profile ipoib-ud --proto tcp --json

The real client, server and memory file system run between simulated hosts: new files are written, then read. Time,
processors, adapters and links are those of the profile, where each number says where it comes from. Lists are
multiplied, as with `millrace-lab iozone`. The output says that it is simulated, and is the same for the same seed.
The workloads of `millrace-lab` take --profile too.")]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(crate) machines: MachinesArgs,

    /// The transport
    #[arg(long, value_name = "PROTO", default_value = "rdma", value_parser = proto())]
    pub(crate) proto: Proto,

    /// Threads, each with a file, and with a connection unless --shared-mount is there
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Vec<u16>,

    /// Let the threads of a client machine share one connection
    #[arg(long)]
    pub(crate) shared_mount: bool,

    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128K")]
    pub(crate) record: Vec<ByteSize>,

    /// Bytes of each file, which this machine's memory must hold
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    pub(crate) size: ByteSize,

    /// Records in flight per thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) outstanding: u16,

    /// Write the figures to a file of comma-separated values; its columns are the JSON keys
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Draw the figures into a directory, as SVG and PNG, in the layout of the papers' figures
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace-lab wan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab wan
  millrace-lab wan --profile wan-connectx --miles 0.2,10,100,1400 --outstanding-reads 4,16 --json

Only simulated: it needs the distance. For each distance and number of outstanding RDMA Reads: bare RDMA Writes and Reads of
each message size, then a file written and read over NFS in blocks of each size (WAN 2008; 16 MB in flight, at most 32
blocks). A block that one call cannot carry has -. Registration is all-physical, as in the original, unless it is said.
JSON keys: miles, outstanding_reads, and those of the other benches.")]
pub(crate) struct WanArgs {
    /// The machines: a name, or a TOML file
    #[arg(long, value_name = "PROFILE", default_value = "wan-infinihost")]
    pub(crate) profile: String,

    /// Miles of cable between them
    #[arg(long, value_name = "MILES,...", value_delimiter = ',', default_value = "0.2,1400")]
    pub(crate) miles: Vec<f64>,

    /// RDMA Reads in flight on a connection [default: as the profile says]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) outstanding_reads: Vec<u16>,

    /// Bytes of bare messages
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "4K,64K,1M")]
    pub(crate) message: Vec<ByteSize>,

    /// Bytes of the blocks of NFS
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "32K,128K")]
    pub(crate) block: Vec<ByteSize>,

    /// Bytes of the file; 128M in the original
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    pub(crate) size: ByteSize,

    /// The seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}
