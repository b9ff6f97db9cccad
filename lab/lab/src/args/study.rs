//! Arguments of `millrace-lab study`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `millrace-lab study`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab study distance
  millrace-lab study all --out docs/lab/studies

Writes a page NAME.md for each study, and its plots. Everything is SIMULATED, not measured: the real client and server
run on simulated machines in virtual time.")]
pub(crate) struct StudyArgs {
    /// Name of a study: distance, credits, registration, block, modern, or all
    pub(crate) name: String,

    /// Directory of the pages and plots
    #[arg(long, value_name = "DIR", default_value = "studies")]
    pub(crate) out: PathBuf,

    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Use fewer machines and values: takes seconds instead of minutes, with less accurate figures
    #[arg(long)]
    pub(crate) small: bool,
}
