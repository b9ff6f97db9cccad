//! `serve`, `check-config`, `reload` and `demo`.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

use clap::Args;
use millrace_daemon::listening_address;
use millrace_program::units::ByteSize;

/// Arguments of `millrace serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace serve /srv/data
  millrace serve /srv/data --listen-rdma '[::]:20049' --listen-tcp '[::]:2049'
  millrace serve --export /scratch=memory:2GiB --export /data=local:/srv/data,ro,client=10.0.0.0/8
  millrace serve --config /etc/millrace.toml --metrics 127.0.0.1:9464
  millrace serve --export /vol=memory:4GiB --lun disks=/vol/disk0,size=1GiB

When the server is ready it prints one line on standard output, with the ports in use:
  ready rdma=127.0.0.1:20049 tcp=127.0.0.1:2049
With iSCSI targets, the line has iscsi=ADDR:PORT and iser=ADDR:PORT, and lines with the URLs of each LUN follow:
  iscsi://127.0.0.1:3260/iqn.2026-01.example.millrace:disks/0
  iser://127.0.0.1:3260/iqn.2026-01.example.millrace:disks/0

SIGHUP, or `millrace reload`, applies changes of the exports and targets in the configuration file. The first
SIGTERM or SIGINT stops accepting calls, completes the calls in progress and exits; the second exits
immediately. Without --config, and when the terminal is closed, SIGHUP acts as SIGTERM unless it is ignored (nohup).

Mount it from Linux (as root; the siw driver provides a software RDMA device on any network interface):
  mount -t nfs -o vers=4.2,proto=tcp HOST:/data /mnt
  rdma link add siw0 type siw netdev eth0 && mount -t nfs -o vers=4.2,proto=rdma HOST:/data /mnt")]
pub(crate) struct ServeArgs {
    /// Serve this directory as an export with its name, and print the commands that mount it
    #[arg(value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Export /NAME: /NAME=local:DIRECTORY or /NAME=memory:SIZE; may be repeated
    #[arg(long = "export", value_name = "/NAME=BACKEND")]
    pub(crate) exports: Vec<OsString>,

    /// Listening address for NFS over RDMA; may be repeated [default: 127.0.0.1:20049]
    ///
    /// `[::]:PORT` accepts IPv4 and IPv6, `0.0.0.0:PORT` IPv4. Port 0 selects a free port.
    #[arg(long, value_name = "ADDR:PORT", value_parser = listening_address)]
    pub(crate) listen_rdma: Vec<SocketAddr>,

    /// Listening address for NFS and MOUNT over TCP; may be repeated [default: 127.0.0.1:2049]
    ///
    /// As for --listen-rdma.
    #[arg(long, value_name = "ADDR:PORT", value_parser = listening_address)]
    pub(crate) listen_tcp: Vec<SocketAddr>,

    /// Add a disk to the iSCSI target NAME: NAME=/EXPORT/FILE[,block=512|4096,ro,size=SIZE,lun=N]; may be repeated
    ///
    /// NAME is an iSCSI name (iqn., eui. or naa.), or a short name after `iqn.2026-01.example.millrace:`. The LUNs of a
    /// target are numbered from 0 in order. The file must exist, unless a size to create it is given.
    #[arg(long = "lun", value_name = "NAME=PATH")]
    pub(crate) luns: Vec<OsString>,

    /// Listening address for iSCSI; port 0 selects a free port [default: 127.0.0.1:3260 if there are targets]
    #[arg(long, value_name = "ADDR:PORT", value_parser = listening_address)]
    pub(crate) listen_iscsi: Option<SocketAddr>,

    /// Listening address for iSCSI over RDMA (iSER) [default: with the provider iwarp, that of iSCSI]
    #[arg(long, value_name = "ADDR:PORT", value_parser = listening_address)]
    pub(crate) listen_iser: Option<SocketAddr>,

    /// Read exports, targets, access rules and limits from a TOML file; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Serve Prometheus metrics over HTTP at this address
    #[arg(long, value_name = "ADDR:PORT", value_parser = listening_address)]
    pub(crate) metrics: Option<SocketAddr>,

    // Not as documentation, in which the name of the table would be a link.
    #[arg(
        long,
        help = "Permit an address of metrics that other hosts reach, without encryption and token ([metrics_access])"
    )]
    pub(crate) metrics_insecure: bool,

    /// Number of threads that serve connections [default: one per processor]
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<usize>,

    /// Poll for the next call for this time before a thread sleeps, 0 to 1000
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) busy_poll: Option<u64>,

    /// Maximum memory for network data
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,

    /// Time limit for calls in progress after the first signal
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u64,
}

/// Arguments of `millrace check-config`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace check-config                        check /etc/millrace.toml
  ./generate | millrace check-config -         check standard input
  millrace check-config new.toml && mv new.toml /etc/millrace.toml && millrace reload

The command reports all errors with their lines and columns, and the warnings of a start. Exported directories
and the files of LUNs must exist; addresses are not opened.")]
pub(crate) struct CheckConfigArgs {
    /// The TOML file, or `-`
    #[arg(default_value = "/etc/millrace.toml")]
    pub(crate) file: PathBuf,

    /// Print one JSON object with the errors and warnings
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `millrace reload`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace reload                              the server at /run/millrace/control
  millrace reload /tmp/millrace.control

The server reads its configuration file again and applies the [[export]] and [[target]] tables; connections
and open files are kept. File handles of removed exports become stale. Initiators are asked to log out of
targets that are removed or have other disks. Changes of addresses, limits and other keys require
a restart; the output names them. An invalid file changes nothing. The socket is `control` in the
configuration. SIGHUP has the same effect and writes the result to the server's log.")]
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
  millrace demo ~/pictures         copy a given directory
  millrace demo --json | jq .rdma  print the figures as JSON

The directory is not modified. The server keeps the copy in memory, listens on the loopback address only,
and ends with the command. The exit code is 1 if any byte differs.")]
pub(crate) struct DemoArgs {
    /// The directory to copy [default: the Rust toolchain's documentation or library, else a generated tree]
    pub(crate) dir: Option<PathBuf>,

    /// Maximum total size of the copied files
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub(crate) max_bytes: ByteSize,

    /// Maximum number of copied files
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) max_files: usize,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
