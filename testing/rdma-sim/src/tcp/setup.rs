//! Connection setup: SYN, SYN-ACK, ACK; each takes one propagation delay (RFC 9293 section 3.5).

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use futures::channel::oneshot;
use millrace_runtime::{BoxFuture, ByteStream, LocalPort, StreamListener, StreamProvider};

use super::{
    end::{End, Waiting},
    framing::Framing,
    stream::SimStream,
};
use crate::world::{Inner, Net};

type SetupResult = io::Result<SimStream>;

/// The TCP of one host.
pub(crate) struct SimTcp {
    pub(crate) world: Arc<Inner>,
    pub(crate) host: usize,
    /// The messages of the connections that it opens.
    pub(crate) framing: Framing,
}

impl StreamProvider for SimTcp {
    fn connect(
        &self,
        from: LocalPort,
        to: SocketAddr,
    ) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let (world, host, framing) = (Arc::clone(&self.world), self.host, self.framing);
        Box::pin(async move {
            let Some(from) = world.address_towards(host, to, from) else {
                return Err(io::Error::new(
                    io::ErrorKind::HostUnreachable,
                    format!("no host has the address {to}"),
                ));
            };
            let (reply, answer) = oneshot::channel();
            let asked = Arc::clone(&world);
            world.clock.call_at(world.trip(), Box::new(move || asked.syn(host, from, to, framing, reply)));
            let made = answer.await.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionReset.into()))?;
            Ok(Box::new(made) as Box<dyn ByteStream>)
        })
    }

    fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn StreamListener>> {
        let mut net = self.world.net.lock();
        let Net { hosts, tcp, .. } = &mut *net;
        let host = &mut hosts[self.host];
        if host.ip != addr.ip() {
            let why = format!("the simulated host has the address {}, not {}", host.ip, addr.ip());
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why));
        }
        let addr = tcp.listeners.open(host, addr)?;
        Ok(Box::new(SimStreamListener { world: Arc::clone(&self.world), addr }))
    }
}

impl Inner {
    /// Processes the arrival of a SYN at the host of `to`.
    fn syn(
        self: &Arc<Self>,
        host: usize,
        from: SocketAddr,
        to: SocketAddr,
        framing: Framing,
        reply: oneshot::Sender<SetupResult>,
    ) {
        let mut net = self.net.lock();
        let made = match (net.tcp.listeners.has_room(&to), net.host_of(to.ip())) {
            (Some(true), Some(there)) => Ok(there),
            _ => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
        };
        let made = made.map(|there| {
            net.next_connection += 1;
            let id = net.next_connection;
            let ends = [host, there].map(|host| {
                let initial = net.hosts[host].profile.tcp.initial_window_bytes;
                End::new(host, initial, framing)
            });
            net.tcp.connections.insert(id, ends);
            net.trace.line(self.now(), (id, 0), format_args!("connected, TCP, from host {host} to {there}"));
            let ours = SimStream { world: Arc::clone(self), end: (id, 0), addrs: (from, to) };
            (ours, ((id, 1), (to, from)))
        });
        drop(net);
        let world = Arc::clone(self);
        let replied = move || match made {
            Ok((ours, theirs)) => {
                let there = Arc::clone(&world);
                world.clock.call_at(world.trip(), Box::new(move || there.established(theirs)));
                // A stream whose receiver is gone is dropped here.
                drop(reply.send(Ok(ours)));
            }
            Err(e) => drop(reply.send(Err(e))),
        };
        self.clock.call_at(self.trip(), Box::new(replied));
    }

    /// Queues the stream for the listener when the ACK arrives.
    fn established(self: &Arc<Self>, waiting: Waiting) {
        let mut net = self.net.lock();
        let at = waiting.1.0;
        if let Err((end, _)) = net.tcp.listeners.enqueue(&at, waiting) {
            self.reset_unaccepted(&mut net, end); // The listener was closed meanwhile.
        }
    }
}

/// A host's listener.
struct SimStreamListener {
    world: Arc<Inner>,
    addr: SocketAddr,
}

impl SimStreamListener {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Box<dyn ByteStream>>> {
        let accepted = self.world.net.lock().tcp.listeners.poll_accept(&self.addr, cx);
        accepted.map_ok(|(end, addrs)| {
            Box::new(SimStream { world: Arc::clone(&self.world), end, addrs }) as Box<dyn ByteStream>
        })
    }
}

impl StreamListener for SimStreamListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        Box::pin(poll_fn(|cx| self.poll_accept(cx)))
    }
}

impl Drop for SimStreamListener {
    fn drop(&mut self) {
        let mut net = self.world.net.lock();
        let waiting = net.tcp.listeners.close(&self.addr);
        waiting.into_iter().for_each(|(end, _)| self.world.reset_unaccepted(&mut net, end));
    }
}
