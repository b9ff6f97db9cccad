//! Connecting and accepting: request, reply, ready to use; each takes one propagation delay.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use futures::channel::oneshot;
use millrace_buffer::{Arena, Buffer};
use millrace_rdma::{
    Capabilities, ConnectParams, ConnectionError, ConnectionInfo, Incoming, Listener, MAX_PIECES,
    MAX_TRANSFER, QueuePair, RejectReason, provider::setup_timeout,
};
use millrace_runtime::{BoxFuture, Instant, LocalPort, RuntimeRef};

use super::{
    access::RemoteAccess,
    domain::SimDomain,
    end::End,
    qp::SimQp,
    request::{ConnectRequest, SetupResult},
    world::{Connection, Inner, Net},
};

/// Maximum private data of a connection request in bytes (as over verbs).
const MAX_PRIVATE_DATA: usize = 196;

/// Allocates the receive that a connection has from the start.
fn first_receive(arena: &Arena, params: &ConnectParams) -> Result<Option<Buffer>, ConnectionError> {
    let wanted = (params.first_receive > 0).then(|| arena.alloc(params.first_receive)).transpose();
    wanted.map_err(|e| ConnectionError::Local(e.to_string()))
}

fn check(params: &ConnectParams) -> Result<(), ConnectionError> {
    let bytes = params.private_data.len();
    if bytes > MAX_PRIVATE_DATA {
        let text = format!("{bytes} bytes of private data exceed the maximum of {MAX_PRIVATE_DATA}");
        return Err(ConnectionError::Local(text));
    }
    Ok(())
}

fn no_device(addr: SocketAddr) -> String {
    format!("no RDMA device has the address {} (in the simulated network, add one with add_host)", addr.ip())
}

impl Inner {
    /// Arrival time at another port of a message that is sent now.
    pub(super) fn trip(&self) -> Instant {
        Instant::from_nanos(self.now() + self.one_way())
    }

    pub(super) async fn connect(
        self: Arc<Self>,
        host: usize,
        rt: RuntimeRef,
        arena: Arena,
        to: SocketAddr,
        params: ConnectParams,
    ) -> Result<Box<dyn QueuePair>, ConnectionError> {
        check(&params)?;
        let (limit, clock, first) = (params.timeout, Arc::clone(&rt), first_receive(&arena, &params)?);
        setup_timeout(&*clock, limit, async move {
            let (reply, answer) = oneshot::channel();
            let from = self
                .address_towards(host, to, params.local_port)
                .ok_or_else(|| ConnectionError::Io(format!("no route to {to}: {}", no_device(to))))?;
            let request = ConnectRequest { host, from, to, rt, params, first, reply };
            let world = Arc::clone(&self);
            self.clock.call_at(self.trip(), Box::new(move || world.request_arrived(request)));
            answer.await.unwrap_or_else(|_| Err(ConnectionError::Rejected(Vec::new())))
        })
        .await
    }

    /// The address from which this host connects to `to`, if a host with that address exists.
    pub(super) fn address_towards(&self, host: usize, to: SocketAddr, port: LocalPort) -> Option<SocketAddr> {
        let mut net = self.net.lock();
        net.host_of(to.ip())?;
        let from = &mut net.hosts[host];
        Some(SocketAddr::new(from.ip, from.local_port(port)))
    }

    /// Processes the arrival of a request at a host.
    fn request_arrived(self: &Arc<Self>, request: ConnectRequest) {
        let mut net = self.net.lock();
        let to = request.to;
        let refused = if net.listeners.has_room(&to) == Some(false) {
            Err((request, ConnectionError::Rejected(Vec::new())))
        } else {
            let no_listener = || ConnectionError::Io(format!("no listener on {to}"));
            net.listeners.enqueue(&to, request).map_err(|request| (request, no_listener()))
        };
        drop(net);
        if let Err((request, error)) = refused {
            self.answer(request.reply, Err(error));
        }
    }

    /// Sends the result to the active end.
    fn answer(self: &Arc<Self>, reply: oneshot::Sender<SetupResult>, made: SetupResult) {
        self.clock.call_at(self.trip(), Box::new(move || drop(reply.send(made))));
    }

    /// Creates the connection when the reply arrives. Returns the passive end's queue pair.
    fn connected(self: &Arc<Self>, request: ConnectRequest, theirs: Accepted) -> SetupResult {
        let ConnectRequest { host, from, to, rt, params, first, reply } = request;
        if reply.is_canceled() {
            return Err(ConnectionError::Closed); // The active end has cancelled the attempt.
        }
        let Accepted { rt: their_rt, params: their_params, first: their_first } = theirs;
        let mut net = self.net.lock();
        let Some(their_host) = net.host_of(to.ip()) else { return Err(ConnectionError::Closed) };
        net.next_connection += 1;
        let id = net.next_connection;
        let profiles = [host, their_host].map(|h| Arc::clone(&net.hosts[h].profile));
        let most = profiles.each_ref().map(|p| p.adapter.outstanding_reads);
        let make = |side: usize, rt, host, own: &ConnectParams, peer: &ConnectParams, first| {
            let segment_bytes = profiles[side].adapter.segment_bytes;
            let access = Arc::new(RemoteAccess::new(rt, segment_bytes.into()));
            let domain = Arc::new(SimDomain::new(Arc::clone(&access), self, (id, side)));
            let ord = own.ord.min(most[side]).min(peer.ird.min(most[1 - side]));
            let info = ConnectionInfo {
                local: if side == 0 { from } else { to },
                peer: if side == 0 { to } else { from },
                ord,
                ird: own.ird.min(most[side]),
                private_data: peer.private_data.clone(),
                crc: true, // InfiniBand packets always have a CRC.
            };
            let mut capabilities = Capabilities::new("sim", true, MAX_PIECES, MAX_TRANSFER, 1);
            if segment_bytes > 0 {
                capabilities.max_segment = segment_bytes as usize;
            }
            let qp = SimQp { world: Arc::clone(self), end: (id, side), info, capabilities, domain };
            (End::new(host, access, ord, first), Box::new(qp) as Box<dyn QueuePair>)
        };
        let (a, connecting) = make(0, rt, host, &params, &their_params, first);
        let (b, accepting) = make(1, their_rt, their_host, &their_params, &params, their_first);
        net.connections.insert(id, Connection { ends: [a, b] });
        net.trace.line(self.now(), (id, 0), format_args!("connected, from host {host} to {their_host}"));
        drop(net);
        // A queue pair whose receiver is gone is dropped here, which closes its end.
        drop(reply.send(Ok(connecting)));
        Ok(accepting)
    }
}

/// The parameters of the passive end.
struct Accepted {
    rt: RuntimeRef,
    params: ConnectParams,
    first: Option<Buffer>,
}

/// A host's listener.
pub(super) struct SimListener {
    world: Arc<Inner>,
    addr: SocketAddr,
}

impl SimListener {
    pub(super) fn open(world: &Arc<Inner>, host: usize, addr: SocketAddr) -> io::Result<Self> {
        let mut net = world.net.lock();
        let Net { hosts, listeners, .. } = &mut *net;
        if hosts[host].ip != addr.ip() {
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, no_device(addr)));
        }
        let addr = listeners.open(&mut hosts[host], addr)?;
        Ok(Self { world: Arc::clone(world), addr })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Box<dyn Incoming>>> {
        let accepted = self.world.net.lock().listeners.poll_accept(&self.addr, cx);
        accepted.map_ok(|request| {
            let world = Arc::clone(&self.world);
            Box::new(SimIncoming { world, request: Some(request) }) as Box<dyn Incoming>
        })
    }
}

impl Listener for SimListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(poll_fn(|cx| self.poll_accept(cx)))
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let waiting = self.world.net.lock().listeners.close(&self.addr);
        for request in waiting {
            self.world.answer(request.reply, Err(ConnectionError::Rejected(Vec::new())));
        }
    }
}

/// A connection request that was taken from the listener. Dropping it rejects it.
struct SimIncoming {
    world: Arc<Inner>,
    request: Option<ConnectRequest>,
}

impl Incoming for SimIncoming {
    fn peer(&self) -> SocketAddr {
        self.request.as_ref().map_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)), |k| k.from)
    }

    fn accept(
        mut self: Box<Self>,
        rt: RuntimeRef,
        arena: Arena,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
        Box::pin(async move {
            check(&params)?;
            let first = first_receive(&arena, &params)?;
            let Some(request) = self.request.take() else { return Err(ConnectionError::Closed) };
            let (limit, clock) = (params.timeout, Arc::clone(&rt));
            let accepted = Accepted { rt, params, first };
            let (done, ready) = oneshot::channel::<SetupResult>();
            let world = Arc::clone(&self.world);
            let replied = move || {
                let made = world.connected(request, accepted);
                // The ready-to-use message takes another propagation delay.
                world.answer(done, made);
            };
            self.world.clock.call_at(self.world.trip(), Box::new(replied));
            setup_timeout(&*clock, limit, async move { ready.await.unwrap_or(Err(ConnectionError::Closed)) })
                .await
        })
    }

    fn reject(self: Box<Self>, reason: RejectReason) {
        tracing::debug!(peer = %self.peer(), ?reason, "connection rejected");
    }
}

impl Drop for SimIncoming {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.world.answer(request.reply, Err(ConnectionError::Rejected(Vec::new())));
        }
    }
}
