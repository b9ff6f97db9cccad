//! Reads what the pages of the endpoint show.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_server::{Nfs4State, Running, StatsReader};

use crate::{
    process::{Process, boot_seconds},
    samples::Samples,
    snapshot::Snapshot,
    status_page::{ROWS, StatusPage},
    warnings,
};

/// Time limit of the answer of a shard.
const SHARD_LIMIT: Duration = Duration::from_secs(1);

/// Reads the state of a daemon.
pub(crate) struct Observer {
    reader: StatsReader,
    nfs4: Nfs4State,
    addresses: Vec<(&'static str, Vec<SocketAddr>)>,
    host: String,
    boot_seconds: f64,
    started: Instant,
    samples: Samples,
}

impl Observer {
    /// An observer of a server that has just started.
    pub(crate) fn new(server: &Running) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let addresses = vec![
            ("NFS over TCP", server.tcp_addrs().to_vec()),
            ("NFS over RDMA", server.rdma_addrs().to_vec()),
            ("iSCSI", server.iscsi_addr().into_iter().collect()),
            ("iSER", server.iser_addr().into_iter().collect()),
        ];
        Self {
            reader: server.stats_reader(),
            nfs4: server.nfs4_state(),
            addresses,
            host: host.trim_end().to_owned(),
            boot_seconds: boot_seconds().unwrap_or_default(),
            started: Instant::now(),
            samples: Samples::default(),
        }
    }

    /// Takes the samples of the status page until `stopping` completes.
    pub(crate) async fn record(&self, stopping: impl Future<Output = ()>) {
        self.samples.record(&self.reader, stopping).await;
    }

    pub(crate) async fn status_page(&self) -> StatusPage {
        StatusPage {
            host: self.host.clone(),
            addresses: self.addresses.clone(),
            snapshot: self.snapshot().await,
            rates: self.samples.rates(),
            nfs4_clients: self.nfs4.clients(None, ROWS),
            warnings: warnings::last(),
            uptime: self.started.elapsed(),
        }
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
