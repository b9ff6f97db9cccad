//! TCP sockets: connecting, listening, and connection requests that can move between shards.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_buffer::Arena;
use millrace_rdma::{
    ConnectParams, ConnectionError, Incoming, Listener, QueuePair, RejectReason,
    provider::{pause_if_exhausted, setup_timeout},
    stag::StagTables,
};
use millrace_runtime::{
    BoxFuture, ByteStream, LocalPort, RuntimeRef, canonical,
    tokio_rt::{TcpByteStream, connect_tcp, prefer_loopback_congestion_control, probe_peer},
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{
    connect::{initiate, respond},
    setup,
};

/// Length of the kernel's accept queue.
const BACKLOG: i32 = 1024;
/// Time limit for the MPA request of a peer that is being rejected.
const REJECT_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_REJECTS: usize = 64;
/// Time limit for unacknowledged data; equal to the time that keepalive takes to detect a dead peer.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Configures a connected socket and adds it to the reactor of the current runtime. Buffer sizes are left to
/// the kernel, which tunes them to the path.
fn into_stream(stream: TcpStream) -> io::Result<TcpByteStream> {
    probe_peer(&stream)?;
    SockRef::from(&stream).set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    TcpByteStream::new(stream)
}

async fn connect_stream(addr: SocketAddr, local: LocalPort) -> Result<TcpByteStream, ConnectionError> {
    let stream = connect_tcp(addr, local).await.and_then(into_stream);
    stream.map_err(|e| ConnectionError::Io(format!("cannot connect to {addr}: {e}")))
}

/// Connects over TCP and creates a queue pair.
pub(super) async fn connect(
    rt: RuntimeRef,
    addr: SocketAddr,
    params: ConnectParams,
    tags: StagTables,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    let began = rt.now();
    let stream = setup_timeout(&*rt, params.timeout, connect_stream(addr, params.local_port)).await?;
    let left = params.timeout.saturating_sub(rt.now().duration_since(began));
    initiate(rt, Box::new(stream), ConnectParams { timeout: left, ..params }, tags).await
}

/// Connects to `addr` over TCP, and sets up a connection over the stream that `secure` makes of the socket's, with TLS for
/// example. The connection has no CRC: what is secured needs none.
///
/// # Errors
/// Those of `secure` and of [`millrace_rdma::Provider::connect`].
pub async fn connect_secured<E: From<ConnectionError>, F>(
    rt: RuntimeRef,
    addr: SocketAddr,
    params: ConnectParams,
    secure: impl FnOnce(Box<dyn ByteStream>) -> F,
) -> Result<Box<dyn QueuePair>, E>
where
    F: Future<Output = Result<Box<dyn ByteStream>, E>>,
{
    let (began, limit) = (rt.now(), params.timeout);
    let stream = setup_timeout(&*rt, limit, connect_stream(addr, params.local_port)).await?;
    let left = || limit.saturating_sub(rt.now().duration_since(began));
    let secured = millrace_runtime::timeout(&*rt, left(), secure(Box::new(stream))).await;
    let stream = secured.ok_or(ConnectionError::TimedOut(limit))??;
    let params = ConnectParams { crc: false, timeout: left(), ..params };
    Ok(initiate(rt, stream, params, StagTables::default()).await?)
}

/// A listening socket.
pub(super) struct IwarpListener {
    rt: RuntimeRef,
    addr: SocketAddr,
    state: ListenSocket,
    tags: StagTables,
    rejects: Arc<AtomicUsize>,
}

/// The socket, before and after it is added to the reactor of the accepting runtime.
enum ListenSocket {
    Idle(TcpListener),
    Accepting(tokio::net::TcpListener),
}

impl IwarpListener {
    /// Binds `addr` and listens.
    pub(super) fn bind(rt: RuntimeRef, addr: SocketAddr, tags: StagTables) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        prefer_loopback_congestion_control(&socket, addr);
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Self::new(rt, socket.into(), tags)
    }

    /// Listens on a socket that listens already and does not block.
    pub(super) fn new(rt: RuntimeRef, listener: TcpListener, tags: StagTables) -> io::Result<Self> {
        let addr = listener.local_addr()?;
        Ok(Self { rt, addr, state: ListenSocket::Idle(listener), tags, rejects: Arc::default() })
    }

    async fn next(&mut self) -> io::Result<Box<dyn Incoming>> {
        if let ListenSocket::Idle(listener) = &self.state {
            self.state = ListenSocket::Accepting(tokio::net::TcpListener::from_std(listener.try_clone()?)?);
        }
        let ListenSocket::Accepting(listener) = &self.state else {
            return Err(io::ErrorKind::NotConnected.into()); // Unreachable: created above.
        };
        loop {
            match listener.accept().await.and_then(|(s, peer)| Ok((s.into_std()?, canonical(peer)))) {
                Ok((stream, peer)) => {
                    let (rt, tags) = (Arc::clone(&self.rt), self.tags.clone());
                    let rejects = Arc::clone(&self.rejects);
                    let stream = Some(Accepted::Idle(stream));
                    return Ok(Box::new(IwarpIncoming { rt, stream, peer, tags, rejects }));
                }
                Err(e) => self.after_error(e).await?,
            }
        }
    }

    /// Continues after the failure of one connection, or after a pause if resources were exhausted.
    async fn after_error(&self, e: io::Error) -> io::Result<()> {
        if pause_if_exhausted(&self.rt, self.addr, &e).await {
            return Ok(());
        }
        match e.raw_os_error() {
            // Errors of connections that failed before they were accepted; see accept(2).
            Some(
                libc::ECONNABORTED
                | libc::ECONNRESET
                | libc::EINTR
                | libc::EPROTO
                | libc::EPERM
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::ENOPROTOOPT
                | libc::ENONET,
            ) => Ok(()),
            _ => Err(e),
        }
    }
}

impl Listener for IwarpListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(self.next())
    }
}

/// A TCP connection of which no byte has been read.
struct IwarpIncoming {
    rt: RuntimeRef,
    /// `None` if the peer has begun TLS.
    stream: Option<Accepted>,
    peer: SocketAddr,
    tags: StagTables,
    rejects: Arc<AtomicUsize>,
}

/// A socket before and after it is added to a reactor.
enum Accepted {
    Idle(TcpStream),
    Open(TcpByteStream),
}

impl Accepted {
    fn open(self) -> io::Result<TcpByteStream> {
        match self {
            Self::Idle(stream) => into_stream(stream),
            Self::Open(stream) => Ok(stream),
        }
    }
}

/// The first byte of a handshake record (RFC 8446 section 5.1). A request of MPA begins with `M`.
const TLS_HANDSHAKE: u8 = 22;

impl IwarpIncoming {
    async fn peek_tls(&mut self) -> io::Result<Option<Box<dyn ByteStream>>> {
        let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?.open()?;
        let first = stream.peek().await?;
        if first == Some(TLS_HANDSHAKE) {
            return Ok(Some(Box::new(stream)));
        }
        self.stream = Some(Accepted::Open(stream));
        Ok(None)
    }
}

impl Incoming for IwarpIncoming {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn accept(
        self: Box<Self>,
        rt: RuntimeRef,
        _arena: Arena,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
        Box::pin(async move {
            let stream = self.stream.ok_or(ConnectionError::Closed)?;
            let stream = stream.open().map_err(|e| ConnectionError::Io(e.to_string()))?;
            respond(rt, Box::new(stream), params, self.tags).await
        })
    }

    fn tls_stream(&mut self) -> BoxFuture<'_, io::Result<Option<Box<dyn ByteStream>>>> {
        Box::pin(self.peek_tls())
    }

    /// Rejects the peer's MPA request. A peer whose request does not arrive in time is disconnected without a
    /// reply, and so are peers beyond the maximum number of concurrent rejections.
    fn reject(self: Box<Self>, reason: RejectReason) {
        tracing::debug!(peer = %self.peer, ?reason, "connection rejected");
        let Self { rt, stream, rejects, .. } = *self;
        if rejects.fetch_add(1, Ordering::Relaxed) >= MAX_REJECTS {
            rejects.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let clock = Arc::clone(&rt);
        let task = async move {
            if let Some(Ok(mut stream)) = stream.map(Accepted::open) {
                let _ = millrace_runtime::timeout(&*clock, REJECT_TIMEOUT, setup::reject(&mut stream)).await;
            }
            rejects.fetch_sub(1, Ordering::Relaxed);
        };
        rt.spawn("iwarp reject", Box::pin(task));
    }
}
