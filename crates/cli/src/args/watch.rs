//! `top` and `doctor`.

use std::time::Duration;

use clap::Args;
use millrace_program::args::url;

use crate::top::Order;

/// Arguments of `millrace top`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace top                       the local server, at the address of the example configuration
  millrace top server:9464 --sort p99
  millrace top --once --interval 10  one text report over ten seconds
  millrace top --json | jq '.client[0].ops'

The figures are differences of the server's counters at its metrics address (`metrics` in the
configuration, --metrics). p50 and p99 are percentiles of the time in the server, without the network;
their resolution is a factor of two. Clients and procedures without activity are left out. If standard
output is not a terminal, one report is printed, as with --once.")]
pub(crate) struct TopArgs {
    /// The server's metrics address
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:9464")]
    pub(crate) address: String,

    /// Print one report and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// Print one report as a JSON object, with rates per second, and exit
    #[arg(long)]
    pub(crate) json: bool,

    /// Seconds between two samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,

    /// Sort key
    #[arg(long, value_name = "KEY", default_value = "ops")]
    pub(crate) sort: Order,
}

impl TopArgs {
    /// Returns the time between two samples.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(self.interval)
    }
}

/// Arguments of `millrace doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace doctor                              this host: providers, limits, clock
  millrace doctor nfs://server/data            also a server: port, MTU, protocol, export, access
  millrace doctor iscsi://server               also an iSCSI target: port, MTU, protocol, login, disks
  millrace doctor --json nfs://server/data?proto=tcp | jq '.findings[] | select(.state == \"broken\")'

Each problem is reported with a remedy. The exit code is 1 if something is broken. The command changes
nothing.")]
pub(crate) struct DoctorArgs {
    /// A server, optionally with an export and a path to check, or an iSCSI portal, target or disk
    #[arg(value_parser = url())]
    pub(crate) url: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
