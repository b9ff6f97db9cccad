//! Arguments that describe simulated machines.

use std::path::PathBuf;

use clap::Args;
use millrace_client::Proto;
use millrace_program::{args::proto, units::ByteSize};
use millrace_simlab::Storage;

/// Simulated machines.
#[derive(Debug, Args)]
pub(crate) struct MachinesArgs {
    /// Simulate machines of a profile, in virtual time (no measurement). The name of a profile (`millrace-lab
    /// simulate --profile list` prints them), or a TOML file (with a / or .toml in its name)
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,

    /// Simulated cable length between two machines, in miles [default: that of the profile]
    #[arg(long, value_name = "MILES", requires = "profile")]
    pub(crate) miles: Option<f64>,

    /// Number of simulated client machines, over which threads and members are distributed [default: as in
    /// the papers]
    #[arg(long, value_name = "N", requires = "profile", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) client_hosts: Option<u16>,

    /// The simulated server's file system: free (takes no time), tmpfs, tmpfs-linear (which searches file
    /// handles in a list), or raid:MEMORY (eight disks with a cache of this size)
    #[arg(long, value_name = "STORAGE", default_value = "free", requires = "profile")]
    pub(crate) storage: Storage,

    /// Seed of the simulation, and of random choices of a workload
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

The real client, server and memory file system run on simulated hosts: new files are written, then read. Time,
processors, adapters and links are those of the profile, which states the source of each number. Lists are
combined, as with `millrace-lab iozone`. The output is marked as simulated, and is reproducible by the seed.
The workloads of `millrace-lab` accept --profile too.")]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(crate) machines: MachinesArgs,

    /// The transport
    #[arg(long, value_name = "PROTO", default_value = "rdma", value_parser = proto())]
    pub(crate) proto: Proto,

    /// Number of threads, each with its own file and, without --shared-mount, its own connection
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Vec<u16>,

    /// Let the threads of a client machine share one connection
    #[arg(long)]
    pub(crate) shared_mount: bool,

    /// Size of a read or write
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "128K")]
    pub(crate) record: Vec<ByteSize>,

    /// Size of each file, which must fit into the memory of this machine
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    pub(crate) size: ByteSize,

    /// Number of records in flight per thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) outstanding: u16,

    /// Write the figures to a file of comma-separated values; the columns are the JSON keys
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Plot the figures into a directory, as SVG and PNG, in the layout of the papers' figures
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

Simulated only. For each distance and number of outstanding RDMA Reads: bare RDMA Writes and Reads of
each message size, then writes and reads of a file over NFS in blocks of each size (WAN 2008; 16 MB in flight, at most 32
blocks). Blocks that exceed a call are marked with -. Registration is all-physical by default, as in the original.
JSON keys: miles, outstanding_reads, and those of the other benchmarks.")]
pub(crate) struct WanArgs {
    /// The machines: name of a profile, or a TOML file
    #[arg(long, value_name = "PROFILE", default_value = "wan-infinihost")]
    pub(crate) profile: String,

    /// Cable lengths in miles
    #[arg(long, value_name = "MILES,...", value_delimiter = ',', default_value = "0.2,1400")]
    pub(crate) miles: Vec<f64>,

    /// Maximum number of RDMA Reads in flight on a connection [default: that of the profile]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) outstanding_reads: Vec<u16>,

    /// Sizes of bare messages
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "4K,64K,1M")]
    pub(crate) message: Vec<ByteSize>,

    /// Sizes of NFS blocks
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "32K,128K")]
    pub(crate) block: Vec<ByteSize>,

    /// Size of the file; 128M in the original
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    pub(crate) size: ByteSize,

    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}
