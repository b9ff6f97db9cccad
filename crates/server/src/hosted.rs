//! A server without threads and sockets of its own: it runs on a runtime of the caller's.

use std::sync::Arc;

use futures::{StreamExt, channel::mpsc as queue};
use millrace_rdma::Listener;
use millrace_runtime::{RuntimeRef, StreamListener};
use millrace_vfs::FileSystemRef;
use tokio::sync::watch;

use crate::{
    Config, ExportConfig, ServerError, Stats,
    backend::Resources,
    listen::{Door, accept_rdma, accept_streams},
    metrics::Gauges,
    server::Starting,
    shard::{Arrival, Main, ShardHandle, StopSignal},
};

/// A server that runs on one runtime of the caller's, and serves RDMA and TCP listeners that it is given: the same connections,
/// procedures, limits and counters as [`crate::Server`]'s, as one shard. It works in virtual time. Dropping it closes
/// its connections.
pub struct Hosted {
    rt: RuntimeRef,
    door: Arc<Door>,
    gauges: Arc<Gauges>,
    stop: watch::Sender<StopSignal>,
}

impl Hosted {
    /// A server of the configuration's exports; `open` is called for each of them, and may be [`crate::open`]. Addresses,
    /// provider, shards and metrics of the configuration are not used.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is left running.
    pub fn start(
        config: Config,
        rt: RuntimeRef,
        open: impl FnMut(&ExportConfig, &Resources<'_>) -> Result<FileSystemRef, String>,
    ) -> Result<Self, ServerError> {
        config.check_service()?;
        let (stop, stopped) = watch::channel(None);
        let starting = Starting { config, provider: None, stopped: stopped.clone(), rt: Arc::clone(&rt) };
        let shared = starting.shared(1, None, open)?;
        let (handle, arrivals) = ShardHandle::new(0);
        let main = Main::new(&shared, Arc::clone(&rt), &handle, stopped);
        let handles = vec![handle];
        let gauges = Arc::new(Gauges::new(&handles, &shared));
        let door = Door::new(handles, shared.budget.clone(), gauges.turned_away(), Arc::clone(&rt));
        let door = Arc::new(door);
        rt.spawn("hosted server", Box::pin(serve(Arc::clone(&rt), main, arrivals)));
        Ok(Self { rt, door, gauges, stop })
    }

    /// Serves what comes to `listener`.
    pub fn serve(&self, listener: Box<dyn Listener>) {
        let accept = accept_rdma(listener, Arc::clone(&self.door), self.stop.subscribe());
        self.rt.spawn("accept RDMA", Box::pin(accept));
    }

    /// Serves the TCP connections that come to `listener`.
    pub fn serve_tcp(&self, listener: Box<dyn StreamListener>) {
        let accept = accept_streams(listener, Arc::clone(&self.door), self.stop.subscribe());
        self.rt.spawn("accept TCP", Box::pin(accept));
    }

    /// What the server has done so far.
    pub fn stats(&self) -> Stats {
        self.gauges.stats()
    }
}

/// Gives each connection a task. (Their own end is told to them by the stop signal.)
async fn serve(rt: RuntimeRef, main: Main, mut arrivals: queue::UnboundedReceiver<Arrival>) {
    while let Some(arrival) = arrivals.next().await {
        match arrival {
            Arrival::Tcp { open, peer, local, account } => {
                rt.spawn("TCP connection", Box::pin(main.tcp(open, peer, local, account)));
            }
            Arrival::Rdma { incoming, account } => {
                rt.spawn("RDMA connection", Box::pin(main.rdma(incoming, account)));
            }
        }
    }
}
