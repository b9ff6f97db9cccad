//! A server without threads and sockets, on a runtime of the caller.

use std::sync::Arc;

use futures::{StreamExt, channel::mpsc as queue};
use millrace_rdma::Listener;
use millrace_runtime::{RuntimeRef, StreamListener};
use millrace_vfs::FileSystemRef;
use tokio::sync::watch;

use crate::{
    Config, ExportConfig, ServerError, Stats,
    backend::Resources,
    listen::{Acceptor, Protocol, accept_rdma, accept_streams},
    shard::{NewConnection, ShardHandle, ShardWorker, StopSignal, stop_requested},
    shared::Shared,
    stats_sources::StatsSources,
};

/// A server that runs on one runtime of the caller, and serves RDMA and TCP listeners of the caller.
/// Connections, procedures, limits and counters are those of [`crate::Server`] with one shard. It can run in
/// virtual time. Dropping it closes its connections.
pub struct Hosted {
    rt: RuntimeRef,
    acceptor: Arc<Acceptor>,
    sources: Arc<StatsSources>,
    stop: watch::Sender<StopSignal>,
}

impl Hosted {
    /// Starts a server with the configuration's exports. `open` is called for each of them, and may be
    /// [`crate::open`]. Addresses, provider, shards and metrics of the configuration are ignored.
    ///
    /// # Errors
    /// [`ServerError`]; no task is left running. A configuration with iSCSI targets is refused, because their disks
    /// cannot be opened without waiting for the file system.
    pub fn start(
        config: Config,
        rt: RuntimeRef,
        open: impl FnMut(&ExportConfig, &Resources<'_>) -> Result<FileSystemRef, String>,
    ) -> Result<Self, ServerError> {
        config.check_service()?;
        if !config.targets.is_empty() {
            let what =
                "a hosted server has no iSCSI targets; start a server with threads, or remove the targets";
            return Err(ServerError::Config(what.into()));
        }
        let (stop, stopped) = watch::channel(None);
        let shared = Shared::new(&config, &rt, 1, None, open)?;
        let clients = Arc::clone(&shared.nfs4_clients);
        let maintain = clients.maintain(Arc::clone(&rt), stop_requested(stopped.clone()));
        rt.spawn("expire NFSv4 clients", Box::pin(maintain));
        let (handle, connections) = ShardHandle::new(0);
        let worker = ShardWorker::new(&shared, Arc::clone(&rt), &handle, stopped);
        let handles = vec![handle];
        let sources = Arc::new(StatsSources::new(&handles, &shared, &rt));
        let acceptor = Acceptor::new(handles, shared.budget.clone(), sources.turned_away(), Arc::clone(&rt));
        let acceptor = Arc::new(acceptor);
        rt.spawn("hosted server", Box::pin(serve(Arc::clone(&rt), worker, connections)));
        Ok(Self { rt, acceptor, sources, stop })
    }

    /// Serves the RDMA connections of `listener`.
    pub fn serve(&self, listener: Box<dyn Listener>) {
        let accept = accept_rdma(listener, Protocol::Nfs, Arc::clone(&self.acceptor), self.stop.subscribe());
        self.rt.spawn("accept RDMA", Box::pin(accept));
    }

    /// Serves the TCP connections of `listener`.
    pub fn serve_tcp(&self, listener: Box<dyn StreamListener>) {
        let accept = accept_streams(listener, Arc::clone(&self.acceptor), self.stop.subscribe());
        self.rt.spawn("accept TCP", Box::pin(accept));
    }

    /// A snapshot of the statistics since the start.
    pub fn stats(&self) -> Stats {
        self.sources.stats()
    }
}

/// Spawns a task per connection. The stop signal ends the tasks.
async fn serve(
    rt: RuntimeRef,
    worker: ShardWorker,
    mut connections: queue::UnboundedReceiver<NewConnection>,
) {
    while let Some(connection) = connections.next().await {
        rt.spawn("connection", worker.serve(connection));
    }
}
