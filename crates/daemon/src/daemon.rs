//! A running daemon.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use millrace_server::{Reloaded, Running, Server, Stats};

use crate::{Config, DaemonError, endpoint, rpcbind};

/// A running server with its metrics endpoint and its registration with rpcbind. Dropping it ends it at once, without
/// waiting for calls in progress; [`Self::stop`] ends it in order.
pub struct Daemon {
    server: Running,
    config: Config,
    metrics: Option<SocketAddr>,
}

impl Daemon {
    /// Starts the server, and then what `config` says beside it. When this returns it answers on all its addresses.
    ///
    /// # Errors
    /// [`DaemonError`]; nothing is left running.
    pub fn start(config: Config) -> Result<Self, DaemonError> {
        let server = Server::start(config.server.clone())?;
        let mut daemon = Self { server, metrics: None, config };
        let server = &daemon.server;
        if let Some(addr) = daemon.config.metrics {
            let failed = |source| DaemonError::Listen { addr, source };
            let listener = endpoint::bind(addr).map_err(failed)?;
            daemon.metrics = Some(listener.local_addr().map_err(failed)?);
            server.spawn("metrics", endpoint::serve(listener, server.stats_reader(), server.stopping()));
        }
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

    /// The address of the metrics endpoint, with its real port.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Makes the exports those of `config`, as [`Running::reload`] does. Settings that differ and wait for a restart are
    /// named in [`Reloaded::kept`].
    ///
    /// # Errors
    /// [`DaemonError`]; then nothing has changed.
    pub fn reload(&mut self, config: &Config) -> Result<Reloaded, DaemonError> {
        let mut done = self.server.reload(&config.server)?;
        // Every field is named, so that a new one is not forgotten here.
        let Config { server: _, metrics, control, rpcbind, deprecated: _ } = &self.config;
        let differs = [
            ("metrics", *metrics != config.metrics),
            ("control", *control != config.control),
            ("rpcbind", *rpcbind != config.rpcbind),
        ];
        done.kept.extend(differs.into_iter().filter(|(_, d)| *d).map(|(key, _)| key.to_owned()));
        Ok(done)
    }

    /// Ends the daemon in order, as [`Running::stop`] ends its server: at the end all addresses are free again.
    pub async fn stop(self, grace: Duration) -> Stats {
        self.server.stop(grace).await
    }
}
