//! What may be written on the command line. Text only: nothing here does anything.

mod bench;
mod devices;
#[cfg(test)]
mod documented;
mod files;
mod mount;
mod serve;
mod watch;

use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use millrace_client::Strategy;
use millrace_rdma_providers::ProviderChoice;

pub(crate) use bench::{
    BenchArgs, BenchCommand, CompareArgs, IozoneArgs, LatencyArgs, MountBenchArgs, PassthroughArgs, RawArgs,
};
pub(crate) use devices::DevicesArgs;
pub(crate) use files::{
    CatArgs, CopyArgs, CpArgs, DfArgs, ExportsArgs, GetArgs, LnArgs, LsArgs, MkdirArgs, MvArgs, PutArgs,
    RmArgs, StatArgs, TreeArgs,
};
pub(crate) use mount::{MountArgs, with_helper};
pub(crate) use serve::{CheckConfigArgs, DemoArgs, ReloadArgs, ServeArgs};
pub(crate) use watch::{DoctorArgs, TopArgs};

const ABOUT: &str =
    "NFS over RDMA in user space: serve files, use files, measure. No RDMA hardware is needed.";

const AFTER: &str = "\
Start here:
  millrace demo                                      see it work, on this machine, in under a minute
  millrace serve --export /data=local:/srv/data      serve a directory
  millrace cp -r nfs://HOST/data/tree ./tree         copy a tree from a server
  millrace mount nfs://HOST/data /mnt                use a server's files like a disk

URLs:
  nfs://HOST[:PORT]/EXPORT/PATH[?OPTION=VALUE&...]
  proto=rdma|tcp    the transport (default rdma; port 20049 for rdma, 2049 for tcp)
  provider=NAME     the RDMA provider, as --provider
  nconnect=N        connections to use side by side (default 1)
  rsize=, wsize=    the most bytes in one READ or WRITE, such as 256K (default: what the server allows)
  noresvport        connect from any port (default: one below 1024 where the process may, as some servers demand)
  registration=     how memory is registered for RDMA, as --registration

Exit codes:
  0  everything was done
  1  the operation failed; one sentence on standard error says why and what to do
  2  the command line is wrong
  3  done in part: some files failed, each is named on standard error; the others are complete
  130  interrupted (Ctrl-C); unfinished files were removed";

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
    /// What to log to standard error: error, warn, info, debug, trace, or a filter such as "warn,millrace_rpcrdma=debug".
    #[arg(long, global = true, value_name = "FILTER", env = "RUST_LOG", help_heading = "Global options")]
    pub(crate) log: Option<String>,

    /// How log lines are written: text, or json, one object a line
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Global options"
    )]
    pub(crate) log_format: LogFormat,

    /// The RDMA provider: verbs (RDMA devices, through rdma-core), iwarp (software over TCP, needs nothing), or auto:
    /// verbs where the local address belongs to an RDMA device, else iwarp; `millrace devices` shows which [default: auto]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options",
          value_parser = PossibleValuesParser::new(["auto", "iwarp", "verbs"]).try_map(|s| s.parse::<ProviderChoice>()))]
    pub(crate) provider: Option<ProviderChoice>,

    /// How memory is registered for RDMA: dynamic, fast or cache [default: what suits the adapter; of a server: cache]
    #[arg(long, global = true, value_name = "STRATEGY", help_heading = "Global options",
          value_parser = PossibleValuesParser::new(["dynamic", "fast", "cache"]).try_map(|s| s.parse::<Strategy>()))]
    pub(crate) registration: Option<Strategy>,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve directories over NFS on RDMA and TCP
    Serve(ServeArgs),
    /// Tell whether a server's configuration file can be used
    CheckConfig(CheckConfigArgs),
    /// Have a running server apply the exports of its changed configuration file
    Reload(ReloadArgs),
    /// Watch what a running server does: by client, export and procedure
    Top(TopArgs),
    /// Find out what is wrong with this machine or on the way to a server, and what mends it
    Doctor(DoctorArgs),
    /// Copy a tree to an embedded server and back, over RDMA and TCP, and show what moved how
    Demo(DemoArgs),
    /// List the exports of a server
    Exports(ExportsArgs),
    /// List directories
    Ls(LsArgs),
    /// Show everything known about files
    Stat(StatArgs),
    /// Draw a directory tree
    Tree(TreeArgs),
    /// Write files to standard output
    Cat(CatArgs),
    /// Copy local files to a server
    Put(PutArgs),
    /// Copy files from a server to here
    Get(GetArgs),
    /// Copy files either way: local to server, server to local, server to server
    Cp(CpArgs),
    /// Remove files and directories
    Rm(RmArgs),
    /// Make directories
    Mkdir(MkdirArgs),
    /// Rename or move files within one server
    Mv(MvArgs),
    /// Make hard and symbolic links
    Ln(LnArgs),
    /// Show the space that is left
    Df(DfArgs),
    /// Make an export a directory of this machine (FUSE)
    Mount(MountArgs),
    /// List RDMA providers and devices, and why one cannot be used
    Devices(DevicesArgs),
    /// Measure speed and processor time
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the manual's pages, one for each command
    Man(ManArgs),
}

/// Arguments of `millrace man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace man ~/.local/share/man/man1 && man millrace-serve")]
pub(crate) struct ManArgs {
    /// The directory, which is made if it is not there
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
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
