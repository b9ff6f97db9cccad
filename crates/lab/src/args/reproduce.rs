//! Arguments of `millrace-lab reproduce`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `millrace-lab reproduce`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab reproduce
  millrace-lab reproduce --only C2,C13 --out /tmp/report

Writes index.html, which needs nothing beside it, claims.md, claims.json and the pictures. Everything is SIMULATED, not
measured: the real client and server run on simulated machines in virtual time. Rules say when a claim holds; they were
stated, with the papers' figures, before anything was run. docs/reproduction.md says more.

The command succeeds when it came to its end and the report is written, whether claims hold or fail.")]
pub(crate) struct ReproduceArgs {
    /// The claims to run [default: all]
    #[arg(long, value_name = "CLAIM,...", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// The directory for the report
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) out: PathBuf,

    /// The seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Use less data and fewer operations: seconds instead of minutes, for rougher figures
    #[arg(long)]
    pub(crate) small: bool,
}
