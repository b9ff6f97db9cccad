//! The state of a daemon at a moment.

use millrace_server::Stats;
use millrace_vfs::FsStat;

use crate::process::Process;

/// The state of a daemon at a moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) stats: Stats,
    /// Space of the exports by name.
    pub(crate) spaces: Vec<(String, FsStat)>,
    /// Numbers of the shards that do not answer.
    pub(crate) hung_shards: Vec<usize>,
    pub(crate) process: Option<Process>,
}
