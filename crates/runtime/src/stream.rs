//! Ordered byte streams with vectored I/O, the transport of iWARP and of ONC RPC over TCP.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::{BoxFuture, LocalPort};

/// A connected, ordered, reliable byte stream (TCP, a Unix socket, or a simulated one).
pub trait ByteStream: Send + 'static {
    /// Reads into `bufs` in order. `Ready(Ok(0))` is the end of the stream, unless all of `bufs` are empty.
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>>;

    /// Writes from `bufs` in order, possibly only a part.
    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// Ready when the transport has all accepted bytes. To be called after writes, until it is ready: a stream that
    /// encodes what it accepts, as TLS does, may have bytes left that the transport did not take.
    fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends the sending direction of the stream (TCP FIN). Idempotent. A stream with bytes left to flush ends it after
    /// them, during later calls of `poll_flush` or `poll_read`.
    fn shutdown(&mut self);

    /// Discards data that the peer has not received: a subsequent drop of the stream resets the connection
    /// (TCP RST, RFC 9293 section 3.10.4) instead of closing it in an orderly way. Idempotent.
    fn abort(&mut self);

    /// The local address.
    ///
    /// # Errors
    /// That of `getsockname(2)`, or the stream has no IP address.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// The peer's address.
    ///
    /// # Errors
    /// That of `getpeername(2)`, or the stream has no IP address.
    fn peer_addr(&self) -> io::Result<SocketAddr>;
}

impl<S: ByteStream + ?Sized> ByteStream for Box<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        (**self).poll_read(cx, bufs)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        (**self).poll_write(cx, bufs)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_flush(cx)
    }

    fn shutdown(&mut self) {
        (**self).shutdown();
    }

    fn abort(&mut self) {
        (**self).abort();
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        (**self).local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        (**self).peer_addr()
    }
}

/// The TCP stack of one host: outgoing connections and listeners.
pub trait StreamProvider: Send + Sync + 'static {
    /// Connects to `to` from a local port of the kind `from`. The time limit is that of the network stack;
    /// callers should set their own.
    fn connect(&self, from: LocalPort, to: SocketAddr)
    -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>>;

    /// Listens on an address of the host; port 0 selects a free port.
    ///
    /// # Errors
    /// `AddrNotAvailable` if the host does not have the address; `AddrInUse`.
    fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn StreamListener>>;
}

/// A listener. Dropping it resets connections that were not accepted.
pub trait StreamListener: Send + 'static {
    /// The bound address.
    fn local_addr(&self) -> SocketAddr;

    /// Waits for the next connection. Dropping the future loses no connection.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>>;
}

#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    capacity: usize,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

fn lock(p: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    p.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of an in-process stream for tests. Each read returns at most `segment` bytes, so that tests can
/// control the segmentation.
pub struct MemoryStream {
    rx: Arc<Mutex<Pipe>>,
    tx: Arc<Mutex<Pipe>>,
    segment: usize,
    addrs: (SocketAddr, SocketAddr),
}

/// Creates two connected ends. Each direction buffers up to `capacity` bytes; each read returns at most
/// `segment` bytes.
pub fn memory_stream(capacity: usize, segment: usize) -> (MemoryStream, MemoryStream) {
    let pipe = || Arc::new(Mutex::new(Pipe { capacity: capacity.max(1), ..Pipe::default() }));
    let (a, b) = (pipe(), pipe());
    let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let end = |rx: &Arc<_>, tx: &Arc<_>, l, p| MemoryStream {
        rx: Arc::clone(rx),
        tx: Arc::clone(tx),
        segment: segment.max(1),
        addrs: (addr(l), addr(p)),
    };
    (end(&a, &b, 1, 2), end(&b, &a, 2, 1))
}

impl ByteStream for MemoryStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        let mut p = lock(&self.rx);
        if p.bytes.is_empty() {
            if p.closed {
                return Poll::Ready(Ok(0));
            }
            p.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut n = 0;
        for b in bufs {
            let take = b.len().min(self.segment - n).min(p.bytes.len());
            let (front, back) = p.bytes.as_slices();
            let cut = take.min(front.len());
            b[..cut].copy_from_slice(&front[..cut]);
            b[cut..take].copy_from_slice(&back[..take - cut]);
            p.bytes.drain(..take);
            n += take;
        }
        if let Some(w) = p.writer.take() {
            w.wake();
        }
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut p = lock(&self.tx);
        if p.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = p.capacity.saturating_sub(p.bytes.len());
        if room == 0 {
            p.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut n = 0;
        for b in bufs {
            let take = b.len().min(room - n);
            p.bytes.extend(&b[..take]);
            n += take;
        }
        if let Some(w) = p.reader.take() {
            w.wake();
        }
        Poll::Ready(Ok(n))
    }

    fn abort(&mut self) {
        lock(&self.tx).bytes.clear();
    }

    fn shutdown(&mut self) {
        let mut p = lock(&self.tx);
        p.closed = true;
        if let Some(w) = p.reader.take() {
            w.wake();
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addrs.0)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addrs.1)
    }
}

impl Drop for MemoryStream {
    fn drop(&mut self) {
        self.shutdown();
        let mut p = lock(&self.rx);
        p.closed = true;
        if let Some(w) = p.writer.take() {
            w.wake();
        }
    }
}
