//! What the pages of the endpoint show.

use std::time::Duration;

use millrace_server::{Stats, StatsReader};
use millrace_vfs::FsStat;

use crate::process::{Process, boot_seconds};

/// Time limit of the answer of a shard.
const SHARD_LIMIT: Duration = Duration::from_secs(1);

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

/// Reads the state of a daemon.
#[derive(Clone)]
pub(crate) struct Observer {
    reader: StatsReader,
    boot_seconds: f64,
}

impl Observer {
    pub(crate) fn new(reader: StatsReader) -> Self {
        Self { reader, boot_seconds: boot_seconds().unwrap_or_default() }
    }

    pub(crate) async fn snapshot(&self) -> Snapshot {
        let (spaces, hung_shards) = futures::join!(self.reader.spaces(), self.hung_shards());
        let process = Process::read(self.boot_seconds);
        Snapshot { stats: self.reader.stats(), spaces, hung_shards, process }
    }

    pub(crate) async fn hung_shards(&self) -> Vec<usize> {
        self.reader.hung_shards(SHARD_LIMIT).await
    }
}
