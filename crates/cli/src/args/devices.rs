//! `devices`.

use clap::Args;

/// Arguments of `millrace devices`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace devices
  millrace devices --json | jq -r '.addresses[] | select(.provider == \"verbs\").address'

The last table shows what --provider auto takes for each address of this machine: a server's when it listens there, a
client's when it sends from there. An unspecified address (0.0.0.0) belongs to no device: auto takes iwarp for it.")]
pub(crate) struct DevicesArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
