//! How connections are made.

use std::{
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
};

use buffer::Arena;
use futures::channel::oneshot;
use oncrpc::Transport;
use runtime::{BoxFuture, RuntimeRef};

use crate::{ConnectionStats, Error, Options, Proto, Url};

/// A connection to a server.
#[derive(Clone)]
pub struct Connection {
    /// Carries the calls.
    pub transport: Arc<dyn Transport>,
    /// Tells how it fares.
    pub stats: Arc<dyn Fn() -> ConnectionStats + Send + Sync>,
}

impl Connection {
    /// A connection to `peer` that tells nothing more.
    pub fn new(transport: Arc<dyn Transport>, peer: impl Into<String>) -> Self {
        let peer = peer.into();
        Self { transport, stats: Arc::new(move || ConnectionStats::new(peer.clone())) }
    }
}

/// Makes a client's connections. The client brings its own for RDMA and TCP; another one may connect in-process.
pub trait Connector: Send + Sync + 'static {
    /// The server, for messages.
    fn server(&self) -> String;

    /// Makes a connection for NFS (on which MOUNT is tried first). The future ends within a bounded time.
    fn connect(&self) -> BoxFuture<'static, Result<Connection, Error>>;

    /// Makes a connection to the MOUNT program, for servers that do not offer it on the NFS connection.
    fn connect_mount(&self) -> BoxFuture<'static, Result<Connection, Error>>;
}

/// Connects to the server of a URL.
pub(crate) struct UrlConnector {
    pub(crate) rt: RuntimeRef,
    pub(crate) arena: Arena,
    pub(crate) url: Url,
    /// With what the URL states.
    pub(crate) options: Options,
}

impl UrlConnector {
    fn port(&self) -> u16 {
        self.url.port.unwrap_or_else(|| self.options.proto.default_port())
    }

    fn to(&self, port: u16, proto: Proto) -> Target {
        Target {
            rt: Arc::clone(&self.rt),
            arena: self.arena.clone(),
            host: self.url.host.clone(),
            port,
            proto,
            options: self.options.clone(),
        }
    }
}

impl Connector for UrlConnector {
    fn server(&self) -> String {
        authority(&self.url.host, self.port())
    }

    fn connect(&self) -> BoxFuture<'static, Result<Connection, Error>> {
        Box::pin(self.to(self.port(), self.options.proto).connect())
    }

    fn connect_mount(&self) -> BoxFuture<'static, Result<Connection, Error>> {
        if let Some(port) = self.url.mountport {
            return Box::pin(self.to(port, Proto::Tcp).connect());
        }
        let portmapper = self.to(crate::rpcbind::PORT, Proto::Tcp);
        let fallback = self.to(nfs::v3::PORT_TCP, Proto::Tcp);
        Box::pin(async move {
            let port = crate::rpcbind::mount_port(&portmapper).await;
            tracing::debug!(?port, "asked the port mapper for the MOUNT port");
            match port {
                Some(port) => Target { port, ..fallback }.connect().await,
                None => fallback.connect().await,
            }
        })
    }
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Where and how to connect.
pub(crate) struct Target {
    pub(crate) rt: RuntimeRef,
    pub(crate) arena: Arena,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) proto: Proto,
    pub(crate) options: Options,
}

impl Target {
    /// Tries the host's addresses in order, within the connect timeout in all.
    pub(crate) async fn connect(self) -> Result<Connection, Error> {
        let server = authority(&self.host, self.port);
        let (rt, proto, limit) = (Arc::clone(&self.rt), self.proto, self.options.connect_timeout);
        let failed = |reason| Error::Connect { server: server.clone(), proto, reason };
        // On the runtime's own threads: there its reactor is at hand, whoever polls the caller.
        let (done, outcome) = oneshot::channel();
        let task = async move {
            drop(done.send(self.try_addresses().await));
        };
        rt.spawn("client-connect", Box::pin(task));
        match runtime::timeout(&*rt, limit, outcome).await {
            Some(Ok(Ok(connection))) => Ok(connection),
            Some(Ok(Err(TryError::Final(e)))) => Err(e),
            Some(Ok(Err(TryError::Refused(reason)))) => Err(failed(reason)),
            Some(Err(_)) => Err(Error::Local("the runtime ended while connecting".into())),
            None => Err(failed(format!("no answer within {limit:?}"))),
        }
    }

    async fn try_addresses(self) -> Result<Connection, TryError> {
        let addrs = resolve_host(&self.rt, &self.host, self.port).await.map_err(TryError::Final)?;
        let mut reasons = Vec::new();
        for addr in addrs {
            match self.connect_to(addr).await {
                Ok(connection) => return Ok(connection),
                Err(e) => reasons.push(format!("{addr}: {e}")),
            }
        }
        Err(TryError::Refused(reasons.join("; ")))
    }

    async fn connect_to(&self, addr: SocketAddr) -> Result<Connection, String> {
        match self.proto {
            Proto::Tcp => self.connect_tcp(addr).await,
            Proto::Rdma => self.connect_rdma(addr).await,
        }
    }

    async fn connect_tcp(&self, addr: SocketAddr) -> Result<Connection, String> {
        let _ = addr;
        Err("the TCP transport is not built in yet".into())
    }

    async fn connect_rdma(&self, addr: SocketAddr) -> Result<Connection, String> {
        let _ = addr;
        Err("the RDMA transport is not built in yet".into())
    }
}

enum TryError {
    Final(Error),
    Refused(String),
}

/// The addresses of `host`, in the system's order.
async fn resolve_host(rt: &RuntimeRef, host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (done, found) = oneshot::channel();
    let name = host.to_owned();
    rt.spawn_blocking(Box::new(move || {
        let addrs = (name.as_str(), port).to_socket_addrs().map(|a| a.collect::<Vec<_>>());
        drop(done.send(addrs));
    }));
    let failed = |reason: String| Error::Resolve { host: host.to_owned(), reason };
    match found.await {
        Ok(Ok(addrs)) if !addrs.is_empty() => Ok(addrs),
        Ok(Ok(_)) => Err(failed("the name has no address".into())),
        Ok(Err(e)) => Err(failed(e.to_string())),
        Err(_) => Err(failed("the runtime ended".into())),
    }
}
