//! `state`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::state::{Filter, Id};

/// Arguments of `millrace state`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  millrace state                                  the NFSv4 clients of the server on this host
  millrace state --client 0x6925c1f700000001      the opens and locks of a client
  millrace state --file /data/dir/file --json     who has a file open or locked, as one JSON object a line
  millrace state revoke --file /data/dir/file     take them away

A client that has not sent a request for a lease (90 seconds by default) has expired; others get what it has
when they ask for it. A file is shown as its export and the number of its inode (`find DIRECTORY -inum
NUMBER`). The socket is `control` in the server's configuration, and belongs to the server's user."
)]
pub(crate) struct StateArgs {
    #[command(subcommand)]
    pub(crate) command: Option<StateCommand>,

    #[command(flatten)]
    pub(crate) filter: StateFilterArgs,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Maximum number of lines
    #[arg(long, value_name = "LINES", default_value_t = 1000)]
    pub(crate) limit: usize,

    /// The server's control socket
    #[arg(long, value_name = "PATH", default_value = "/run/millrace/control")]
    pub(crate) socket: PathBuf,
}

/// Commands of `millrace state`.
#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Revoke opens and locks
    Revoke(RevokeArgs),
}

/// Arguments of `millrace state revoke`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace state revoke --client 0x6925c1f700000001
  millrace state revoke --export /data
  millrace state revoke --file /data/dir/file

Programs on the clients get an error (EIO) for lost locks; a client may open the files again. Data that a
client has not written yet may be lost.")]
pub(crate) struct RevokeArgs {
    #[command(flatten)]
    pub(crate) filter: StateFilterArgs,

    /// The server's control socket
    #[arg(long, value_name = "PATH", default_value = "/run/millrace/control")]
    pub(crate) socket: PathBuf,
}

/// Which state.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct StateFilterArgs {
    /// The opens and locks of a client
    #[arg(long, value_name = "ID")]
    client: Option<Id>,

    /// Those of the files of an export
    #[arg(long, value_name = "NAME")]
    export: Option<String>,

    /// Those of one file, named by the path below the server's root
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

impl StateFilterArgs {
    /// The filter, if there is one.
    pub(crate) fn filter(&self) -> Option<Filter> {
        let client = self.client.map(Filter::Client);
        let export = || self.export.clone().map(Filter::Export);
        client.or_else(export).or_else(|| self.file.clone().map(Filter::File))
    }
}
