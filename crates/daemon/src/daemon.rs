//! A running daemon.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use millrace_server::{Reloaded, Running, Server, Stats};

use crate::{
    Config, DaemonError,
    access::Access,
    control_group, endpoint,
    observer::Observer,
    renewal::{self, Renewal},
    rpcbind,
};

/// A running server with its metrics endpoint and its registration with rpcbind. Dropping it stops it
/// immediately, without waiting for calls in progress; [`Self::stop`] stops it gracefully.
pub struct Daemon {
    server: Running,
    config: Config,
    metrics: Option<SocketAddr>,
    /// Of the metrics endpoint; a reload replaces it.
    access: Arc<ArcSwap<Access>>,
}

impl Daemon {
    /// Starts the server and the additional services of `config`. All addresses answer when this function
    /// returns.
    ///
    /// # Errors
    /// [`DaemonError`]; no task is left running.
    pub fn start(config: Config) -> Result<Self, DaemonError> {
        Self::start_on(config, Vec::new())
    }

    /// As [`Self::start`], on listening sockets that the caller has opened, as with [`Server::start_on`]. The metrics
    /// endpoint uses the one with its address.
    ///
    /// # Errors
    /// [`DaemonError`]; no task is left running.
    pub fn start_on(config: Config, mut sockets: Vec<TcpListener>) -> Result<Self, DaemonError> {
        let of_metrics =
            sockets.iter().position(|s| s.local_addr().ok() == config.metrics && config.metrics.is_some());
        let metrics_socket = of_metrics.map(|index| sockets.swap_remove(index));
        let access = Arc::new(ArcSwap::from_pointee(Access::load(&config.metrics_access)?));
        let server = Server::start_on(config.server.clone(), sockets)?;
        control_group::warn_of_limit(&config.server);
        let mut daemon = Self { server, metrics: None, config, access };
        let server = &daemon.server;
        if let Some(addr) = daemon.config.metrics {
            let failed = |source| DaemonError::Listen { addr, source };
            let given = metrics_socket.map(|socket| socket.set_nonblocking(true).map(|()| socket));
            let listener = given.unwrap_or_else(|| endpoint::bind(addr)).map_err(failed)?;
            daemon.metrics = Some(listener.local_addr().map_err(failed)?);
            let observer = Arc::new(Observer::new(server));
            let (recorder, stopping) = (Arc::clone(&observer), server.stopping());
            server.spawn("samples", async move { recorder.record(stopping).await });
            server.spawn(
                "metrics",
                endpoint::serve(listener, observer, Arc::clone(&daemon.access), server.stopping()),
            );
        }
        let renewal = Renewal::new(Arc::clone(server.tls()), Arc::clone(&daemon.access));
        server
            .spawn("renewal", renewal.run(Arc::clone(server.runtime()), renewal::PERIOD, server.stopping()));
        if daemon.config.rpcbind {
            let bindings = rpcbind::bindings(server.tcp_addrs(), server.rdma_addrs());
            let rt = Arc::clone(server.runtime());
            server.spawn("rpcbind", rpcbind::register(rt, bindings, server.stopping()));
        }
        Ok(daemon)
    }

    /// The server.
    pub fn server(&self) -> &Running {
        &self.server
    }

    /// Address of the metrics endpoint, with its actual port.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Replaces the exports and targets by those of `config`, as [`Running::reload`], and the certificate and token of the
    /// metrics endpoint. [`Reloaded::unapplied`] lists the
    /// changed settings that take effect after a restart.
    ///
    /// # Errors
    /// [`DaemonError`]; nothing is changed then.
    pub fn reload(&mut self, config: &Config) -> Result<Reloaded, DaemonError> {
        let access = Access::load(&config.metrics_access)?;
        let mut done = self.server.reload(&config.server)?;
        self.access.store(Arc::new(access));
        control_group::warn_of_limit(&config.server);
        // Lists every field, so that a new field must be added here.
        let Config { server: _, metrics, metrics_access: _, control, rpcbind, warnings: _ } = &self.config;
        let differs = [
            ("metrics", *metrics != config.metrics),
            ("control", *control != config.control),
            ("rpcbind", *rpcbind != config.rpcbind),
        ];
        done.unapplied.extend(differs.into_iter().filter(|(_, d)| *d).map(|(key, _)| key.to_owned()));
        Ok(done)
    }

    /// Stops the daemon gracefully, as [`Running::stop`]. All addresses are free afterwards.
    pub async fn stop(self, grace: Duration) -> Stats {
        self.server.stop(grace).await
    }
}
