//! `serve` and `demo`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use millrace_bench::units::ByteSize;

/// Arguments of `millrace serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace serve --export /data=local:/srv/data
  millrace serve --export /scratch=memory:2GiB --listen-rdma 0.0.0.0:20049 --listen-tcp 0.0.0.0:2049
  millrace serve --config /etc/millrace.toml --metrics 127.0.0.1:9100

When the server can be used it prints one line on standard output, with the real ports:
  ready rdma=127.0.0.1:20049 tcp=127.0.0.1:2049

SIGHUP, or `millrace reload`, applies changes of the file's exports. The first SIGTERM or SIGINT stops new calls, finishes the open ones and exits; the second exits at once.

Mount it from Linux (as root; the siw driver makes an RDMA device of an ordinary network card):
  rdma link add siw0 type siw netdev eth0
  mount -t nfs -o vers=3,proto=rdma,port=20049,mountproto=tcp,mountport=2049,nolock HOST:/data /mnt")]
pub(crate) struct ServeArgs {
    /// Offer NAME: /NAME=local:DIRECTORY or /NAME=memory:SIZE. May be given several times
    #[arg(long = "export", value_name = "/NAME=BACKEND", required_unless_present = "config")]
    pub(crate) exports: Vec<String>,

    /// Where NFS over RDMA listens; port 0 takes a free one [default: 127.0.0.1:20049]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen_rdma: Option<SocketAddr>,

    /// Where NFS over TCP listens (MOUNT too); port 0 takes a free one [default: 127.0.0.1:2049]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen_tcp: Option<SocketAddr>,

    /// Read exports, access rules and limits from a TOML file; what is on the command line goes before it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Serve Prometheus metrics over HTTP at this address
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Threads that serve connections [default: one per processor]
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<usize>,

    /// Most bytes of memory for data on its way
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,

    /// How long open calls may take to finish after the first signal
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u64,
}

/// Arguments of `millrace check-config`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace check-config                        check /etc/millrace.toml
  millrace check-config new.toml && mv new.toml /etc/millrace.toml && millrace reload

The first mistake is told with its line and column. Directories must be there; addresses are not opened.")]
pub(crate) struct CheckConfigArgs {
    /// The TOML file
    #[arg(default_value = "/etc/millrace.toml")]
    pub(crate) file: PathBuf,
}

/// Arguments of `millrace reload`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace reload                              ask the server at /run/millrace/control
  millrace reload /tmp/millrace.control

The server reads its configuration file again and applies what [[export]] says now; connections and open files stay.
Files of an export that is gone are stale. Addresses, limits and all the rest wait for a restart, and are named. A file
with a mistake changes nothing. The socket is the one that `control` in the configuration names; SIGHUP does the same,
with the answer in the server's log.")]
pub(crate) struct ReloadArgs {
    /// The server's control socket
    #[arg(default_value = "/run/millrace/control")]
    pub(crate) socket: PathBuf,
}

/// Arguments of `millrace demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace demo                    copy the Rust toolchain's documentation (or a generated tree)
  millrace demo ~/pictures         copy a directory of yours
  millrace demo --json | jq .rdma  the figures for a script

The directory is only read. The server keeps the copy in memory, listens on the loopback address only, and is gone
afterwards. The exit code is 1 if any byte differs.")]
pub(crate) struct DemoArgs {
    /// The directory to copy [default: the Rust toolchain's documentation or library, else a generated tree]
    pub(crate) dir: Option<PathBuf>,

    /// Stop choosing files at this many bytes in all
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub(crate) max_bytes: ByteSize,

    /// Stop choosing files at this many
    #[arg(long, value_name = "N", default_value_t = 4000)]
    pub(crate) max_files: usize,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
