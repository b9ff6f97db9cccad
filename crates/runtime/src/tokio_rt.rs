//! The Tokio adapter.

#![allow(unsafe_code)] // Registers descriptors that their owner keeps open.

use std::{
    future::Future,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::net::sockopt::set_tcp_congestion;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{
        Interest,
        unix::{AsyncFd, AsyncFdReadyGuard},
    },
    net::TcpSocket,
};

use crate::{
    BoxFuture, ByteStream, Instant, LocalPort, Readiness, Runtime, RuntimeRef, Sleep, reserved_ports,
};

/// A handle to a Tokio runtime, current-thread or multi-thread.
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    origin: tokio::time::Instant,
}

impl TokioRuntime {
    /// The runtime in whose context the caller runs.
    ///
    /// # Panics
    /// Outside a Tokio runtime, as [`tokio::runtime::Handle::current`] does.
    pub fn current() -> RuntimeRef {
        Self::from_handle(tokio::runtime::Handle::current())
    }

    /// The runtime behind `handle`.
    pub fn from_handle(handle: tokio::runtime::Handle) -> RuntimeRef {
        Arc::new(Self { handle, origin: tokio::time::Instant::now() })
    }
}

impl Runtime for TokioRuntime {
    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn wall_clock(&self) -> Duration {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
    }

    fn sleep_until(&self, at: Instant) -> Sleep {
        let _guard = self.handle.enter();
        Box::pin(tokio::time::sleep_until(self.origin + Duration::from_nanos(at.as_nanos())))
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        drop(self.handle.spawn(task));
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        drop(self.handle.spawn_blocking(work));
    }

    fn watch(&self, fd: OwnedFd) -> io::Result<Box<dyn Readiness>> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let _guard = self.handle.enter();
        // SAFETY: an OwnedFd is its descriptor for as long as it lives, and it lives in the AsyncFd.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(Box::new(WatchedFd(fd)))
    }

    /// # Panics
    /// When the machine gives no random bytes at all: steering tags and handles must not be guessable, so there is no
    /// going on with less.
    fn fill_random(&self, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty()) {
                Ok(n) if n > 0 => done += n,
                Err(rustix::io::Errno::INTR) => {}
                _ => return fill_from_device(&mut bytes[done..]), // A sandbox may refuse the call.
            }
        }
    }
}

#[allow(clippy::panic)] // Documented at `fill_random`; no peer can bring it about.
fn fill_from_device(bytes: &mut [u8]) {
    if let Err(e) = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(bytes)) {
        panic!("this machine gives no random bytes (getrandom and /dev/urandom fail: {e})");
    }
}

/// A file descriptor in Tokio's reactor.
struct WatchedFd(AsyncFd<OwnedFd>);

impl Readiness for WatchedFd {
    fn poll_io(
        &mut self,
        cx: &mut Context<'_>,
        operation: &mut dyn FnMut() -> io::Result<()>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            if let Ok(result) = guard.try_io(|_| operation()) {
                return Poll::Ready(result);
            }
        }
    }
}

/// Gives a TCP socket the congestion control `cubic` if `peer` is this machine; leaves it alone if not, and if it
/// cannot be had. For a listening socket `peer` is the address that it listens on: what it accepts inherits the choice.
///
/// Loopback has no congestion, but BBR, the default of many machines, paces by a model of the path that does not fit
/// it. Measured on one of 1 MiB writes one way, both ends: 0.12 CPU seconds per GB with BBR, 0.09 with CUBIC, at 1.2 to
/// 1.4 times the throughput.
pub fn prefer_loopback_congestion_control(socket: impl AsFd, peer: SocketAddr) {
    if peer.ip().to_canonical().is_loopback() {
        let _ = set_tcp_congestion(socket, "cubic");
    }
}

/// A peer that died without a word is noticed after this idle time and then this many probes at this distance.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Lets the kernel find out whether the peer of a TCP connection is still there, within a minute of silence: a dead
/// one would keep its place for ever.
///
/// # Errors
/// When the socket refuses the options.
pub fn probe_peer(socket: &impl AsFd) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// Connects to `addr`, with the congestion control that fits it.
///
/// # Errors
/// As `connect(2)`.
pub async fn connect_tcp(addr: SocketAddr, local: LocalPort) -> io::Result<TcpStream> {
    if local == LocalPort::Reserved
        && let Some(stream) = connect_reserved(addr).await
    {
        return stream;
    }
    new_socket(addr)?.connect(addr).await?.into_std()
}

fn new_socket(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Before it connects: BBR switches pacing on when the connection is up, and its successor does not switch it off.
    prefer_loopback_congestion_control(&socket, addr);
    Ok(socket)
}

/// Connects from a reserved port; `None` if none can be had.
async fn connect_reserved(addr: SocketAddr) -> Option<io::Result<TcpStream>> {
    for port in reserved_ports() {
        let any: IpAddr =
            if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = new_socket(addr).ok()?;
        // Connections to other servers, and those that are over, may have the port too.
        socket.set_reuseaddr(true).ok()?;
        match socket.bind(SocketAddr::new(any, port)) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => continue,
            Err(_) => return None, // Not allowed.
            Ok(()) => {}
        }
        match socket.connect(addr).await {
            Err(e) if matches!(e.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {}
            connected => return Some(connected.and_then(tokio::net::TcpStream::into_std)),
        }
    }
    None
}

/// A TCP connection in Tokio's reactor.
///
/// It uses [`AsyncFd`] and not Tokio's own stream, because a short vectored read can then clear the readiness of
/// exactly the event it saw, which saves the `read` that would return `EAGAIN`.
pub struct TcpByteStream {
    fd: AsyncFd<TcpStream>,
}

impl TcpByteStream {
    /// Registers `stream` with the reactor of the current Tokio runtime; it is made non-blocking, with TCP_NODELAY and
    /// the congestion control that fits a peer on this machine.
    ///
    /// # Errors
    /// When the socket or the reactor refuses.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        if let Ok(peer) = stream.peer_addr() {
            prefer_loopback_congestion_control(&stream, peer);
        }
        // SAFETY: a TcpStream owns its descriptor and gives the same one for as long as it lives, and it lives in the AsyncFd.
        let fd = unsafe { AsyncFd::register(stream) }?;
        Ok(Self { fd })
    }

    /// Connects to `addr`.
    ///
    /// # Errors
    /// As `connect(2)`.
    pub async fn connect(addr: SocketAddr) -> io::Result<Self> {
        Self::connect_from(LocalPort::Any, addr).await
    }

    /// Connects to `addr` from a port of the kind `local`.
    ///
    /// # Errors
    /// As `connect(2)`.
    pub async fn connect_from(local: LocalPort, addr: SocketAddr) -> io::Result<Self> {
        Self::new(connect_tcp(addr, local).await?)
    }

    /// Takes the socket out of this runtime's reactor, to give it to another.
    pub fn into_std(self) -> TcpStream {
        self.fd.into_inner()
    }
}

/// The most pieces that one system call takes (IOV_MAX). A call that is given more would come back short without the
/// socket being drained or full, and its readiness would be cleared for ever.
const MAX_PIECES: usize = 1024;

fn total<'a>(lens: impl Iterator<Item = &'a [u8]>) -> usize {
    lens.map(<[u8]>::len).sum()
}

/// Judges a system call for `want` bytes; `None` when it must be made again. Readiness is cleared where the call shows
/// that the socket is drained or full: at `EAGAIN`, and when it came back short, which saves the call that would say so.
fn settle(
    guard: &mut AsyncFdReadyGuard<'_, TcpStream>,
    want: usize,
    result: io::Result<usize>,
) -> Option<io::Result<usize>> {
    match result {
        Ok(n) if n > 0 && n < want => guard.clear_ready(),
        Err(ref e) if e.kind() == io::ErrorKind::WouldBlock => {
            guard.clear_ready();
            return None;
        }
        Err(ref e) if e.kind() == io::ErrorKind::Interrupted => return None,
        _ => {}
    }
    Some(result)
}

impl ByteStream for TcpByteStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        let pieces = bufs.len().min(MAX_PIECES);
        let bufs = &mut bufs[..pieces];
        let want = total(bufs.iter().map(|b| &**b));
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let result = guard.get_inner().read_vectored(bufs);
            if let Some(result) = settle(&mut guard, want, result) {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let bufs = &bufs[..bufs.len().min(MAX_PIECES)];
        let want = total(bufs.iter().map(|b| &**b));
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            let result = guard.get_inner().write_vectored(bufs);
            if let Some(result) = settle(&mut guard, want, result) {
                return Poll::Ready(result);
            }
        }
    }

    fn shutdown(&mut self) {
        drop(self.fd.get_ref().shutdown(Shutdown::Write));
    }

    fn abort(&mut self) {
        // Fails only on a socket that is gone.
        drop(SockRef::from(self.fd.get_ref()).set_linger(Some(Duration::ZERO)));
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().peer_addr()
    }
}

/// Runs `main` on a new single-threaded Tokio runtime on this thread: one *shard*.
///
/// # Errors
/// When the runtime cannot be made (no more file descriptors).
pub fn run_shard<F: Future>(main: F) -> io::Result<F::Output> {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(rt.block_on(main))
}
