//! A shard: one thread with a single-threaded executor and its connections.
//!
//! The listeners pass each accepted connection (`NewConnection`) to the handle of a shard. Its `ShardWorker`
//! serves NFS over TCP and RDMA, iSCSI and iSER, with limits for each connection, until the connection ends
//! or the server stops.

mod iscsi;
mod probe;
mod set_up;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use core_affinity::CoreId;
use futures::{
    StreamExt,
    channel::mpsc,
    future::{Either, select},
};
use millrace_admission::{Account, ClientAddr};
use millrace_iscsi_target::{ConnectionLimits, TargetStats, tcp::TcpTarget};
use millrace_oncrpc::{
    Callbacks, Dispatcher, Peer, Program, Sampler, Service, TransportKind, TransportSecurity,
    serving::{CloseStats, ConnectionConfig},
    stages::StageTimes,
    tcp::{TcpServer, TcpServerConfig, TcpStats},
};
use millrace_rdma::{ConnectParams, ConnectionError, Incoming};
use millrace_rpcrdma::{Accepted, ResponderConfig, ResponderStats};
use millrace_runtime::{
    BoxFuture, ByteStream, RuntimeRef,
    tokio_rt::{TcpByteStream, TokioRuntime, busy_poll, run_shard},
};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    groups::Managed,
    limits::CALL_SLACK,
    metrics::ShardCounters,
    mount3::Mount3,
    nfs3::{Env, Nfs3},
    nfs4::{self, Nfs4},
    shared::Shared,
};

use iscsi::Streams;
pub(crate) use probe::Probe;
use set_up::SetUp;

/// `Some(grace)` after a request to stop the server.
pub(crate) type StopSignal = Option<Duration>;

/// Completes when the server is requested to stop.
pub(crate) async fn stop_requested(mut stopped: watch::Receiver<StopSignal>) {
    // An error means that the server handle was dropped, which also stops the server.
    drop(stopped.wait_for(Option::is_some).await);
}

/// Registers a connection with the reactor of its shard.
pub(crate) type OpenStream<S = Box<dyn ByteStream>> = Box<dyn FnOnce() -> io::Result<S> + Send>;

/// A connection to be served by a shard; not yet registered with a reactor.
pub(crate) enum NewConnection {
    Tcp {
        open: OpenStream,
        peer: SocketAddr,
        local: SocketAddr,
        account: Account,
    },
    Rdma {
        incoming: Box<dyn Incoming>,
        account: Account,
    },
    Iscsi {
        open: OpenStream<TcpByteStream>,
        peer: SocketAddr,
        account: Account,
    },
    Iser {
        incoming: Box<dyn Incoming>,
        account: Account,
    },
    /// A connection for iSCSI or iSER; its first byte determines which.
    IscsiOrIser {
        open: OpenStream<TcpByteStream>,
        peer: SocketAddr,
        account: Account,
    },
}

/// Handle of a shard.
#[derive(Clone)]
pub(crate) struct ShardHandle {
    index: usize,
    new_connections: mpsc::UnboundedSender<NewConnection>,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) tcp: Arc<TcpStats>,
    pub(crate) rdma: Arc<ResponderStats>,
    pub(crate) iscsi: Arc<TargetStats>,
    pub(crate) stages: Arc<Stages>,
    pub(crate) probe: Arc<Probe>,
}

/// Times of sampled calls by transport.
#[derive(Default)]
pub(crate) struct Stages {
    pub(crate) tcp: Arc<StageTimes>,
    pub(crate) rdma: Arc<StageTimes>,
}

impl ShardHandle {
    /// Creates the handle of shard `index`, and the receiver of its connections.
    pub(crate) fn new(index: usize) -> (Self, mpsc::UnboundedReceiver<NewConnection>) {
        let (tx, new_connections) = mpsc::unbounded();
        let handle = Self {
            index,
            new_connections: tx,
            counters: Arc::default(),
            tcp: Arc::default(),
            rdma: Arc::default(),
            iscsi: Arc::default(),
            stages: Arc::default(),
            probe: Arc::default(),
        };
        (handle, new_connections)
    }

    /// Passes a connection to the shard, which closes it if the shard is ending. The channel is unbounded,
    /// but each connection has an account, and the number of accounts is limited.
    pub(crate) fn send(&self, connection: NewConnection) {
        drop(self.new_connections.unbounded_send(connection));
    }
}

/// A started shard.
pub(crate) struct Shard {
    pub(crate) handle: ShardHandle,
    pub(crate) thread: JoinHandle<()>,
}

impl Shard {
    /// Starts the shard's thread, pinned to `core` if possible.
    pub(crate) fn start(
        index: usize,
        shared: &Arc<Shared>,
        stopped: &watch::Receiver<StopSignal>,
        core: Option<CoreId>,
    ) -> io::Result<Self> {
        let (handle, new_connections) = ShardHandle::new(index);
        let (shared, stopped) = (Arc::clone(shared), stopped.clone());
        let own = handle.clone();
        let busy_poll_limit = shared.config.busy_poll;
        let thread =
            std::thread::Builder::new().name(format!("millrace-shard-{index}")).spawn(move || {
                if core.is_some_and(|c| !core_affinity::set_for_current(c)) {
                    tracing::debug!(index, "cannot pin this shard to a core");
                }
                let ended = run_shard(async move {
                    let rt = TokioRuntime::current();
                    if !busy_poll_limit.is_zero() {
                        rt.spawn("busy poll", Box::pin(busy_poll(busy_poll_limit)));
                    }
                    rt.spawn("answer probes", Box::pin(Arc::clone(&own.probe).answer()));
                    let worker = ShardWorker::new(&shared, rt, &own, stopped);
                    drop(own); // The channel closes when the other handles are dropped.
                    worker.run(new_connections).await;
                });
                if let Err(e) = ended {
                    tracing::error!(index, "shard cannot run: {e}");
                }
            })?;
        Ok(Self { handle, thread })
    }
}

/// Select the calls whose stages are recorded.
struct Samplers {
    tcp: Arc<Sampler>,
    rdma: Arc<Sampler>,
}

impl Samplers {
    fn new(rt: &RuntimeRef, every: u32, stages: &Stages) -> Self {
        let sampler =
            |times: &Arc<_>| Arc::new(Sampler::new(Arc::clone(rt), "server", every, Arc::clone(times)));
        Self { tcp: sampler(&stages.tcp), rdma: sampler(&stages.rdma) }
    }
}

/// State of the shard's task.
pub(crate) struct ShardWorker {
    shared: Arc<Shared>,
    index: usize,
    rt: RuntimeRef,
    counters: Arc<ShardCounters>,
    tcp: Arc<TcpStats>,
    rdma: Arc<ResponderStats>,
    iscsi: TcpTarget,
    samplers: Samplers,
    stopped: watch::Receiver<StopSignal>,
}

impl ShardWorker {
    /// Creates the worker of a shard on `rt`.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        rt: RuntimeRef,
        handle: &ShardHandle,
        stopped: watch::Receiver<StopSignal>,
    ) -> Self {
        let (limits, stall_timeout) = (ConnectionLimits::default(), shared.config.limits.stall());
        let login_timeout = limits.login_timeout.min(stall_timeout);
        let iscsi = TcpTarget {
            table: Arc::clone(shared.targets.table()),
            rt: Arc::clone(&rt),
            arena: shared.arena.clone(),
            limits: ConnectionLimits { login_timeout, stall_timeout, ..limits },
            stats: Arc::clone(&handle.iscsi),
        };
        Self {
            index: handle.index,
            iscsi,
            samplers: Samplers::new(&rt, shared.config.stages.sample, &handle.stages),
            shared: Arc::clone(shared),
            rt,
            counters: Arc::clone(&handle.counters),
            tcp: Arc::clone(&handle.tcp),
            rdma: Arc::clone(&handle.rdma),
            stopped,
        }
    }

    /// The programs for a connection from `client`, which they call with `callbacks`.
    fn service(&self, client: ClientAddr, callbacks: Callbacks) -> Arc<dyn Service> {
        let (shared, counters) = (&self.shared, &self.counters);
        let nfs = Nfs3::new(Env::new(shared, counters, self.index, &self.rt, client));
        let mount =
            Mount3::new(Arc::clone(&shared.exports), Arc::clone(&shared.mounts), Arc::clone(counters));
        let env = nfs4::Env::new(shared, counters, self.index, &self.rt, client, callbacks.clone());
        let nfs4 = Nfs4::new(env);
        let programs = [self.managed(nfs), self.managed(nfs4), self.managed(mount)];
        Arc::new(Dispatcher::new(programs).with_callbacks(callbacks))
    }

    /// `program`, whose callers have the groups of the database if the server manages them.
    fn managed(&self, program: impl Program) -> Arc<dyn Program> {
        match &self.shared.groups {
            Some(groups) => Arc::new(Managed { program: Arc::new(program), groups: Arc::clone(groups) }),
            None => Arc::new(program),
        }
    }

    async fn run(self, mut new_connections: mpsc::UnboundedReceiver<NewConnection>) {
        let mut connections = JoinSet::new();
        let mut stop = Box::pin(stop_requested(self.stopped.clone()));
        while let Either::Left((Some(connection), rest)) = select(new_connections.next(), stop).await {
            stop = rest;
            while connections.try_join_next().is_some() {}
            connections.spawn(self.serve(connection));
        }
        drop(new_connections);
        let grace = self.stopped.borrow().unwrap_or_default();
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, drained).await.is_err() {
            tracing::debug!(left = connections.len(), "closing connections whose calls did not end in time");
        }
    }

    /// Limits of a connection that apply to both transports.
    fn connection(&self, sampler: &Arc<Sampler>, closed: &Arc<CloseStats>) -> ConnectionConfig {
        let limits = &self.shared.config.limits;
        ConnectionConfig {
            stall_timeout: limits.stall(),
            first_call_timeout: limits.stall(),
            idle_timeout: limits.idle(),
            sampler: Some(Arc::clone(sampler)),
            closed: Arc::clone(closed),
            gss: Arc::clone(&self.shared.gss),
        }
    }

    fn peer(&self, addr: SocketAddr, local: SocketAddr, transport: TransportKind) -> Peer {
        let connection = self.shared.connections.fetch_add(1, Ordering::Relaxed);
        Peer { addr, local, transport, security: TransportSecurity::None, connection }
    }

    fn set_up(&self, limit: Duration) -> SetUp {
        SetUp {
            tls: Arc::clone(&self.shared.tls),
            rt: Arc::clone(&self.rt),
            arena: self.shared.arena.clone(),
            stopped: self.stopped.clone(),
            limit,
            deadline: self.rt.now() + limit,
        }
    }

    /// Serves one connection.
    pub(crate) fn serve(&self, connection: NewConnection) -> BoxFuture<'static, ()> {
        match connection {
            NewConnection::Tcp { open, peer, local, account } => {
                Box::pin(self.tcp(open, peer, local, account))
            }
            NewConnection::Rdma { incoming, account } => Box::pin(self.rdma(incoming, account)),
            NewConnection::Iscsi { open, peer, account } => {
                Box::pin(self.block(peer, account).serve_stream(open, Streams::Iscsi))
            }
            NewConnection::Iser { incoming, account } => {
                Box::pin(self.block(incoming.peer(), account).serve_iser(incoming))
            }
            NewConnection::IscsiOrIser { open, peer, account } => {
                Box::pin(self.block(peer, account).serve_stream(open, Streams::IscsiOrIser))
            }
        }
    }

    /// Serves one TCP connection.
    fn tcp(
        &self,
        open: OpenStream,
        addr: SocketAddr,
        local: SocketAddr,
        account: Account,
    ) -> impl Future<Output = ()> + Send + 'static {
        let limits = &self.shared.config.limits;
        let transfer = limits.max_transfer() as usize;
        let config = TcpServerConfig {
            max_record: transfer + CALL_SLACK,
            max_in_flight: limits.credits as usize,
            max_queued: transfer.max(TcpServerConfig::default().max_queued),
            connection: self.connection(&self.samplers.tcp, &self.shared.closed.tcp),
            tls: Arc::clone(&self.shared.tls),
        };
        let server = TcpServer {
            service: self.service(addr.ip().into(), Callbacks::new(addr)),
            rt: Arc::clone(&self.rt),
            arena: self.shared.arena.clone(),
            config,
            stats: Arc::clone(&self.tcp),
        };
        let peer = self.peer(addr, local, TransportKind::Tcp);
        let counters = Arc::clone(&self.counters);
        let stop = stop_requested(self.stopped.clone());
        async move {
            let stream = match open() {
                Ok(s) => s,
                Err(e) => return tracing::warn!(peer = %addr, "TCP connection failed: {e}"),
            };
            tracing::debug!(peer = %addr, connection = peer.connection, "TCP connection up");
            counters.opened(TransportKind::Tcp);
            server.serve(stream, peer, account, stop).await;
            counters.closed(TransportKind::Tcp, true);
            tracing::debug!(peer = %addr, connection = peer.connection, "TCP connection down");
        }
    }

    /// Serves one RDMA connection.
    fn rdma(
        &self,
        incoming: Box<dyn Incoming>,
        account: Account,
    ) -> impl Future<Output = ()> + Send + 'static {
        let limits = &self.shared.config.limits;
        let config = ResponderConfig {
            credits: limits.credits,
            inline_size: limits.inline_size.0 as usize,
            max_transfer: limits.max_transfer() as usize,
            registration: Arc::clone(&self.shared.registration),
            connection: self.connection(&self.samplers.rdma, &self.shared.closed.rdma),
            ..ResponderConfig::default()
        };
        let addr = incoming.peer();
        let peer = self.peer(addr, addr, TransportKind::Rdma);
        let protocol = self.shared.config.rdma_protocol.clone();
        let base = ConnectParams {
            crc: self.shared.config.crc,
            shared_receives: limits.shared_receives,
            ..ConnectParams::default()
        };
        let params = protocol.accept_params(&config, base);
        let service = self.service(addr.ip().into(), Callbacks::new(addr));
        let (counters, stats) = (Arc::clone(&self.counters), Arc::clone(&self.rdma));
        let set_up = self.set_up(params.timeout);
        async move {
            let mut account = account;
            let (qp, session) = match Box::pin(set_up.accept_rdma(incoming, params, &mut account)).await {
                Some(Ok(accepted)) => accepted,
                Some(Err(e)) => return tracing::warn!(peer = %addr, "RDMA connection set-up failed: {e}"),
                None => return,
            };
            let peer = Peer { local: qp.info().local, ..peer };
            let millrace_rdma::ConnectionInfo { ird, ord, crc, .. } = *qp.info();
            tracing::debug!(peer = %addr, connection = peer.connection, ird, ord, crc, "RDMA connection up");
            counters.opened(TransportKind::Rdma);
            let SetUp { rt, arena, stopped, .. } = set_up;
            let connection = Accepted { qp, peer, service, rt, arena, account, session };
            let served = protocol.serve(connection, config, stats, Box::pin(stop_requested(stopped))).await;
            counters.closed(TransportKind::Rdma, matches!(served, Ok(()) | Err(ConnectionError::Closed)));
            match served {
                Ok(()) => tracing::debug!(peer = %addr, connection = peer.connection, "RDMA connection down"),
                Err(e) => {
                    tracing::warn!(peer = %addr, connection = peer.connection, "RDMA connection lost: {e}")
                }
            }
        }
    }
}
