//! Arguments of the workloads.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use millrace_bench::workload::Latency;
use millrace_client::Proto;
use millrace_program::{args::proto, units::ByteSize};
use millrace_workloads::{Btio, Class, Clients, Compile, Fileop, Oltp, Postmark, Sources, Tile, Untar};

use super::MachinesArgs;

/// Where a workload runs, and the number of runs.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("place").required(true).args(["url", "self_server", "dir", "profile"]))]
#[command(group = clap::ArgGroup::new("own").args(["self_server", "profile"]))]
pub(crate) struct Where {
    /// A directory on a server; a new directory is created in it, and removed afterwards
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,

    /// Run on a memory export of a server that this command starts
    #[arg(long = "self")]
    pub(crate) self_server: bool,

    /// Run in a local directory, for comparison
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// The local address on which the server of --self listens; that of an RDMA device for --provider verbs
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", requires = "self_server")]
    pub(crate) address: IpAddr,

    #[command(flatten)]
    pub(crate) machines: MachinesArgs,

    /// The transport to the server of --self or --profile
    #[arg(long, value_name = "PROTO", default_value = "rdma", value_parser = proto(), requires = "own")]
    pub(crate) proto: Proto,

    /// Number of runs; the table shows medians. (Simulated runs are identical.)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..),
          conflicts_with = "profile")]
    pub(crate) runs: u16,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace-lab fileop`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab fileop --self
  millrace-lab fileop 'nfs://server/scratch?proto=tcp' --factor 20 --size 0 --json

Creates FACTOR directories with FACTOR directories with FACTOR files each, and times each kind of operation on all of
them, one at a time, as fileop of the IOzone suite does. Nothing is cached: every figure includes the network.")]
pub(crate) struct FileopArgs {
    #[command(flatten)]
    pub(crate) place: Where,

    /// Number of directories in a directory, and of files in a directory
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    factor: u32,

    /// Size of each file, 0 to 64 MiB
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = small_size)]
    size: u32,
}

/// Arguments of `millrace-lab postmark`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab postmark --self
  millrace-lab postmark nfs://server/scratch --files 16384 --transactions 40000
  millrace-lab postmark nfs://server/scratch --files 32676 --transactions 60000

These three pairs of numbers (the first is the default) are those of the papers.")]
pub(crate) struct PostmarkArgs {
    #[command(flatten)]
    pub(crate) place: Where,

    /// Number of files at the start
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,

    /// Number of transactions
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    transactions: u32,

    /// Size of the smallest file
    #[arg(long, value_name = "SIZE", default_value_t = Postmark::SIZES.0, value_parser = small_size)]
    low: u32,

    /// Size of the largest file, up to 64 MiB
    #[arg(long, value_name = "SIZE", default_value_t = Postmark::SIZES.1, value_parser = small_size)]
    high: u32,
}

/// Arguments of `millrace-lab untar` and `compile`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab untar --self
  millrace-lab compile 'nfs://server/scratch?proto=tcp' --files 2000

The tree is generated, by default with the size and shape of Linux 2.6.11 (17,090 files, 190 MB). compile uses no
processor time between its calls, so a real build is slower.")]
pub(crate) struct SourcesArgs {
    #[command(flatten)]
    pub(crate) place: Where,

    /// Number of files in the tree
    #[arg(long, value_name = "N", default_value_t = Sources::default().files,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
}

/// Arguments of `millrace-lab oltp`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab oltp --self
  millrace-lab oltp nfs://server/scratch --shadows 50 --io 2K --file-size 1G --reads 200000

The oltp personality of FileBench: concurrent readers, database writers and a log writer on one connection. The CPU
time that the original's processes use between calls is omitted.")]
pub(crate) struct OltpArgs {
    #[command(flatten)]
    pub(crate) place: Where,

    /// Number of shadow processes, that is, of reads in flight
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    shadows: u32,

    /// Number of database writers, each with up to 100 writes in flight
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=1000))]
    writers: u32,

    /// Size of a read, and of a write of the database, up to 64 MiB
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = small_size)]
    io: u32,

    /// Number of data files
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    files: u32,

    /// Size of each data file
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    file_size: ByteSize,

    /// Total number of reads of all shadow processes
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    reads: u32,
}

/// The problem classes of `millrace-lab btio`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClassName {
    /// 12 x 12 x 12 cells
    S,
    /// 64 x 64 x 64 cells
    A,
    /// 102 x 102 x 102 cells
    B,
}

/// Arguments of `millrace-lab btio`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab btio --self
  millrace-lab btio nfs://server/scratch --class B --processes 9 --steps 200 --interval 2

Collective dumps of a solver's grid into one file, as by BTIO of the NAS parallel benchmarks; then the file is read
and verified. The computation and the communication between the processes are omitted.")]
pub(crate) struct BtioArgs {
    #[command(flatten)]
    pub(crate) place: Where,

    /// Problem class, which determines the size of the grid
    #[arg(long, value_enum, ignore_case = true, default_value_t = ClassName::A)]
    class: ClassName,

    /// Number of processes, each with its own connection; 4, 9 or 16 in the original
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    processes: u32,

    /// Number of time steps; 200 in the original
    #[arg(long, value_name = "N", default_value_t = 20)]
    steps: u32,

    /// Number of time steps between dumps
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
}

/// Arguments of `millrace-lab tile`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab tile --self
  millrace-lab tile nfs://server/scratch --columns 3 --rows 2

Each process writes and reads one tile of an image in one file, row by row (MPI-Tile-IO without collective
buffering). The papers use 2, 4 and 6 processes.")]
pub(crate) struct TileArgs {
    #[command(flatten)]
    pub(crate) place: Where,

    /// Number of tiles in a row of the image
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    columns: u32,

    /// Number of rows of tiles
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    rows: u32,

    /// Number of elements in a row of a tile
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    width: u32,

    /// Number of rows of a tile
    #[arg(long, value_name = "N", default_value_t = 768, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    height: u32,

    /// Size of an element in bytes
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    element: u32,
}

/// Arguments of `millrace-lab latency`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab latency --self
  millrace-lab latency 'nfs://server/scratch?proto=tcp' --operations 10000 --json")]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(crate) place: Where,

    /// Number of operations of each kind
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,
}

/// Arguments of `millrace-lab clients`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab clients --self --clients 4
  millrace-lab clients --profile ddr-linux-allphys --registration all-physical --clients 7 --storage raid:256M

Each client writes its own file; after all have finished, all read their files. The paper (Designing 2007) uses 1 to 8
clients with 1 GB each, and 4 or 8 GB of server memory for eight disks: the defaults with raid:256M and raid:512M are a
sixteenth of that.")]
pub(crate) struct ClientsArgs {
    #[command(flatten)]
    pub(crate) place: Where,

    /// Number of clients, each with its own connection; simulated clients run on separate machines
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,

    /// Size of each client's file
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    size: ByteSize,

    /// Size of a read or write, up to 64 MiB
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = small_size)]
    record: u32,
}

/// Parses a size that the workload keeps in memory.
fn small_size(text: &str) -> Result<u32, String> {
    const MOST: u64 = 64 << 20;
    match text.parse::<ByteSize>() {
        Ok(ByteSize(n)) if n <= MOST => Ok(n as u32),
        Ok(size) => Err(format!("{size} exceeds the maximum of {}", ByteSize(MOST))),
        Err(e) => Err(e.to_string()),
    }
}

impl FileopArgs {
    pub(crate) fn fileop(&self) -> Fileop {
        Fileop { factor: self.factor, size: self.size }
    }
}

impl PostmarkArgs {
    pub(crate) fn postmark(&self) -> Postmark {
        let Self { files, transactions, low, high, .. } = *self;
        Postmark { files, transactions, low, high, seed: self.place.machines.seed }
    }
}

impl SourcesArgs {
    fn sources(&self) -> Sources {
        Sources { files: self.files, seed: self.place.machines.seed }
    }

    pub(crate) fn untar(&self) -> Untar {
        Untar { sources: self.sources() }
    }

    pub(crate) fn compile(&self) -> Compile {
        Compile { sources: self.sources() }
    }
}

impl OltpArgs {
    pub(crate) fn oltp(&self) -> Oltp {
        let Self { shadows, writers, io, files, file_size, reads, .. } = *self;
        let seed = self.place.machines.seed;
        Oltp { shadows, writers, io, files, file_size: file_size.0, reads, seed }
    }
}

impl BtioArgs {
    pub(crate) fn btio(&self) -> Btio {
        let class = match self.class {
            ClassName::S => Class::S,
            ClassName::A => Class::A,
            ClassName::B => Class::B,
        };
        Btio { class, processes: self.processes, steps: self.steps, interval: self.interval }
    }
}

impl TileArgs {
    pub(crate) fn tile(&self) -> Tile {
        let Self { columns, rows, width, height, element, .. } = *self;
        Tile { columns, rows, width, height, element }
    }
}

impl LatencyArgs {
    pub(crate) fn latency(&self) -> Latency {
        Latency { operations: self.operations }
    }
}

impl ClientsArgs {
    pub(crate) fn clients(&self) -> Clients {
        Clients { clients: self.clients, size: self.size.0, record: self.record }
    }
}
