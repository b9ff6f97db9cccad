//! `top` and `doctor`.

use std::time::Duration;

use clap::Args;

use crate::top::Order;

/// Arguments of `millrace top`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace top                       the server of this machine, as its example configuration has it
  millrace top server:9464 --sort p99
  millrace top --once --interval 10  a report over ten seconds, as text

The figures are differences of the counters that the server shows at its metrics address (`metrics` in the
configuration, --metrics). Times are those at the server, without the network: half of the calls, and 99 of 100, took
at most so long; they are exact to a factor of two. Without a terminal one report is printed, as with --once.")]
pub(crate) struct TopArgs {
    /// The server's metrics address
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:9464")]
    pub(crate) address: String,

    /// Print one report and end
    #[arg(long)]
    pub(crate) once: bool,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,

    /// What comes first
    #[arg(long, value_name = "KEY", default_value = "ops")]
    pub(crate) sort: Order,
}

impl TopArgs {
    /// The time between two looks.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(self.interval)
    }
}

/// Arguments of `millrace doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace doctor                              this machine: providers, limits, clock
  millrace doctor nfs://server/data            and the way to a server: port, MTU, protocol, export, access
  millrace doctor --json nfs://server/data?proto=tcp | jq '.findings[] | select(.state == \"broken\")'

Each finding that is not fine comes with what mends it. The exit code is 1 if something is broken. Nothing is changed.")]
pub(crate) struct DoctorArgs {
    /// A server, with an export and a path if they are to be looked at
    pub(crate) url: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
