//! `devices`.

use clap::Args;

/// Arguments of `millrace devices`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace devices
  millrace devices --json | jq -r '.addresses[] | select(.provider == \"verbs\").address'

The last table shows the provider that --provider auto selects for each local address: for a server that
listens there, and for a client that connects from there. For an unspecified address (0.0.0.0) auto selects
iwarp.")]
pub(crate) struct DevicesArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
