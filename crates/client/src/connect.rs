//! Connection setup: name resolution, choice of the transport, RDMA, TCP, and the port of MOUNT.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{
    channel::oneshot,
    future::{Either, select},
};
use millrace_buffer::Arena;
use millrace_oncrpc::{
    Transport,
    rpcbind::{self, NetId, Rpcbind},
    tcp::{TcpClientConfig, TcpTransport},
};
use millrace_rdma::{ConnectParams, ConnectionError, Provider, registration::Registration};
use millrace_rdma_providers::{IWARP, ProviderChoice, connect_iwarp};
use millrace_rpcrdma::{RequesterConfig, RequesterTransport};
use millrace_runtime::{BoxFuture, ByteStream, RuntimeRef, StreamProvider, resolve, tokio_rt::TcpByteStream};

use millrace_tls::ConfigError;

use crate::{ConnectionStats, Error, Options, Proto, Tls, TlsFailure, Url, Version, tls};

/// A connection to a server.
#[derive(Clone)]
pub struct Connection {
    /// The transport of the calls.
    pub transport: Arc<dyn Transport>,
    /// Returns the counters of the connection.
    pub stats: Arc<dyn Fn() -> ConnectionStats + Send + Sync>,
}

impl Connection {
    /// Returns a connection to `peer` whose counters have only the address.
    pub fn new(transport: Arc<dyn Transport>, peer: impl Into<String>) -> Self {
        let peer = peer.into();
        Self { transport, stats: Arc::new(move || ConnectionStats::new(peer.clone())) }
    }
}

/// Factory of a client's connections. The client has its own for RDMA and TCP; others may connect in-process.
pub trait Connector: Send + Sync + 'static {
    /// Name of the server in messages.
    fn server(&self) -> String;

    /// The host of the server, by which a service of Kerberos is named. By default that of [`Self::server`].
    fn host(&self) -> String {
        let server = self.server();
        let host = server.rsplit_once(':').map_or(&*server, |(host, _)| host);
        host.trim_matches(['[', ']']).to_owned()
    }

    /// Makes a connection for NFS, on which the client also tries MOUNT first. The future must complete
    /// within a bounded time.
    fn connect(&self) -> BoxFuture<'static, Result<Connection, Error>>;

    /// Makes a connection to the MOUNT program, for servers that do not offer it on the NFS connection.
    fn connect_mount(&self) -> BoxFuture<'static, Result<Connection, Error>>;
}

/// The transports and ports that a client tries for `url` in this order, one after the other, to take the first that
/// answers: the one that `url` or `options` state, or
/// - RDMA, if the route to the server begins at an RDMA device, then TCP;
/// - else TCP, then RDMA in software: without a device, RDMA costs processor time that TCP leaves to the network adapter;
/// - with TLS, TCP, then RDMA in software, where only Millrace has TLS;
/// - with a port in the URL other than that of NFS over TCP, RDMA first: only an RDMA listener answers its first message.
///
/// # Errors
/// [`Error::Resolve`]; [`Error::Url`] if the options of TLS contradict each other or the transport.
pub async fn transports(rt: RuntimeRef, url: &Url, options: &Options) -> Result<Vec<(Proto, u16)>, Error> {
    let options = options.clone().with_url(url);
    let proto = options.stated_proto();
    options
        .tls
        .check(proto == Some(Proto::Rdma) && options.provider == ProviderChoice::Verbs)
        .map_err(|reason| Error::Url { url: url.to_string(), reason })?;
    let port = |proto: Proto| (proto, url.port.unwrap_or(proto.default_port()));
    if let Some(proto) = proto {
        return Ok(vec![port(proto)]);
    }
    let rdma_first = match url.port {
        Some(port) => port != Proto::Tcp.default_port(),
        None if options.tls.is_used() => false,
        None => {
            let (host, limit) = (url.host.clone(), options.connect_timeout);
            let resolver = Arc::clone(&rt);
            let found = on_runtime(&rt, limit, async move { resolve_host(&resolver, &host, 0).await }).await;
            let addrs = found.unwrap_or_else(|| {
                let reason = format!("no answer within {limit:?}");
                Err(Error::Resolve { host: url.host.clone(), reason, source: None })
            })?;
            let chosen = addrs.first().and_then(|addr| ProviderChoice::Auto.to_connect(*addr).ok());
            chosen.is_some_and(|chosen| chosen.provider.name() != IWARP)
        }
    };
    let order = if rdma_first { [Proto::Rdma, Proto::Tcp] } else { [Proto::Tcp, Proto::Rdma] };
    Ok(order.map(port).into())
}

/// Connects to the server of a URL.
#[derive(Clone)]
pub(crate) struct UrlConnector {
    rt: RuntimeRef,
    arena: Arena,
    url: Url,
    /// Options, including those of the URL.
    options: Options,
    registration: Arc<Registration>,
    /// The transport and port of the first connection, which all later ones have: a session of NFSv4 and the sizes of its
    /// requests are those of one transport.
    chosen: Arc<OnceLock<(Proto, u16)>>,
    /// Held while a connection chooses; others wait for its choice.
    choice: Arc<futures::lock::Mutex<()>>,
}

impl UrlConnector {
    pub(crate) fn new(
        rt: RuntimeRef,
        arena: Arena,
        url: &Url,
        options: Options,
        registration: Arc<Registration>,
    ) -> Self {
        let (chosen, choice) = (Arc::default(), Arc::default());
        Self { rt, arena, url: url.clone(), options, registration, chosen, choice }
    }

    fn to(&self, port: u16, proto: Proto) -> Target {
        Target {
            rt: Arc::clone(&self.rt),
            arena: self.arena.clone(),
            host: self.url.host.clone(),
            port,
            proto,
            options: self.options.clone(),
            registration: Arc::clone(&self.registration),
        }
    }

    /// Connects over the first transport that answers.
    async fn connect_first(self) -> Result<Connection, Error> {
        let choice = self.choice.lock().await;
        if let Some((proto, port)) = self.chosen.get() {
            drop(choice);
            return self.to(*port, *proto).connect().await;
        }
        let tried = transports(Arc::clone(&self.rt), &self.url, &self.options).await?;
        let limit = self.options.connect_timeout / u32::try_from(tried.len()).unwrap_or(u32::MAX);
        let mut failures = Vec::new();
        for (proto, port) in tried {
            let mut target = self.to(port, proto);
            target.options.connect_timeout = limit;
            match target.connect().await {
                Ok(connection) => {
                    self.chosen.get_or_init(|| (proto, port));
                    tracing::info!(server = self.server(), %proto, "connected");
                    return Ok(connection);
                }
                Err(e @ Error::Connect { .. }) if !is_answer(&e) => failures.push(e),
                Err(e) => return Err(e),
            }
        }
        match <[Error; 1]>::try_from(failures) {
            Ok([only]) => Err(only),
            Err(failures) => Err(Error::NoTransport { server: self.server(), failures }),
        }
    }
}

/// Whether another transport must not hide the failure: the server has this one, or this host must be corrected (limit of
/// memory, permission, files of TLS).
fn is_answer(failure: &Error) -> bool {
    let Error::Connect { source: Some(cause), proto, .. } = failure else { return false };
    matches!(cause.downcast_ref(), Some(ConnectionError::Incompatible(_) | ConnectionError::Local(_)))
        || cause.is::<ConfigError>()
        || cause.downcast_ref::<TlsFailure>().is_some_and(|e| e.is_answer(*proto == Proto::Tcp))
}

impl Connector for UrlConnector {
    /// Without a port until the transport, and with it the port, is known.
    fn server(&self) -> String {
        let stated = self.options.stated_proto().map(Proto::default_port);
        let port = self.url.port.or(stated).or_else(|| self.chosen.get().map(|(_, port)| *port));
        port.map_or_else(|| self.url.host.clone(), |port| authority(&self.url.host, port))
    }

    fn host(&self) -> String {
        self.url.host.clone()
    }

    fn connect(&self) -> BoxFuture<'static, Result<Connection, Error>> {
        match self.chosen.get() {
            Some((proto, port)) => Box::pin(self.to(*port, *proto).connect()),
            None => Box::pin(self.clone().connect_first()),
        }
    }

    fn connect_mount(&self) -> BoxFuture<'static, Result<Connection, Error>> {
        // Linux serves MOUNT in the clear only. Without TLS for its files, the handle is of no use to others.
        let clear = |port| {
            let mut target = self.to(port, Proto::Tcp);
            target.options.tls = Tls::default();
            target
        };
        if let Some(port) = self.url.mountport {
            return Box::pin(clear(port).connect());
        }
        let rpcbind_target = clear(rpcbind::PORT);
        let fallback = clear(millrace_nfs::v3::PORT_TCP);
        Box::pin(async move {
            let port = rpcbind_target.query_mount_port().await;
            tracing::debug!(?port, "queried rpcbind for the MOUNT port");
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

/// A server's host and port, with the options of the connection.
struct Target {
    rt: RuntimeRef,
    arena: Arena,
    host: String,
    port: u16,
    proto: Proto,
    options: Options,
    registration: Arc<Registration>,
}

impl Target {
    /// Tries the host's addresses in order. The connect timeout limits the total time.
    async fn connect(self) -> Result<Connection, Error> {
        let server = authority(&self.host, self.port);
        let (rt, proto, limit) = (Arc::clone(&self.rt), self.proto, self.options.connect_timeout);
        let failed = |reason, source| Error::Connect { server: server.clone(), proto, reason, source };
        match on_runtime(&rt, limit, self.try_addresses()).await {
            Some(Ok(connection)) => Ok(connection),
            Some(Err(TryError::Final(e))) => Err(e),
            Some(Err(TryError::Refused(reason, cause))) => Err(failed(reason, cause)),
            None => Err(failed(format!("no answer within {limit:?}"), None)),
        }
    }

    async fn try_addresses(self) -> Result<Connection, TryError> {
        let addrs = resolve_host(&self.rt, &self.host, self.port).await.map_err(TryError::Final)?;
        let (mut reasons, mut cause) = (Vec::new(), None);
        for addr in addrs {
            match self.connect_to(addr).await {
                Ok(connection) => return Ok(connection),
                Err(e) => {
                    let text = e.to_string();
                    cause = Some(e);
                    let reason = text.strip_prefix(&format!("cannot connect to {addr}: ")).unwrap_or(&text);
                    // Omit the address if the URL contains it.
                    let same = self.host.parse() == Ok(addr.ip());
                    reasons.push(if same { reason.to_owned() } else { format!("{addr}: {reason}") });
                }
            }
        }
        Err(TryError::Refused(reasons.join("; "), cause))
    }

    async fn connect_to(&self, addr: SocketAddr) -> Result<Connection, Cause> {
        match self.proto {
            Proto::Tcp => self.connect_tcp(addr).await,
            Proto::Rdma => self.connect_rdma(addr).await,
        }
    }

    async fn connect_tcp(&self, addr: SocketAddr) -> Result<Connection, Cause> {
        let stream = TcpByteStream::connect_from(self.options.local_port(), addr).await?;
        over_stream(Box::new(stream), &self.rt, &self.arena, (&self.host, addr), &self.options).await
    }

    async fn connect_rdma(&self, addr: SocketAddr) -> Result<Connection, Cause> {
        if self.options.tls.is_used() {
            return self.connect_secured(addr).await;
        }
        let chosen = self.options.provider.to_connect(addr)?;
        tracing::info!(%addr, provider = chosen.provider.name(), why = chosen.why, "connecting over RDMA");
        let (rt, arena) = (Arc::clone(&self.rt), self.arena.clone());
        connect_over(&*chosen.provider, rt, arena, addr, &self.options, Arc::clone(&self.registration)).await
    }

    /// Connects with iWARP within TLS.
    async fn connect_secured(&self, addr: SocketAddr) -> Result<Connection, Cause> {
        let config = requester_config(&self.options, Arc::clone(&self.registration));
        let (rt, arena, protocol) = (Arc::clone(&self.rt), self.arena.clone(), &self.options.rdma_protocol);
        let secure = |stream| tls::protect_iwarp(&self.options.tls, stream, &self.host);
        let params = protocol.connect_params(&config);
        let qp = connect_iwarp::<Cause, _>(Arc::clone(&rt), addr, params, secure).await?;
        Ok(over_requester(protocol.requester(qp, rt, arena, config)?, IWARP, addr))
    }

    /// Queries rpcbind at this target for the TCP port of MOUNT version 3, with rpcbind version 4 for IPv6,
    /// then with version 2, which every rpcbind supports.
    async fn query_mount_port(self) -> Option<u16> {
        let (rt, limit) = (Arc::clone(&self.rt), self.options.connect_timeout);
        let query = async move {
            let addr = *resolve_host(&self.rt, &self.host, self.port).await.ok()?.first()?;
            let stream = TcpByteStream::connect(addr).await.ok()?;
            let rpcbind = Rpcbind::new(Box::new(stream), &self.rt, &self.arena, limit).ok()?;
            let (program, version) = (millrace_nfs::mount::PROGRAM, millrace_nfs::mount::VERSION);
            if addr.is_ipv6()
                && let Ok(Some(at)) = rpcbind.get_addr(program, version, NetId::tcp(&addr)).await
            {
                return Some(at.port());
            }
            rpcbind.get_port(program, version, NetId::Tcp).await.ok()?
        };
        on_runtime(&rt, limit, query).await?
    }
}

/// Returns a connection over `stream`, whose peer is `host` at `addr`.
async fn over_stream(
    stream: Box<dyn ByteStream>,
    rt: &RuntimeRef,
    arena: &Arena,
    (host, addr): (&str, SocketAddr),
    options: &Options,
) -> Result<Connection, Cause> {
    let version = if options.vers == Some(Version::V3) { 3 } else { 4 };
    let stream = tls::protect(&options.tls, stream, host, version).await?;
    let config = TcpClientConfig {
        max_in_flight: options.credits.max(1) as usize,
        timeout: options.timeout,
        ..TcpClientConfig::default()
    };
    let transport = TcpTransport::start(stream, rt, arena, config)?;
    Ok(Connection::new(transport, addr.to_string()))
}

/// Connects over `provider`.
async fn connect_over(
    provider: &dyn Provider,
    rt: RuntimeRef,
    arena: Arena,
    addr: SocketAddr,
    options: &Options,
    registration: Arc<Registration>,
) -> Result<Connection, Cause> {
    if options.tls.is_used() {
        return Err(format!("xprtsec={} is not possible with this provider", options.tls.security()).into());
    }
    let mut config = requester_config(options, registration);
    config.remote_invalidate &= provider.can_be_invalidated(addr);
    let (name, protocol) = (provider.name(), &options.rdma_protocol);
    let params = protocol.connect_params(&config);
    let qp = provider.connect(Arc::clone(&rt), arena.clone(), addr, params).await?;
    Ok(over_requester(protocol.requester(qp, rt, arena, config)?, name, addr))
}

/// The configuration of connections with these options.
fn requester_config(options: &Options, registration: Arc<Registration>) -> RequesterConfig {
    RequesterConfig {
        credits: options.credits,
        call_timeout: options.timeout,
        measure_exposure: options.measure_exposure,
        registration,
        connect: ConnectParams {
            crc: options.crc,
            max_frame: options.max_frame,
            local_port: options.local_port(),
            timeout: options.connect_timeout,
            ..ConnectParams::default()
        },
        ..RequesterConfig::default()
    }
}

/// Returns a connection of `requester`, which the provider `name` has connected to `addr`.
fn over_requester(
    requester: Arc<dyn RequesterTransport>,
    name: &'static str,
    addr: SocketAddr,
) -> Connection {
    let transport: Arc<dyn Transport> = Arc::clone(&requester) as _;
    // A weak reference, so that statistics do not keep the connection open.
    let observed = Arc::downgrade(&requester);
    let stats = move || {
        let requester = observed.upgrade();
        ConnectionStats {
            peer: addr.to_string(),
            provider: Some(name),
            queue_pair: requester.as_ref().and_then(|r| r.counters()),
            requester: requester.as_ref().map(|r| r.stats()),
        }
    };
    Connection { transport, stats: Arc::new(stats) }
}

/// A provider of connections from the caller.
#[derive(Clone)]
pub(crate) enum Network {
    Rdma(Arc<dyn Provider>),
    Tcp(Arc<dyn StreamProvider>),
}

/// Connects to one address over a provider from the caller.
#[derive(Clone)]
pub(crate) struct NetworkConnector {
    pub(crate) rt: RuntimeRef,
    pub(crate) arena: Arena,
    pub(crate) network: Network,
    pub(crate) addr: SocketAddr,
    pub(crate) options: Options,
    pub(crate) registration: Arc<Registration>,
}

impl NetworkConnector {
    fn failed(&self, cause: Cause) -> Error {
        let proto = match self.network {
            Network::Rdma(_) => Proto::Rdma,
            Network::Tcp(_) => Proto::Tcp,
        };
        Error::Connect { server: self.server(), proto, reason: cause.to_string(), source: Some(cause) }
    }

    async fn try_connect(&self) -> Result<Connection, Cause> {
        let (addr, options) = (self.addr, &self.options);
        match &self.network {
            Network::Rdma(provider) => {
                let (rt, arena) = (Arc::clone(&self.rt), self.arena.clone());
                connect_over(&**provider, rt, arena, addr, options, Arc::clone(&self.registration)).await
            }
            Network::Tcp(streams) => {
                let host = addr.ip().to_string();
                let connect = async {
                    let stream = streams.connect(options.local_port(), addr).await?;
                    over_stream(stream, &self.rt, &self.arena, (&host, addr), options).await
                };
                let limit = options.connect_timeout;
                let connection = millrace_runtime::timeout(&*self.rt, limit, connect).await;
                connection.ok_or_else(|| format!("no answer within {limit:?}"))?
            }
        }
    }
}

impl Connector for NetworkConnector {
    fn server(&self) -> String {
        self.addr.to_string()
    }

    fn connect(&self) -> BoxFuture<'static, Result<Connection, Error>> {
        let this = self.clone();
        Box::pin(async move { this.try_connect().await.map_err(|cause| this.failed(cause)) })
    }

    fn connect_mount(&self) -> BoxFuture<'static, Result<Connection, Error>> {
        let reason =
            "the server does not offer MOUNT on the NFS connection, and this provider has no other port";
        Box::pin(std::future::ready(Err(self.failed(reason.into()))))
    }
}

/// Runs `work` as a task of the runtime, so that it has access to the runtime's reactor wherever the caller
/// is polled. Returns `None` after `limit`, or if the runtime shuts down.
async fn on_runtime<T: Send + 'static>(
    rt: &RuntimeRef,
    limit: Duration,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (mut done, outcome) = oneshot::channel();
    let task = async move {
        // Ends early if the caller has been dropped.
        let work = std::pin::pin!(work);
        if let Either::Left((out, _)) = select(work, done.cancellation()).await {
            drop(done.send(out));
        }
    };
    rt.spawn("client-connect", Box::pin(task));
    millrace_runtime::timeout(&**rt, limit, outcome).await?.ok()
}

/// Reason of a failed connection attempt.
type Cause = Box<dyn std::error::Error + Send + Sync>;

enum TryError {
    Final(Error),
    /// The reasons for all addresses, and the error of the last one.
    Refused(String, Option<Cause>),
}

/// Resolves `host`; returns the addresses in the system's order.
async fn resolve_host(rt: &RuntimeRef, host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    let found = resolve(&**rt, host, port).await;
    found.map_err(|e| Error::Resolve { host: host.to_owned(), reason: e.to_string(), source: Some(e) })
}
