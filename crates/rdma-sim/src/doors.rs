//! Where hosts listen: what knocks waits until it is let in.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    task::{Context, Poll, Waker},
};

use super::host::Host;

/// The most that waits at a door.
const BACKLOG: usize = 128;

/// The doors of all hosts, for one kind of connection; `T` waits at them.
pub(super) struct Doors<T>(BTreeMap<SocketAddr, Door<T>>);

struct Door<T> {
    waiting: VecDeque<T>,
    waker: Option<Waker>,
}

impl<T> Default for Doors<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Doors<T> {
    /// Opens one at `addr`, or at a free port if it has none; gives where. The address is the host's.
    ///
    /// # Errors
    /// When there is one already.
    pub(super) fn open(&mut self, host: &mut Host, mut addr: SocketAddr) -> io::Result<SocketAddr> {
        if addr.port() == 0 {
            addr.set_port(host.free_port());
        }
        if self.0.contains_key(&addr) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        self.0.insert(addr, Door { waiting: VecDeque::new(), waker: None });
        Ok(addr)
    }

    /// Whether there is one at which one more may wait; `None`: there is none.
    pub(super) fn has_room(&self, addr: &SocketAddr) -> Option<bool> {
        self.0.get(addr).map(|door| door.waiting.len() < BACKLOG)
    }

    /// Has `who` wait; gives it back if there is no door.
    pub(super) fn knock(&mut self, addr: &SocketAddr, who: T) -> Result<(), T> {
        let Some(door) = self.0.get_mut(addr) else { return Err(who) };
        door.waiting.push_back(who);
        door.waker.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The one that has waited for longest.
    ///
    /// # Errors
    /// When the door is there no more.
    pub(super) fn poll_accept(&mut self, addr: &SocketAddr, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let Some(door) = self.0.get_mut(addr) else {
            let gone = "the host has crashed (simulated)";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::NotConnected, gone)));
        };
        match door.waiting.pop_front() {
            Some(who) => Poll::Ready(Ok(who)),
            None => {
                door.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Closes one; gives those who wait there.
    pub(super) fn close(&mut self, addr: &SocketAddr) -> VecDeque<T> {
        self.0.remove(addr).map(|door| door.waiting).unwrap_or_default()
    }

    /// Closes all of a host.
    pub(super) fn close_all(&mut self, ip: IpAddr) {
        self.0.retain(|addr, _| addr.ip() != ip);
    }
}
