//! The life cycle: from a configuration to a running server, and to its orderly end.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, atomic::AtomicU64, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use futures::channel::oneshot;
use millrace_buffer::{Arena, ArenaConfig, TRIM_INTERVAL};
use millrace_oncrpc::serving::{Budget, CloseStats};
use millrace_rdma::Provider;
use millrace_rdma_providers::Chosen;
use millrace_rpcrdma::registration::{Registration, Settings, Strategy};
use millrace_runtime::{RuntimeExt, RuntimeRef, tokio_rt::TokioRuntime};
use millrace_vfs::FileSystemRef;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    Config, ExportConfig, Reloaded, ServerError, Squash, Stats, StatsReader,
    backend::{self, Opener, Resources},
    design,
    drc::ReplyCache,
    export::{Entry, Exports, unused},
    handle,
    listen::{Door, accept_rdma, accept_tcp},
    metrics::Gauges,
    mount3::MountList,
    reload::{self, ExportTable},
    shard::{Shard, StopSignal, stop_requested},
};

/// Makes servers.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Starts a server. When this returns it answers on all its addresses.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is left running.
    pub fn start(config: Config) -> Result<Running, ServerError> {
        Self::begin(config, None, Box::new(backend::open))
    }

    /// As [`Self::start`], with RDMA over a provider of the caller's instead of the one that `config` names.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is left running.
    pub fn start_over(config: Config, provider: Arc<dyn Provider>) -> Result<Running, ServerError> {
        Self::begin(config, Some(provider), Box::new(backend::open))
    }

    /// As [`Self::start`], with file systems of the caller's: `open` opens each export of the configuration, and those
    /// that [`Running::reload`] adds. It may call [`open`](backend::open) for exports that it does not open itself.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is left running.
    pub fn start_with(
        config: Config,
        open: impl FnMut(&ExportConfig, &Resources<'_>) -> Result<FileSystemRef, String> + Send + 'static,
    ) -> Result<Running, ServerError> {
        Self::begin(config, None, Box::new(open))
    }

    fn begin(
        config: Config,
        provider: Option<Arc<dyn Provider>>,
        mut open: Opener,
    ) -> Result<Running, ServerError> {
        config.check()?;
        // Accepting, tasks of the caller and blocking work of file systems happen here; data moves on the shards.
        let control = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("millrace-control")
            .enable_all()
            .build()
            .map_err(ServerError::Thread)?;
        let (stop, stopped) = watch::channel(None);
        let rt = TokioRuntime::from_handle(control.handle().clone());
        let starting = Starting { config, provider, stopped, rt };
        let guard = control.enter();
        let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shards = starting.config.shards.unwrap_or(available);
        let shared = starting.shared(shards, descriptors(), &mut open)?;
        let shards = starting.shards(&shared)?;
        let (handles, threads): (Vec<_>, Vec<_>) = shards.into_iter().map(|s| (s.handle, s.thread)).unzip();
        let gauges = Arc::new(Gauges::new(&handles, &shared));
        let (alive, all_gone) = mpsc::sync_channel(1);
        let mut running = Running {
            rdma: Vec::new(),
            tcp: Vec::new(),
            shared,
            open: Mutex::new(open),
            rt: Arc::clone(&starting.rt),
            gauges,
            stop,
            alive: Some(alive),
            all_gone: Mutex::new(all_gone),
            threads, // From here on dropping `running` ends everything.
            control: None,
        };
        let turned_away = running.gauges.turned_away();
        let (rt, budget) = (Arc::clone(&starting.rt), running.shared.budget.clone());
        let door = Arc::new(Door::new(handles, budget, turned_away, rt));
        starting.open(&mut running, &door)?;
        drop(guard);
        running.control = Some(control);
        starting.trim_memory(&running.shared.arena);
        starting.announce(&running);
        Ok(running)
    }
}

/// What all shards share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    /// Their number.
    pub(crate) shards: usize,
    pub(crate) arena: Arena,
    pub(crate) exports: Arc<ExportTable>,
    /// Under which handles are sealed, if there is a state directory.
    pub(crate) secret: Option<[u64; 2]>,
    pub(crate) mounts: Arc<MountList>,
    pub(crate) replies: Arc<ReplyCache>,
    /// What clients may hold.
    pub(crate) budget: Budget,
    /// Connections that were closed, by transport and reason.
    pub(crate) closed: Closed,
    /// How the memory of RDMA Reads and Writes is registered.
    pub(crate) registration: Arc<Registration>,
    /// Gives every connection its number.
    pub(crate) connections: AtomicU64,
}

/// Counts connections that were closed, by reason.
#[derive(Default)]
pub(crate) struct Closed {
    pub(crate) tcp: Arc<CloseStats>,
    pub(crate) rdma: Arc<CloseStats>,
}

/// How many files this process may have open; `None`: any number.
fn descriptors() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

pub(crate) struct Starting {
    pub(crate) config: Config,
    /// Instead of what the configuration names.
    pub(crate) provider: Option<Arc<dyn Provider>>,
    pub(crate) stopped: watch::Receiver<StopSignal>,
    pub(crate) rt: RuntimeRef,
}

impl Starting {
    /// What `shards` shards share, in a process that may have so many files open.
    pub(crate) fn shared(
        &self,
        shards: usize,
        descriptors: Option<u64>,
        mut open: impl FnMut(&ExportConfig, &Resources<'_>) -> Result<FileSystemRef, String>,
    ) -> Result<Arc<Shared>, ServerError> {
        let config = &self.config;
        let limit = usize::try_from(config.limits.memory.0).unwrap_or(usize::MAX);
        let arena = Arena::new(ArenaConfig { limit, huge_pages: true });
        let secret = match &config.state_dir {
            Some(dir) => {
                let secret = handle::secret(dir, |bytes| self.rt.fill_random(bytes));
                Some(secret.map_err(|source| ServerError::State { path: dir.clone(), source })?)
            }
            None => None,
        };
        let with = Resources { arena: &arena, runtime: &self.rt, state_dir: config.state_dir.as_deref() };
        let mut entries = Vec::with_capacity(config.exports.len());
        for e in &config.exports {
            let fs = open(e, &with).map_err(|reason| ServerError::Export { name: e.name.clone(), reason })?;
            entries.push(Entry { policy: e.clone(), fs, usage: unused(shards) });
        }
        let strategy = config.registration.unwrap_or(Strategy::Cache);
        Ok(Arc::new(Shared {
            config: config.clone(),
            shards,
            arena,
            exports: Arc::new(ExportTable::new(Exports::new(entries, secret)?)),
            secret,
            mounts: Arc::default(),
            replies: Arc::new(ReplyCache::new(config.limits.replies_kept, Arc::clone(&self.rt))),
            budget: Budget::new(config.limits.budget(descriptors), Arc::clone(&self.rt)),
            closed: Closed::default(),
            registration: Arc::new(Registration::new(Settings {
                cache_limit: config.limits.cache_limit(),
                ..Settings::new(strategy)
            })),
            connections: AtomicU64::new(1),
        }))
    }

    fn shards(&self, shared: &Arc<Shared>) -> Result<Vec<Shard>, ServerError> {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let count = shared.shards;
        let pin = count > 1 && count <= cores.len() && !self.config.float_shards;
        (0..count)
            .map(|i| Shard::start(i, shared, &self.stopped, cores.get(i).filter(|_| pin).copied()))
            .collect::<Result<_, _>>()
            .map_err(ServerError::Thread)
    }

    /// Over what to listen for RDMA on `addr`.
    fn provider_of(&self, addr: SocketAddr) -> Result<Chosen, ServerError> {
        match &self.provider {
            Some(p) => Ok(Chosen { provider: Arc::clone(p), why: "as the program gave it".into() }),
            None => {
                let chosen = self.config.provider.to_listen(addr.ip());
                chosen.map_err(|source| ServerError::Provider { addr, source })
            }
        }
    }

    /// Opens all listeners.
    fn open(&self, running: &mut Running, door: &Arc<Door>) -> Result<(), ServerError> {
        let failed = |addr, what| move |source| ServerError::Listen { addr, what, source };
        for addr in &self.config.listen_tcp {
            let listener = bind(*addr).map_err(failed(*addr, "TCP"))?;
            running.tcp.push(listener.local_addr().map_err(failed(*addr, "TCP"))?);
            running.spawn("accept TCP", accept_tcp(listener, Arc::clone(door), self.stopped.clone()));
        }
        for addr in &self.config.listen_rdma {
            let chosen = self.provider_of(*addr)?;
            let listener =
                chosen.provider.listen(Arc::clone(&self.rt), *addr).map_err(failed(*addr, "RDMA"))?;
            running.rdma.push(listener.local_addr());
            tracing::info!(address = %listener.local_addr(), provider = chosen.provider.name(), why = chosen.why, "RDMA");
            running.spawn("accept RDMA", accept_rdma(listener, Arc::clone(door), self.stopped.clone()));
        }
        Ok(())
    }

    /// Returns the memory of loads that have ended to the system, until the runtime is shut down.
    fn trim_memory(&self, arena: &Arena) {
        let (rt, arena) = (Arc::clone(&self.rt), arena.clone());
        let task = async move {
            loop {
                rt.sleep(TRIM_INTERVAL).await;
                arena.trim();
            }
        };
        self.rt.spawn("trim memory", Box::pin(task));
    }

    fn announce(&self, running: &Running) {
        running.announce(&self.config.exports);
        design::announce(self.config.design, &self.config.exposure, &running.rdma);
        tracing::info!(tcp = ?running.tcp, rdma = ?running.rdma, shards = running.threads.len(), "serving");
    }
}

/// A listening socket with its address free for reuse at once after a restart.
fn bind(addr: SocketAddr) -> std::io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    millrace_runtime::tokio_rt::prefer_loopback_congestion_control(&socket, addr);
    socket.bind(&addr.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// A running server. Dropping it ends it at once, without waiting for calls in progress; [`Self::stop`] ends it in
/// order.
pub struct Running {
    rdma: Vec<SocketAddr>,
    tcp: Vec<SocketAddr>,
    shared: Arc<Shared>,
    /// Opens the exports that a reload adds. In a mutex because an opener is `Send` only; a reload has `&mut self`.
    open: Mutex<Opener>,
    rt: RuntimeRef,
    gauges: Arc<Gauges>,
    stop: watch::Sender<StopSignal>,
    /// Cloned by each task of the control thread; the channel is closed when the last of them has ended.
    alive: Option<mpsc::SyncSender<()>>,
    all_gone: Mutex<mpsc::Receiver<()>>,
    threads: Vec<JoinHandle<()>>,
    control: Option<tokio::runtime::Runtime>,
}

impl Running {
    /// The first address for RDMA, with its real port.
    pub fn rdma_addr(&self) -> Option<SocketAddr> {
        self.rdma.first().copied()
    }

    /// The first address for TCP, with its real port.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp.first().copied()
    }

    /// All addresses for RDMA.
    pub fn rdma_addrs(&self) -> &[SocketAddr] {
        &self.rdma
    }

    /// All addresses for TCP.
    pub fn tcp_addrs(&self) -> &[SocketAddr] {
        &self.tcp
    }

    /// Runs `task` on the control thread of the server, beside its listeners. [`Self::stop`] and drop wait for its end:
    /// it must end soon after [`Self::stopping`] has completed. It must not block.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let alive = self.alive.clone();
        let whole = async move {
            task.await;
            drop(alive); // All that the task owned, such as a listener, is closed by now.
        };
        self.rt.spawn(name, Box::pin(whole));
    }

    /// Completes when the server begins to stop.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        stop_requested(self.stop.subscribe())
    }

    /// The runtime of the control thread, for tasks that [`Self::spawn`] runs there.
    pub fn runtime(&self) -> &RuntimeRef {
        &self.rt
    }

    /// Says in the log what is exported, and warns of an export that every machine may change.
    fn announce<'e>(&self, exports: impl IntoIterator<Item = &'e ExportConfig>) {
        let loopback = self.tcp.iter().chain(&self.rdma).all(|a| a.ip().to_canonical().is_loopback());
        for e in exports {
            tracing::info!(export = e.name, backend = %e.backend, read_only = e.read_only, squash = ?e.squash, "exported");
            if !loopback && e.clients.is_empty() && !e.read_only {
                let whom = match e.squash {
                    Squash::None => "any user, root included",
                    Squash::Root => "any user but root",
                    Squash::All => "the anonymous user",
                };
                tracing::warn!(
                    export = e.name,
                    "every machine that reaches this server may change this export as {whom}; name the networks that may \
                     use it (clients), or make it read-only"
                );
            }
        }
    }

    /// Makes the exports those of `config`, without dropping a connection: new ones are opened, those that are gone
    /// leave stale handles, and those that stay (same name and directory) get their new access rules, also for files
    /// that are open. Nothing else of `config` is applied; what differs is named in [`Reloaded::kept`]. The function
    /// that [`Server::start_with`] was given opens the new ones.
    ///
    /// # Errors
    /// [`ServerError`]; then nothing has changed.
    pub fn reload(&mut self, config: &Config) -> Result<Reloaded, ServerError> {
        config.check_service()?;
        let _guard = self.control.as_ref().map(|c| c.enter());
        let done = reload::reload(&self.shared, &self.rt, config, self.open.get_mut())?;
        let fresh = |e: &&ExportConfig| done.added.contains(&e.name) || done.changed.contains(&e.name);
        self.announce(self.shared.exports.load().iter().map(|e| e.policy()).filter(fresh));
        Ok(done)
    }

    /// What the server has done so far.
    pub fn stats(&self) -> Stats {
        self.gauges.stats()
    }

    /// A reader of [`Self::stats`] for tasks and threads that outlive this borrow.
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader(Arc::clone(&self.gauges))
    }

    /// Ends the server in order: no new connections or calls; calls in progress are finished and answered for at most
    /// `grace`; then everything is closed. When it completes all addresses are free again. Gives the final counts.
    pub async fn stop(self, grace: Duration) -> Stats {
        let (tx, rx) = oneshot::channel();
        let gauges = Arc::clone(&self.gauges);
        // Threads are joined, which blocks; whoever waits here may be an executor's only thread.
        let waiter = std::thread::Builder::new().name("millrace-stop".into());
        let spawned = waiter.spawn(move || {
            let stats = self.stop_blocking(grace);
            drop(tx.send(stats));
        });
        match spawned {
            Ok(_) => rx.await.unwrap_or_else(|_| gauges.stats()),
            Err(_) => gauges.stats(), // No thread to be had: `self` was dropped, which ended the server.
        }
    }

    /// As [`Self::stop`], for callers without an executor.
    pub fn stop_blocking(mut self, grace: Duration) -> Stats {
        self.end(grace);
        self.stats()
    }

    fn end(&mut self, grace: Duration) {
        self.stop.send_replace(Some(grace));
        for t in self.threads.drain(..) {
            if t.join().is_err() {
                tracing::error!("a server thread panicked");
            }
        }
        if let Some(control) = self.control.take() {
            self.alive = None;
            // An error says that the last listener is closed and the last task has ended.
            while self.all_gone.lock().recv().is_ok() {}
            control.shutdown_background();
            let stats = self.gauges.stats();
            tracing::info!(calls = stats.total_calls(), "stopped");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}
