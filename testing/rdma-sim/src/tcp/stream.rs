//! The stream of one end, for its owner.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use millrace_runtime::ByteStream;

use crate::{
    event::EndId,
    world::{Inner, machine::COPY_SLICE},
};

/// A simulated TCP connection.
pub(super) struct SimStream {
    pub(super) world: Arc<Inner>,
    pub(super) end: EndId,
    pub(super) addrs: (SocketAddr, SocketAddr),
}

/// The error of an end that was removed.
const END_REMOVED: io::ErrorKind = io::ErrorKind::ConnectionReset;

impl ByteStream for SimStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        let room: usize = bufs.iter().map(|b| b.len()).sum();
        if room == 0 {
            return Poll::Ready(Ok(0));
        }
        let now = self.world.now();
        let mut net = self.world.net.lock();
        let net = &mut *net;
        let Some(end) = net.tcp.end(self.end) else { return Poll::Ready(Err(END_REMOVED.into())) };
        if let Some(why) = end.failure {
            return Poll::Ready(Err(why.into()));
        }
        end.reader = Some(cx.waker().clone());
        let reading = match end.reading {
            None if end.received.is_empty() && end.finished => return Poll::Ready(Ok(0)),
            None if end.received.is_empty() => None,
            None => self.world.read(net, self.end, room.min(COPY_SLICE as usize)),
            reading => reading,
        };
        let Some((bytes, _)) = reading.filter(|(_, done)| *done <= now) else { return Poll::Pending };
        let Some(end) = net.tcp.end(self.end) else { return Poll::Ready(Err(END_REMOVED.into())) };
        let mut n = 0;
        for buf in bufs {
            let part = buf.len().min(bytes - n);
            let (front, back) = end.received.as_slices();
            let cut = part.min(front.len());
            buf[..cut].copy_from_slice(&front[..cut]);
            buf[cut..part].copy_from_slice(&back[..part - cut]);
            end.received.drain(..part);
            n += part;
        }
        // The remaining bytes were copied for the previous call, so reading them has no cost.
        end.reading = (n < bytes).then_some((bytes - n, now));
        self.world.send_credit(self.end, n);
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut net = self.world.net.lock();
        let net = &mut *net;
        let Some(end) = net.tcp.end(self.end) else { return Poll::Ready(Err(END_REMOVED.into())) };
        if let Some(why) = end.failure {
            return Poll::Ready(Err(why.into()));
        }
        if end.ended.0 {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let held = end.in_flight + end.unsent.len() as u64;
        let window = net.hosts[end.host].profile.tcp.window_bytes;
        let room = window.saturating_sub(held) as usize;
        if room == 0 {
            end.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut n = 0;
        for buf in bufs {
            let part = buf.len().min(room - n);
            end.unsent.extend(&buf[..part]);
            n += part;
        }
        end.calls += 1;
        self.world.make(net, self.end);
        Poll::Ready(Ok(n))
    }

    fn shutdown(&mut self) {
        let mut net = self.world.net.lock();
        if let Some(end) = net.tcp.end(self.end) {
            end.ended.0 = true;
        }
        self.world.make(&mut net, self.end);
    }

    fn abort(&mut self) {
        self.world.abort_stream(self.end);
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addrs.0)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addrs.1)
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.world.drop_stream(self.end);
    }
}
