//! A session on a byte stream.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use millrace_runtime::ByteStream;

use crate::{ClientConfig, PeerCertificate, PeerName, Protocol, Session, TlsError};

/// A session on a byte stream. Errors of the session are [`TlsError`]s in [`io::Error`].
///
/// The handshake proceeds in [`Self::poll_handshake`], and in reads and writes, which wait for its end. Received data is
/// returned before the stream is read again. Written data is accepted when it is encrypted, so writes are followed by
/// `poll_flush`.
pub struct TlsStream<S> {
    stream: S,
    session: Session,
    /// Whether the stream's sending direction ends when the session's bytes are sent.
    ending: bool,
}

impl<S: ByteStream> TlsStream<S> {
    /// A session that begins on `stream`.
    pub fn new(stream: S, session: Session) -> Self {
        Self { stream, session, ending: false }
    }

    /// Performs the client's handshake on `stream` with the server of this name.
    ///
    /// # Errors
    /// Those of the stream and [`TlsError`].
    pub async fn connect(stream: S, config: &ClientConfig, name: &PeerName) -> io::Result<Self> {
        let mut stream = Self::new(stream, Session::client(config, name)?);
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        poll_fn(|cx| stream.poll_flush(cx)).await?;
        Ok(stream)
    }

    /// [`Session::client_certificate`].
    pub fn client_certificate(&self) -> Option<&Arc<PeerCertificate>> {
        self.session.client_certificate()
    }

    /// [`Session::protocol`].
    pub fn protocol(&self) -> Option<Protocol> {
        self.session.protocol()
    }

    /// Proceeds with the handshake; ready when it is complete.
    ///
    /// # Errors
    /// Those of the stream and [`TlsError`].
    pub fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.session.is_open() {
            return Poll::Ready(Ok(()));
        }
        loop {
            let done = self.session.handshake();
            let sent = self.poll_send(cx);
            if done? {
                return Poll::Ready(Ok(()));
            }
            if let Poll::Ready(sent) = sent {
                sent?;
            }
            ready!(self.poll_receive(cx))?;
        }
    }

    /// Reads ciphertext once.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let read = self.stream.poll_read(cx, &mut [IoSliceMut::new(self.session.space())]);
        if read.is_pending() {
            self.session.shrink();
        }
        match ready!(read)? {
            0 if self.session.is_open() => Poll::Ready(Err(TlsError::Truncated.into())),
            0 => Poll::Ready(Err(TlsError::Closed.into())),
            n => {
                self.session.received(n);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Sends ciphertext until there is none.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let bytes = self.session.outgoing();
            if bytes.is_empty() {
                break;
            }
            let n = ready!(self.stream.poll_write(cx, &[IoSlice::new(bytes)]))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.session.sent(n);
        }
        ready!(self.stream.poll_flush(cx))?;
        if std::mem::take(&mut self.ending) {
            self.stream.shutdown();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: ByteStream> ByteStream for TlsStream<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_handshake(cx))?;
        loop {
            let read = self.session.read(bufs);
            // What the session sends by itself: answers to updates of keys, and alerts. An error of the stream is that of
            // the next read or write too.
            let _ = self.poll_send(cx);
            if let Some(n) = read? {
                return Poll::Ready(Ok(n));
            }
            ready!(self.poll_receive(cx))?;
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_handshake(cx))?;
        loop {
            let n = self.session.write(bufs)?;
            let sent = self.poll_send(cx)?;
            if n > 0 || bufs.iter().all(|b| b.is_empty()) {
                return Poll::Ready(Ok(n));
            }
            ready!(sent);
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx)
    }

    fn shutdown(&mut self) {
        self.session.close();
        self.ending = true;
        // The rest is sent by later calls, whose wakers replace this one.
        let _ = self.poll_send(&mut Context::from_waker(Waker::noop()));
    }

    fn abort(&mut self) {
        self.stream.abort();
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}
