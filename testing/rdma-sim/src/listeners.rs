//! Listening endpoints and their accept queues.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    task::{Context, Poll, Waker},
};

use super::host::Host;

/// Maximum number of requests that wait at a listener.
const BACKLOG: usize = 128;

/// The listeners of all hosts for one kind of connection, whose requests are `T`.
pub(super) struct Listeners<T>(BTreeMap<SocketAddr, Queue<T>>);

struct Queue<T> {
    waiting: VecDeque<T>,
    waker: Option<Waker>,
}

impl<T> Default for Listeners<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Listeners<T> {
    /// Listens on `addr`, an address of `host`, or on a free port if its port is 0. Returns the address.
    ///
    /// # Errors
    /// A listener with this address exists.
    pub(super) fn open(&mut self, host: &mut Host, mut addr: SocketAddr) -> io::Result<SocketAddr> {
        if addr.port() == 0 {
            addr.set_port(host.free_port());
        }
        if self.0.contains_key(&addr) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        self.0.insert(addr, Queue { waiting: VecDeque::new(), waker: None });
        Ok(addr)
    }

    /// Whether the listener on `addr` accepts another request; `None` if there is no listener.
    pub(super) fn has_room(&self, addr: &SocketAddr) -> Option<bool> {
        self.0.get(addr).map(|queue| queue.waiting.len() < BACKLOG)
    }

    /// Queues a request; returns it if there is no listener.
    pub(super) fn enqueue(&mut self, addr: &SocketAddr, request: T) -> Result<(), T> {
        let Some(queue) = self.0.get_mut(addr) else { return Err(request) };
        queue.waiting.push_back(request);
        queue.waker.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Takes the oldest request.
    ///
    /// # Errors
    /// The listener was closed.
    pub(super) fn poll_accept(&mut self, addr: &SocketAddr, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let Some(queue) = self.0.get_mut(addr) else {
            let gone = "the host has crashed (simulated)";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::NotConnected, gone)));
        };
        match queue.waiting.pop_front() {
            Some(request) => Poll::Ready(Ok(request)),
            None => {
                queue.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Closes a listener and returns its requests.
    pub(super) fn close(&mut self, addr: &SocketAddr) -> VecDeque<T> {
        self.0.remove(addr).map(|queue| queue.waiting).unwrap_or_default()
    }

    /// Closes all listeners of a host.
    pub(super) fn close_all(&mut self, ip: IpAddr) {
        self.0.retain(|addr, _| addr.ip() != ip);
    }
}
