//! The sockets: connecting, listening, and connection requests that can move between shards.

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
    BoxFuture, LocalPort, RuntimeRef,
    tokio_rt::{TcpByteStream, connect_tcp, prefer_loopback_congestion_control, probe_peer},
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{
    connect::{initiate, respond},
    setup,
};

/// Connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 1024;
/// How long a refused peer may take to send its request, and how many of them are waited for at once.
const REFUSAL_LIMIT: Duration = Duration::from_secs(2);
const MAX_REFUSALS: usize = 64;
/// Unsent data waits no longer for a dead peer than probing an idle one takes.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Prepares a connected socket and brings it into the reactor of the current runtime. Buffer sizes are left to the
/// kernel, which tunes them to the path.
fn into_stream(stream: TcpStream) -> io::Result<TcpByteStream> {
    probe_peer(&stream)?;
    SockRef::from(&stream).set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    TcpByteStream::new(stream)
}

async fn connect_stream(addr: SocketAddr, local: LocalPort) -> Result<TcpByteStream, ConnectionError> {
    let stream = connect_tcp(addr, local).await.and_then(into_stream);
    stream.map_err(|e| ConnectionError::Io(format!("cannot connect to {addr}: {e}")))
}

/// Connects over TCP and makes a queue pair.
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

/// A listening socket.
pub(super) struct IwarpListener {
    rt: RuntimeRef,
    addr: SocketAddr,
    state: Socketed,
    tags: StagTables,
    refusals: Arc<AtomicUsize>,
}

/// The socket, before and after it is in the reactor of the runtime that accepts.
enum Socketed {
    Idle(TcpListener),
    Accepting(tokio::net::TcpListener),
}

impl IwarpListener {
    /// Binds `addr`.
    pub(super) fn bind(rt: RuntimeRef, addr: SocketAddr, tags: StagTables) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        prefer_loopback_congestion_control(&socket, addr);
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener: TcpListener = socket.into();
        let addr = listener.local_addr()?;
        Ok(Self { rt, addr, state: Socketed::Idle(listener), tags, refusals: Arc::default() })
    }

    async fn next(&mut self) -> io::Result<Box<dyn Incoming>> {
        if let Socketed::Idle(listener) = &self.state {
            self.state = Socketed::Accepting(tokio::net::TcpListener::from_std(listener.try_clone()?)?);
        }
        let Socketed::Accepting(listener) = &self.state else {
            return Err(io::ErrorKind::NotConnected.into()); // Not reached: it was made above.
        };
        loop {
            match listener.accept().await.and_then(|(s, peer)| Ok((s.into_std()?, peer))) {
                Ok((stream, peer)) => {
                    let (rt, tags) = (Arc::clone(&self.rt), self.tags.clone());
                    let refusals = Arc::clone(&self.refusals);
                    return Ok(Box::new(IwarpIncoming { rt, stream, peer, tags, refusals }));
                }
                Err(e) => self.after_error(e).await?,
            }
        }
    }

    /// Goes on after the failure of one connection, or when the machine may have room again.
    async fn after_error(&self, e: io::Error) -> io::Result<()> {
        if pause_if_exhausted(&self.rt, self.addr, &e).await {
            return Ok(());
        }
        match e.raw_os_error() {
            // What accept(2) passes on from a connection that failed before it was accepted.
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

/// A TCP connection on which no byte was read yet, in no reactor.
struct IwarpIncoming {
    rt: RuntimeRef,
    stream: TcpStream,
    peer: SocketAddr,
    tags: StagTables,
    refusals: Arc<AtomicUsize>,
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
            let stream = into_stream(self.stream).map_err(|e| ConnectionError::Io(e.to_string()))?;
            respond(rt, Box::new(stream), params, self.tags).await
        })
    }

    /// Answers the peer's MPA request with a refusal. A peer that does not send one soon is just dropped, and so is
    /// one that comes while many others are being refused.
    fn reject(self: Box<Self>, reason: RejectReason) {
        tracing::debug!(peer = %self.peer, ?reason, "connection refused");
        let Self { rt, stream, refusals, .. } = *self;
        if refusals.fetch_add(1, Ordering::Relaxed) >= MAX_REFUSALS {
            refusals.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let clock = Arc::clone(&rt);
        let task = async move {
            if let Ok(mut stream) = into_stream(stream) {
                let _ = millrace_runtime::timeout(&*clock, REFUSAL_LIMIT, setup::refuse(&mut stream)).await;
            }
            refusals.fetch_sub(1, Ordering::Relaxed);
        };
        rt.spawn("iwarp refusal", Box::pin(task));
    }
}
