//! Unix sockets in Tokio's reactor.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{Shutdown, SocketAddr},
    task::{Context, Poll, ready},
};

use socket2::SockRef;
use tokio::net::UnixStream;

use super::MAX_PIECES;
use crate::ByteStream;

/// A connected stream socket of the Unix domain. It has no IP addresses.
pub struct UnixByteStream(UnixStream);

impl From<UnixStream> for UnixByteStream {
    fn from(stream: UnixStream) -> Self {
        Self(stream)
    }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "a Unix socket has no IP address")
}

impl ByteStream for UnixByteStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        let pieces = bufs.len().min(MAX_PIECES);
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_vectored(&mut bufs[..pieces]) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let bufs = &bufs[..bufs.len().min(MAX_PIECES)];
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_vectored(bufs) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn shutdown(&mut self) {
        // Fails only on a closed socket.
        drop(SockRef::from(&self.0).shutdown(Shutdown::Write));
    }

    fn abort(&mut self) {
        // The domain has no reset: data that the peer has not received stays readable.
        drop(SockRef::from(&self.0).shutdown(Shutdown::Both));
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Err(no_address())
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Err(no_address())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn bytes_arrive_in_order_and_the_end_is_reported() {
        let (ours, peer) = UnixStream::pair().unwrap();
        let (mut ours, mut peer) = (UnixByteStream::from(ours), UnixByteStream::from(peer));
        assert_eq!(ours.local_addr().unwrap_err().kind(), io::ErrorKind::Unsupported);
        let sent: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
        let all = sent.clone();
        let writer = tokio::spawn(async move {
            let mut rest = &all[..];
            while !rest.is_empty() {
                let (a, b) = rest.split_at(rest.len() / 2);
                let slices = [IoSlice::new(a), IoSlice::new(b)];
                let n = poll_fn(|cx| ours.poll_write(cx, &slices)).await.unwrap();
                rest = &rest[n..];
            }
            ours.shutdown();
            ours
        });
        let mut received = Vec::new();
        loop {
            let (mut a, mut b) = ([0; 1000], [0; 5000]);
            let n = poll_fn(|cx| peer.poll_read(cx, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]));
            let n = n.await.unwrap();
            if n == 0 {
                break;
            }
            received.extend_from_slice(&a[..n.min(1000)]);
            received.extend_from_slice(&b[..n.saturating_sub(1000)]);
        }
        assert!(received == sent);
        drop(writer.await.unwrap());
    }
}
