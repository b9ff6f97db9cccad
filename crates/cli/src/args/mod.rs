//! What may be written on the command line. Text only: nothing here does anything.

mod bench;
mod devices;
#[cfg(test)]
mod documented;
mod files;
mod mount;
mod reproduce;
mod serve;
mod simulated;
mod study;
mod watch;
mod workload;

use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use millrace_client::{Design, Invalidation, Proto, Strategy};
use millrace_rdma_providers::ProviderChoice;

pub(crate) use bench::{
    BenchArgs, BenchCommand, BreakdownArgs, CompareArgs, EndsName, IozoneArgs, MountBenchArgs,
    PassthroughArgs, RawArgs, TestName,
};
pub(crate) use devices::DevicesArgs;
pub(crate) use files::{
    CatArgs, CopyArgs, CpArgs, DfArgs, ExportsArgs, GetArgs, LnArgs, LsArgs, MkdirArgs, MvArgs, PutArgs,
    RmArgs, StatArgs, TreeArgs,
};
pub(crate) use mount::{MountArgs, with_helper};
pub(crate) use reproduce::ReproduceArgs;
pub(crate) use serve::{CheckConfigArgs, DemoArgs, DemoCommand, ReloadArgs, SecurityArgs, ServeArgs};
pub(crate) use simulated::{MachinesArgs, SimulateArgs, WanArgs};
pub(crate) use study::StudyArgs;
pub(crate) use watch::{DoctorArgs, TopArgs};
pub(crate) use workload::{
    BtioArgs, ClientsArgs, FileopArgs, LatencyArgs, OltpArgs, PostmarkArgs, SourcesArgs, TileArgs, Where,
};

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
  design=NAME       the RPC-over-RDMA design, as --design
  padding=A:N       with design=read-read: align the data of small calls, from N bytes on, to A bytes (RDMA_MSGP)
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

/// The name of a transport; the help lists them.
fn proto() -> impl TypedValueParser<Value = Proto> {
    PossibleValuesParser::new(["rdma", "tcp"]).try_map(|name| name.parse::<Proto>())
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

    /// The RPC-over-RDMA design: read-write, or read-read, an experiment which exposes the server's memory; both ends
    /// must use the same [default: read-write]. For `bench iozone`, `breakdown` and `simulate` also several, with commas
    #[arg(long = "design", global = true, value_name = "NAME", help_heading = "Global options", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(["read-write", "read-read"]).try_map(|s| s.parse::<Design>()))]
    pub(crate) designs: Vec<Design>,

    /// How memory is registered for RDMA: dynamic, fast, cache or all-physical [default: fast; of a server: cache].
    /// For `bench iozone`, `breakdown` and `simulate` also several, with commas
    #[arg(
        long = "registration",
        global = true,
        value_name = "STRATEGY",
        help_heading = "Global options",
        value_delimiter = ','
    )]
    pub(crate) registrations: Vec<Strategy>,

    /// When windows of `fast` are invalidated: at-once, or batched:N, which leaves the server able to write to memory of
    /// up to N calls that are done [default: at-once]
    #[arg(long, global = true, value_name = "WHEN", help_heading = "Global options")]
    pub(crate) fast_invalidate: Option<Invalidation>,

    /// Let the server reach all memory for buffers at any time, as registration all-physical does
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) i_trust_the_server: bool,

    /// Time the stages of one call in so many, 0: of none; docs/breakdown.md says where to see them
    #[arg(long, global = true, value_name = "N", help_heading = "Global options")]
    pub(crate) sample_stages: Option<u32>,
}

impl Global {
    /// The design, where one is stated.
    pub(crate) fn design(&self) -> Option<Design> {
        self.designs.first().copied()
    }

    /// The registration strategy, where one is stated.
    pub(crate) fn registration(&self) -> Option<Strategy> {
        self.registrations.first().copied()
    }
}

impl Cli {
    /// What is wrong with the command line beyond what its parts say of themselves.
    pub(crate) fn check(&self) -> Result<(), String> {
        let compares = matches!(&self.command, Command::Bench(args) if args.command.compares());
        let lists =
            [("--design", self.global.designs.len()), ("--registration", self.global.registrations.len())];
        match lists.into_iter().find(|(_, names)| *names > 1) {
            Some((option, _)) if !compares => Err(format!(
                "{option} takes one name here; `millrace bench iozone`, `breakdown` and `simulate` take several and compare them"
            )),
            _ => Ok(()),
        }
    }
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
    /// Run the papers' claims on simulated machines and write a report
    Reproduce(ReproduceArgs),
    /// Study modern machines and long ways by simulation
    Study(StudyArgs),
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

    #[test]
    fn every_command_teaches_by_example() {
        fn check(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
                let path = format!("{path} {}", sub.get_name());
                assert!(sub.get_about().is_some(), "{path} has no summary");
                if sub.has_subcommands() {
                    check(sub, &path);
                } else {
                    let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                    assert!(help.contains("Examples:") && help.contains(&path), "{path} has no example");
                }
            }
        }
        check(&Cli::command(), "millrace");
    }
}
