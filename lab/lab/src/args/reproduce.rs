//! Arguments of `millrace-lab reproduce`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `millrace-lab reproduce`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace-lab reproduce
  millrace-lab reproduce --only C2,C13 --out /tmp/report
  millrace-lab reproduce --raw-only
  millrace-lab reproduce --only C6,C12 --causes

Writes index.html (self-contained), claims.md, claims.json, calibration.json, causes.json and the plots. Everything is
SIMULATED, not measured: the real client and server run on simulated machines in virtual time. The rules that
decide whether a claim holds were stated, with the papers' figures, before the first run. A first column simulates
hosts that are defined by raw numbers only. For a second column, one stated figure calibrates each parameter that
raw numbers do not define. See docs/lab/reproduction.md and docs/lab/calibration.md.

The command succeeds if the report was written, whether or not the claims hold.")]
pub(crate) struct ReproduceArgs {
    /// Claims to test [default: all]
    #[arg(long, value_name = "CLAIM,...", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Directory of the report
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) out: PathBuf,

    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Use less data and fewer operations: takes seconds instead of minutes, with less accurate figures
    #[arg(long)]
    pub(crate) small: bool,

    /// Omit the calibrated column
    #[arg(long)]
    pub(crate) raw_only: bool,

    /// Change each calibrated parameter by 20 % and to its smallest value, and calibrate it with its alternative
    /// figure; lists the rules whose results change
    #[arg(long, conflicts_with = "raw_only")]
    pub(crate) sensitivity: bool,

    /// Test the supposed causes of the failures of the calibrated column by experiments, which change one
    /// mechanism each and are not counted
    #[arg(long, conflicts_with = "raw_only")]
    pub(crate) causes: bool,
}
