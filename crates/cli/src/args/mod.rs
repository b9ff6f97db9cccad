//! The command line of `millrace`: commands, options and help texts, without actions.
//!
//! `Cli` has a `Command`, which `commands` executes. Manual pages, completions and the reference of the book
//! are generated from these definitions.

mod bench;
mod blk;
mod certs;
mod devices;
#[cfg(test)]
mod documented;
mod files;
mod mode_change;
mod mount;
mod owner;
mod serve;
mod state;
mod watch;
mod workloads;

pub(crate) use bench::{
    BenchArgs, BenchCommand, CompareArgs, ConnectionsArgs, IozoneArgs, MountBenchArgs, PassthroughArgs,
    RawArgs, ServersArgs,
};
pub(crate) use blk::{
    BlkArgs, BlkAttachArgs, BlkBenchArgs, BlkCommand, BlkCpArgs, BlkInfoArgs, BlkLsArgs, BlkOptions, BlkTest,
};
pub(crate) use certs::{CertsArgs, CertsCommand, CertsInitArgs};
use clap::{
    ArgAction, Args, ColorChoice, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
pub(crate) use devices::DevicesArgs;
pub(crate) use files::{
    CatArgs, ChmodArgs, ChownArgs, CleanArgs, CopyArgs, CpArgs, DfArgs, DuArgs, ExportsArgs, FindArgs,
    GetArgs, LnArgs, LsArgs, MkdirArgs, MvArgs, PutArgs, RmArgs, StatArgs, SyncArgs, TouchArgs, TransferArgs,
    TreeArgs, expand_find,
};
use millrace_client::{Proto, Strategy};
use millrace_program::args::proto;
use millrace_rdma_providers::ProviderChoice;
pub(crate) use mount::{MountArgs, UmountArgs, expand_mount_helper};
pub(crate) use serve::{CheckConfigArgs, DemoArgs, ReloadArgs, ServeArgs};
pub(crate) use state::{RevokeArgs, StateArgs, StateCommand};
pub(crate) use watch::{DoctorArgs, TopArgs};
pub(crate) use workloads::{CheckpointArgs, LatencyArgs, LoaderArgs, MetadataArgs, PlaceArgs};

const ABOUT: &str = "NFS over RDMA in user space: serve, copy and mount files, measure performance. No RDMA hardware is needed.";

const AFTER: &str = "\
Start here:
  millrace demo                                      a demonstration on this host, in under a minute
  millrace serve --export /data=local:/srv/data      serve a directory
  millrace cp -r nfs://HOST/data/tree ./tree         copy a tree from a server
  millrace mount nfs://HOST/data /mnt                mount an export

URLs:
  nfs://HOST[:PORT]/EXPORT/PATH[?OPTION=VALUE&...]
  vers=3|4.1|4.2    the version of NFS (default: the latest of the server; 3 for bench)
  proto=NAME        the transport, as --proto; also as nfs+tcp:// and nfs+rdma://
  provider=NAME     the RDMA provider, as --provider
  nconnect=N        number of parallel connections (default 1)
  busy_poll=N       microseconds to poll for a reply before the thread sleeps: 0 (default) to 1000
  rsize=, wsize=    maximum size of one READ or WRITE, such as 256K (default: the server's preference)
  noresvport        connect from any port (default: a port below 1024 if permitted; some servers require it)
  registration=     the memory registration strategy for RDMA, as --registration

Exit codes:
  0  everything was done
  1  the operation failed; one sentence on standard error states the reason and the remedy
  2  the command line is invalid
  3  partial success: some files failed, each is named on standard error; the others are complete
  130  interrupted (Ctrl-C); unfinished new files were removed";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, about = ABOUT, after_help = AFTER, max_term_width = 110)]
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
    /// Log level on standard error: error, warn, info, debug, trace, or a filter such as
    /// "warn,millrace_rpcrdma=debug"
    #[arg(long, global = true, value_name = "FILTER", env = "RUST_LOG", help_heading = "Global options")]
    pub(crate) log: Option<String>,

    /// Log more than by default: info, -vv debug, -vvv trace (servers and mounts: debug, trace); copies print each path
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet", help_heading = "Global options")]
    pub(crate) verbose: u8,

    /// Log errors only, and show no progress
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,

    /// Format of log lines: text, or json with one object per line
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Global options"
    )]
    pub(crate) log_format: LogFormat,

    /// The transport: rdma (port 20049) or tcp (port 2049) [default: rdma where the route to the server begins at an
    /// RDMA device, else the first of tcp and rdma in software that answers]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options", value_parser = proto())]
    pub(crate) proto: Option<Proto>,

    /// When log lines have colours: always, never, or auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Global options",
          hide_possible_values = true, value_parser = clap::value_parser!(ColorChoice))]
    pub(crate) color: ColorChoice,

    /// The RDMA provider: verbs (RDMA devices, through rdma-core), iwarp (in software, over TCP), or auto:
    /// verbs where the local address belongs to an RDMA device, else iwarp; `millrace devices` shows which
    /// [default: auto]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options",
          value_parser = PossibleValuesParser::new(["auto", "iwarp", "verbs"]).try_map(|s| s.parse::<ProviderChoice>()))]
    pub(crate) provider: Option<ProviderChoice>,

    /// Memory registration strategy for RDMA: dynamic, fast or cache [default: fast; servers: cache]
    #[arg(long, global = true, value_name = "STRATEGY", help_heading = "Global options",
          value_parser = PossibleValuesParser::new(["dynamic", "fast", "cache"]).try_map(|s| s.parse::<Strategy>()))]
    pub(crate) registration: Option<Strategy>,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Plain text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve directories over NFS on RDMA and TCP
    Serve(ServeArgs),
    /// Check a server's configuration file
    CheckConfig(CheckConfigArgs),
    /// Make a running server apply changed exports and targets of its configuration file
    Reload(ReloadArgs),
    /// List and revoke the opens and locks of a running server's NFSv4 clients
    State(StateArgs),
    /// Make certificates for encrypted connections
    Certs(CertsArgs),
    /// Show the activity of a running server by client, export and procedure
    Top(TopArgs),
    /// Diagnose this host and the connection to a server, with a remedy for each problem
    Doctor(DoctorArgs),
    /// Copy a tree to an embedded server and back, over RDMA and TCP, and show the transfers
    Demo(DemoArgs),
    /// List the exports of a server
    Exports(ExportsArgs),
    /// List directories
    Ls(LsArgs),
    /// Show all attributes of files
    Stat(StatArgs),
    /// Show a directory tree
    Tree(TreeArgs),
    /// Search the objects below a directory
    Find(FindArgs),
    /// Write files to standard output
    Cat(CatArgs),
    /// Copy local files to a server
    Put(PutArgs),
    /// Copy files from a server to this host
    Get(GetArgs),
    /// Copy files in any direction: local to server, server to local, server to server
    Cp(CpArgs),
    /// Make a directory equal to another one: copy what differs, in any direction
    Sync(SyncArgs),
    /// Remove files and directories
    Rm(RmArgs),
    /// Make directories
    Mkdir(MkdirArgs),
    /// Rename or move files within one server
    Mv(MvArgs),
    /// Make hard and symbolic links
    Ln(LnArgs),
    /// Change the permissions of files
    Chmod(ChmodArgs),
    /// Change the owners and groups of files
    Chown(ChownArgs),
    /// Set the times of files, and create those that do not exist
    Touch(TouchArgs),
    /// Show the available space
    Df(DfArgs),
    /// Show the space that directories use
    Du(DuArgs),
    /// Find and remove temporary files that interrupted copies have left
    Clean(CleanArgs),
    /// Mount an export in a local directory (FUSE)
    Mount(MountArgs),
    /// Unmount an export, and wait until its data is written
    Umount(UmountArgs),
    /// List, show, copy and measure disks of iSCSI targets
    Blk(BlkArgs),
    /// List RDMA providers and devices, with the reason if one cannot be used
    Devices(DevicesArgs),
    /// Measure throughput, latency and processor time
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages: of each command, of the configuration file and of mount.millrace
    Man(ManArgs),
}

/// Arguments of `millrace man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace man ~/.local/share/man && man millrace-serve")]
pub(crate) struct ManArgs {
    /// The directory, in which man1, man5 and man8 are made
    pub(crate) dir: std::path::PathBuf,
}

/// Arguments of `millrace completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace completions bash > ~/.local/share/bash-completion/completions/millrace
  millrace completions zsh  > ~/.zfunc/_millrace
  millrace completions fish > ~/.config/fish/completions/millrace.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
