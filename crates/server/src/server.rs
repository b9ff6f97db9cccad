//! Start and stop of a server.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use futures::channel::oneshot;
use millrace_buffer::{Arena, TRIM_INTERVAL};
use millrace_rdma::{Listener, Provider};
use millrace_rdma_providers::{Chosen, IWARP, listen_iwarp};
use millrace_runtime::{RuntimeExt, RuntimeRef, sync::Mutex, tokio_rt::TokioRuntime};
use millrace_tls::TlsAcceptor;
use millrace_vfs::FileSystemRef;
use tokio::sync::watch;

use crate::{
    Config, ExportConfig, Reloaded, ServerError, Stats, StatsReader, TargetSettings, announce,
    backend::{self, Opener, Resources},
    listen::{Acceptor, Protocol, accept_rdma, accept_tcp, bind},
    nfs4::administration::Nfs4State,
    reload,
    shard::{Shard, StopSignal, stop_requested},
    shared::Shared,
    stats_sources::StatsSources,
};

/// Starts servers.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Starts a server, which answers on all its addresses when this function returns.
    ///
    /// # Errors
    /// [`ServerError`]; no task is left running.
    pub fn start(config: Config) -> Result<Running, ServerError> {
        Self::launch(config, None, Vec::new(), Box::new(backend::open))
    }

    /// As [`Self::start`], on listening sockets that the caller has opened (socket activation): one of `sockets` whose
    /// local address is an address of the configuration is used instead of a new socket. Sockets whose address is not
    /// in the configuration are closed.
    ///
    /// # Errors
    /// [`ServerError`]; no task is left running. A socket for RDMA or iSER can be used by the provider `iwarp` only.
    pub fn start_on(config: Config, sockets: Vec<TcpListener>) -> Result<Running, ServerError> {
        Self::launch(config, None, sockets, Box::new(backend::open))
    }

    /// As [`Self::start`], with an RDMA provider of the caller instead of the configured one.
    ///
    /// # Errors
    /// [`ServerError`]; no task is left running.
    pub fn start_over(config: Config, provider: Arc<dyn Provider>) -> Result<Running, ServerError> {
        Self::launch(config, Some(provider), Vec::new(), Box::new(backend::open))
    }

    /// As [`Self::start`], with file systems of the caller: `open` opens each export of the configuration,
    /// and those that [`Running::reload`] adds. For exports that need no file system of the caller, `open` may call
    /// [`backend::open`].
    ///
    /// # Errors
    /// [`ServerError`]; no task is left running.
    pub fn start_with(
        config: Config,
        open: impl FnMut(&ExportConfig, &Resources<'_>) -> Result<FileSystemRef, String> + Send + 'static,
    ) -> Result<Running, ServerError> {
        Self::launch(config, None, Vec::new(), Box::new(open))
    }

    fn launch(
        config: Config,
        provider: Option<Arc<dyn Provider>>,
        sockets: Vec<TcpListener>,
        open: Opener,
    ) -> Result<Running, ServerError> {
        config.check()?;
        // The control runtime accepts connections and runs tasks of the caller and blocking work of file
        // systems. Data is processed on the shards.
        let control = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("millrace-control")
            .enable_all()
            .build()
            .map_err(ServerError::Thread)?;
        match Self::launch_with(&control, config, provider, sockets, open) {
            Ok(mut running) => {
                running.control = Some(control);
                Ok(running)
            }
            Err(e) => {
                control.shutdown_background(); // Dropping it would wait, which an executor of the caller forbids.
                Err(e)
            }
        }
    }

    /// Starts a server whose control runtime is `control`.
    fn launch_with(
        control: &tokio::runtime::Runtime,
        config: Config,
        provider: Option<Arc<dyn Provider>>,
        sockets: Vec<TcpListener>,
        mut open: Opener,
    ) -> Result<Running, ServerError> {
        let (stop, stopped) = watch::channel(None);
        let rt = TokioRuntime::from_handle(control.handle().clone());
        let mut startup = Startup { config, provider, sockets, stopped, rt };
        let guard = control.enter();
        let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shards = startup.config.shards.unwrap_or(available);
        let shared = Shared::new(&startup.config, &startup.rt, shards, descriptors(), &mut open)?;
        let shards = startup.shards(&shared)?;
        let (handles, threads): (Vec<_>, Vec<_>) = shards.into_iter().map(|s| (s.handle, s.thread)).unzip();
        let stats_sources = Arc::new(StatsSources::new(&handles, &shared, &startup.rt));
        let (task_guard, tasks_ended) = mpsc::sync_channel(1);
        let mut running = Running {
            rdma: Vec::new(),
            tcp: Vec::new(),
            iscsi: None,
            iser: None,
            shared,
            open: Mutex::new(open),
            rt: Arc::clone(&startup.rt),
            stats_sources,
            stop,
            task_guard: Some(task_guard),
            tasks_ended: Mutex::new(tasks_ended),
            threads, // Dropping `running` ends all threads.
            control: None,
        };
        let turned_away = running.stats_sources.turned_away();
        let (rt, budget) = (Arc::clone(&startup.rt), running.shared.budget.clone());
        let acceptor = Arc::new(Acceptor::new(handles, budget, turned_away, rt));
        startup.open(&mut running, &acceptor)?;
        drop(guard);
        startup.trim_memory(&running.shared.arena);
        let clients = Arc::clone(&running.shared.nfs4_clients);
        let maintain = clients.maintain(Arc::clone(&running.rt), stop_requested(startup.stopped.clone()));
        running.spawn("expire NFSv4 clients", maintain);
        startup.announce(&running);
        Ok(running)
    }
}

/// The limit of open files of this process; `None`: unlimited.
fn descriptors() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

struct Startup {
    config: Config,
    /// Overrides the configured provider.
    provider: Option<Arc<dyn Provider>>,
    /// Listening sockets of the caller.
    sockets: Vec<TcpListener>,
    stopped: watch::Receiver<StopSignal>,
    rt: RuntimeRef,
}

impl Startup {
    fn shards(&self, shared: &Arc<Shared>) -> Result<Vec<Shard>, ServerError> {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let count = shared.shards;
        let pin = count > 1 && count <= cores.len() && !self.config.float_shards;
        (0..count)
            .map(|i| Shard::start(i, shared, &self.stopped, cores.get(i).filter(|_| pin).copied()))
            .collect::<Result<_, _>>()
            .map_err(ServerError::Thread)
    }

    /// The RDMA provider for listening on `addr`.
    fn provider_of(&self, addr: SocketAddr) -> Result<Chosen, ServerError> {
        match &self.provider {
            Some(p) => Ok(Chosen { provider: Arc::clone(p), why: "as the program gave it".into() }),
            None => {
                let chosen = self.config.provider.to_listen(addr.ip());
                chosen.map_err(|source| ServerError::Provider { addr, source })
            }
        }
    }

    /// The caller's listening socket with the address `addr`, if there is one.
    fn given(&mut self, addr: SocketAddr) -> Option<io::Result<TcpListener>> {
        let index = self.sockets.iter().position(|s| s.local_addr().is_ok_and(|local| local == addr))?;
        let socket = self.sockets.swap_remove(index);
        Some(socket.set_nonblocking(true).map(|()| socket))
    }

    /// Opens a listening TCP socket for `addr`. The one for all IPv6 addresses also accepts IPv4, as that of Linux's server,
    /// unless the configuration has an IPv4 address with the same port.
    fn bind(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        let Config { listen_tcp, listen_rdma, listen_iscsi, listen_iser, .. } = &self.config;
        let others = listen_tcp.iter().chain(listen_rdma).chain(listen_iscsi).chain(listen_iser);
        let mut others = others.filter(|other| other.is_ipv4() && other.port() == addr.port());
        let is_shared = addr.port() != 0 && others.next().is_some();
        bind(addr, !addr.ip().is_unspecified() || is_shared)
    }

    /// A listening TCP socket for `what`.
    fn listen_tcp(&mut self, addr: SocketAddr, what: &'static str) -> Result<TcpListener, ServerError> {
        let socket = self.given(addr).unwrap_or_else(|| self.bind(addr));
        socket.map_err(|source| ServerError::Listen { addr, what, source })
    }

    /// Opens all listeners.
    fn open(&mut self, running: &mut Running, acceptor: &Arc<Acceptor>) -> Result<(), ServerError> {
        let failed = |addr, what| move |source| ServerError::Listen { addr, what, source };
        let stopped = self.stopped.clone();
        for addr in self.config.listen_tcp.clone() {
            let listener = self.listen_tcp(addr, "TCP")?;
            let address = listener.local_addr().map_err(failed(addr, "TCP"))?;
            tracing::info!(%address, "listening for TCP");
            running.tcp.push(address);
            let accept = accept_tcp(listener, Protocol::Nfs, Arc::clone(acceptor), stopped.clone());
            running.spawn("accept TCP", accept);
        }
        let accept_rdma =
            |listener, protocol| accept_rdma(listener, protocol, Arc::clone(acceptor), stopped.clone());
        for addr in self.config.listen_rdma.clone() {
            let listener = self.listen(addr, "RDMA")?;
            running.rdma.push(listener.local_addr());
            running.spawn("accept RDMA", accept_rdma(listener, Protocol::Nfs));
        }
        let both = self.is_shared()?;
        if let Some(addr) = self.config.listen_iscsi {
            let listener = self.listen_tcp(addr, "iSCSI")?;
            let address = listener.local_addr().map_err(failed(addr, "iSCSI"))?;
            tracing::info!(%address, "listening for {}", if both { "iSCSI and iSER" } else { "iSCSI" });
            running.iscsi = Some(address);
            let protocol = if both { Protocol::IscsiOrIser } else { Protocol::Iscsi };
            let accept = accept_tcp(listener, protocol, Arc::clone(acceptor), stopped.clone());
            running.spawn("accept iSCSI", accept);
        }
        match self.config.listen_iser {
            Some(_) if both => running.iser = running.iscsi,
            Some(addr) => {
                let listener = self.listen(addr, "iSER")?;
                running.iser = Some(listener.local_addr());
                running.spawn("accept iSER", accept_rdma(listener, Protocol::Iscsi));
            }
            None => {}
        }
        Ok(())
    }

    /// Listens on `addr` with its RDMA provider.
    fn listen(&mut self, addr: SocketAddr, what: &'static str) -> Result<Box<dyn Listener>, ServerError> {
        let Chosen { provider, why } = self.provider_of(addr)?;
        let rt = Arc::clone(&self.rt);
        let is_own_iwarp = self.provider.is_none() && provider.name() == IWARP;
        let socket = self.given(addr).or_else(|| is_own_iwarp.then(|| self.bind(addr)));
        let listener = match socket {
            None => provider.listen(rt, addr),
            Some(socket) if provider.name() == IWARP => socket.and_then(|socket| listen_iwarp(rt, socket)),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "the provider {} cannot listen on a socket that another program has opened: pass no socket for this \
                 address, or select the provider {IWARP}",
                    provider.name()
                ),
            )),
        };
        let listener = listener.map_err(|source| ServerError::Listen { addr, what, source })?;
        tracing::info!(address = %listener.local_addr(), provider = provider.name(), why, "listening for {what}");
        Ok(listener)
    }

    /// Whether one TCP listener serves iSCSI and iSER.
    fn is_shared(&self) -> Result<bool, ServerError> {
        match self.config.listen_iser {
            Some(addr) if self.config.listen_iscsi == Some(addr) => {
                Ok(self.provider_of(addr)?.provider.name() == IWARP)
            }
            _ => Ok(false),
        }
    }

    /// Periodically returns unused memory to the system, until the runtime is shut down.
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
        running.announce(&self.config.exports, &self.config.targets);
        tracing::info!(shards = running.threads.len(), "serving");
    }
}

/// A running server. Dropping it stops it immediately, without waiting for calls in progress; [`Self::stop`]
/// stops it gracefully.
pub struct Running {
    rdma: Vec<SocketAddr>,
    tcp: Vec<SocketAddr>,
    iscsi: Option<SocketAddr>,
    iser: Option<SocketAddr>,
    shared: Arc<Shared>,
    /// Opens the exports that a reload adds. In a mutex because the function is `Send` but not `Sync`; a
    /// reload has `&mut self`.
    open: Mutex<Opener>,
    rt: RuntimeRef,
    stats_sources: Arc<StatsSources>,
    stop: watch::Sender<StopSignal>,
    /// Cloned by each task of the control thread; the channel closes when the last task has ended.
    task_guard: Option<mpsc::SyncSender<()>>,
    tasks_ended: Mutex<mpsc::Receiver<()>>,
    threads: Vec<JoinHandle<()>>,
    control: Option<tokio::runtime::Runtime>,
}

impl Running {
    /// The first RDMA address, with its actual port.
    pub fn rdma_addr(&self) -> Option<SocketAddr> {
        self.rdma.first().copied()
    }

    /// The first TCP address, with its actual port.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp.first().copied()
    }

    /// All RDMA addresses.
    pub fn rdma_addrs(&self) -> &[SocketAddr] {
        &self.rdma
    }

    /// All TCP addresses.
    pub fn tcp_addrs(&self) -> &[SocketAddr] {
        &self.tcp
    }

    /// The address for iSCSI over TCP, with its actual port.
    pub fn iscsi_addr(&self) -> Option<SocketAddr> {
        self.iscsi
    }

    /// The address for iSCSI over RDMA (iSER), with its actual port.
    pub fn iser_addr(&self) -> Option<SocketAddr> {
        self.iser
    }

    /// The present targets.
    pub fn targets(&self) -> Vec<TargetSettings> {
        self.shared.targets.settings()
    }

    /// Spawns `task` on the control thread of the server. [`Self::stop`] and drop wait for its end: it must
    /// end soon after [`Self::stopping`] has completed, and must not block.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let task_guard = self.task_guard.clone();
        let whole = async move {
            task.await;
            drop(task_guard); // The task has dropped its resources, such as a listener.
        };
        self.rt.spawn(name, Box::pin(whole));
    }

    /// Completes when the server starts to stop.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        stop_requested(self.stop.subscribe())
    }

    /// The runtime of the control thread, for tasks of [`Self::spawn`].
    pub fn runtime(&self) -> &RuntimeRef {
        &self.rt
    }

    /// Logs the exports and targets.
    fn announce<'c>(
        &self,
        exports: impl IntoIterator<Item = &'c ExportConfig>,
        targets: impl IntoIterator<Item = &'c TargetSettings>,
    ) {
        let nfs = self.tcp.iter().chain(&self.rdma);
        announce::exports(exports, announce::reached_by_this_host_only(nfs));
        let block = self.iscsi.iter().chain(&self.iser);
        announce::targets(targets, announce::reached_by_this_host_only(block));
    }

    /// Replaces the exports and targets by those of `config` without closing connections. New exports are opened with
    /// the function of [`Server::start_with`]; handles of removed exports become stale; retained exports (same
    /// name and directory) get their new access rules, which also apply to open files. The initiators of targets that
    /// are removed or have other disks are requested to log out; the capacity of retained disks follows the size of
    /// their files. Other settings are not applied; [`Reloaded::unapplied`] lists those that differ.
    ///
    /// # Errors
    /// [`ServerError`]; nothing is changed then.
    pub fn reload(&mut self, config: &Config) -> Result<Reloaded, ServerError> {
        config.check_service()?;
        let _guard = self.control.as_ref().map(|c| c.enter());
        let done = reload::reload(&self.shared, &self.rt, config, self.open.get_mut())?;
        let is_updated = |e: &&ExportConfig| done.added.contains(&e.name) || done.changed.contains(&e.name);
        let is_updated_target = |t: &&TargetSettings| {
            let name = format!("target {}", t.name);
            done.added.contains(&name) || done.changed.contains(&name)
        };
        let exports = self.shared.exports.load();
        let exports = exports.iter().map(|e| e.policy()).filter(is_updated);
        self.announce(exports, config.targets.iter().filter(is_updated_target));
        Ok(done)
    }

    /// The state of NFSv4 clients, to list and to revoke.
    pub fn nfs4_state(&self) -> Nfs4State {
        Nfs4State::new(&self.shared.nfs4_clients, &self.shared.exports, &self.rt)
    }

    /// Where the connections are encrypted, to renew the certificate without a reload.
    pub fn tls(&self) -> &Arc<TlsAcceptor> {
        &self.shared.tls
    }

    /// A snapshot of the statistics since the start.
    pub fn stats(&self) -> Stats {
        self.stats_sources.stats()
    }

    /// A reader of [`Self::stats`] for tasks and threads that outlive this borrow.
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader(Arc::clone(&self.stats_sources))
    }

    /// Stops the server gracefully: it accepts no further connections or calls; calls in progress are
    /// completed and answered within `grace`; then all connections are closed. All addresses are free when it
    /// completes. Returns the final statistics.
    pub async fn stop(self, grace: Duration) -> Stats {
        let (tx, rx) = oneshot::channel();
        let stats_sources = Arc::clone(&self.stats_sources);
        // Joining threads blocks, and the caller's thread may be the only one of an executor.
        let waiter = std::thread::Builder::new().name("millrace-stop".into());
        let spawned = waiter.spawn(move || {
            let stats = self.stop_blocking(grace);
            drop(tx.send(stats));
        });
        match spawned {
            Ok(_) => rx.await.unwrap_or_else(|_| stats_sources.stats()),
            Err(_) => stats_sources.stats(), // The thread could not start: `self` was dropped, which stopped the server.
        }
    }

    /// As [`Self::stop`], for callers without an executor.
    pub fn stop_blocking(mut self, grace: Duration) -> Stats {
        self.end(grace);
        self.shared.nfs4_clients.end(&self.rt);
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
            self.task_guard = None;
            // An error means that the last listener is closed and the last task has ended.
            while self.tasks_ended.lock().recv().is_ok() {}
            control.shutdown_background();
            let stats = self.stats_sources.stats();
            tracing::info!(calls = stats.total_calls(), "stopped");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}
