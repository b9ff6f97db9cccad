//! Connection setup through the connection manager.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Poll, ready},
};

use millrace_buffer::Arena;
use millrace_rdma::{
    Capabilities, ConnectParams, ConnectionError, ConnectionInfo, MAX_PIECES, MAX_TRANSFER, QueuePair,
    provider::{local_address_to, setup_timeout},
};
use millrace_runtime::{LocalPort, Readiness, RuntimeRef, reserved_ports};

use super::{
    adapter::{DeviceProperties, Protection},
    cm::{CmId, Event, Parameters},
    fault,
    ffi::{Libraries, cm::*},
    hardware::Hardware,
    qp::{Parts, VerbsQp, unspecified_addr},
    queues::Shared,
    shared_receive::{Shape, SharedReceives},
};

/// Maximum private data of an InfiniBand connection request: the connection manager uses the rest for the
/// addresses (IBA volume 1, annex A11).
const MAX_REQUEST_DATA: usize = 56;
/// Maximum private data of a reply.
const MAX_ANSWER_DATA: usize = 196;
/// `IB_CM_REJ_INVALID_SERVICE_ID`: no listener.
const REJ_INVALID_SERVICE_ID: i32 = 8;

/// Waits for the next event that `take` returns when `events` is ready.
pub(super) async fn next_event(
    events: &mut dyn Readiness,
    mut take: impl FnMut() -> io::Result<Event>,
) -> io::Result<Event> {
    poll_fn(|cx| {
        let mut event = None;
        let taken = events.poll_io(cx, &mut || {
            event = Some(take()?);
            Ok(())
        });
        ready!(taken)?;
        Poll::Ready(event.ok_or_else(|| io::ErrorKind::Other.into()))
    })
    .await
}

/// Waits for the event `wanted`; any other event that reports a failure ends the wait.
async fn expect(
    events: &mut dyn Readiness,
    mut take: impl FnMut() -> io::Result<Event>,
    wanted: u32,
    peer: SocketAddr,
) -> Result<Event, ConnectionError> {
    loop {
        let event = next_event(events, &mut take).await;
        let event = event.map_err(|e| fault::of_call("wait for the connection manager", &e))?;
        if event.kind == wanted {
            return Ok(event);
        }
        if let Some(error) = failure(event, peer) {
            return Err(error);
        }
    }
}

fn no_listener(peer: SocketAddr) -> ConnectionError {
    ConnectionError::Io(format!("no RDMA listener on {peer}"))
}

/// The error for an event that ends connection setup.
fn failure(event: Event, peer: SocketAddr) -> Option<ConnectionError> {
    let reason = || match event.status {
        n if n < 0 => io::Error::from_raw_os_error(-n).to_string(),
        n => format!("status {n}"),
    };
    let text = match event.kind {
        RDMA_CM_EVENT_ADDR_ERROR => format!(
            "no RDMA device has a route to {peer} ({}); run `millrace devices` to list devices and their addresses",
            reason()
        ),
        RDMA_CM_EVENT_ROUTE_ERROR => format!("the RDMA fabric has no route to {peer} ({})", reason()),
        RDMA_CM_EVENT_UNREACHABLE => {
            format!("{peer} does not respond to RDMA connection requests ({})", reason())
        }
        RDMA_CM_EVENT_CONNECT_ERROR => format!("cannot connect to {peer} over RDMA: {}", reason()),
        RDMA_CM_EVENT_REJECTED if [REJ_INVALID_SERVICE_ID, -libc::ECONNREFUSED].contains(&event.status) => {
            return Some(no_listener(peer));
        }
        RDMA_CM_EVENT_REJECTED => return Some(ConnectionError::Rejected(event.private_data)),
        RDMA_CM_EVENT_DISCONNECTED => return Some(ConnectionError::Closed),
        RDMA_CM_EVENT_DEVICE_REMOVAL => "the RDMA device was removed".into(),
        _ => return None,
    };
    Some(ConnectionError::Io(text))
}

/// A connection during setup.
pub(super) struct PendingConnection {
    rt: RuntimeRef,
    arena: Arena,
    events: Box<dyn Readiness>,
    properties: DeviceProperties,
    shared: Arc<Shared>,
}

impl PendingConnection {
    /// Creates the queues for `id`, which is bound to a device, and posts the first receive.
    fn new(
        id: CmId,
        events: Box<dyn Readiness>,
        rt: RuntimeRef,
        arena: Arena,
        params: &ConnectParams,
    ) -> Result<Self, ConnectionError> {
        let Some(context) = id.context() else {
            return Err(ConnectionError::Io("the connection has no RDMA device".into()));
        };
        let failed = |what| move |e: io::Error| fault::of_call(what, &e);
        let properties = DeviceProperties::of(&id, context).map_err(failed("query the RDMA device"))?;
        let protection =
            Protection::of(&id, context, &properties).map_err(failed("create a protection domain"))?;
        let join = |shape| SharedReceives::join(shape, &protection, &arena);
        let receives = Shape::of(params, &properties).map(join).transpose();
        let receives = receives.map_err(failed("create a shared receive queue"))?;
        let hardware = Hardware::new(id, protection, &properties, receives);
        let hardware = hardware.map_err(failed("create a queue pair"))?;
        let shared = Shared::new(hardware, &properties);
        let this = Self { rt, arena, events, properties, shared };
        this.post_first_receive(params.first_receive)?;
        Ok(this)
    }

    fn post_first_receive(&self, bytes: usize) -> Result<(), ConnectionError> {
        if bytes == 0 {
            return Ok(());
        }
        let buffer = self.arena.alloc(bytes).map_err(|e| ConnectionError::Local(e.to_string()))?;
        let mut inner = self.shared.0.lock();
        if let Some(q) = &mut inner.queues {
            q.receives.push(buffer);
        }
        inner.post();
        inner.fault.take().map_or(Ok(()), Err)
    }

    /// Calls `f` with the identifier.
    fn with_id<T>(&self, f: impl FnOnce(&CmId) -> io::Result<T>) -> io::Result<T> {
        match &self.shared.0.lock().queues {
            Some(q) => f(&q.hardware.id),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Waits until the connection is established, and returns the event.
    async fn established(&mut self, peer: SocketAddr) -> Result<Event, ConnectionError> {
        let Self { events, shared, .. } = self;
        let take = || match &mut shared.0.lock().queues {
            Some(q) => q.hardware.id.next_event(),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        expect(&mut **events, take, RDMA_CM_EVENT_ESTABLISHED, peer).await
    }

    /// Creates the queue pair of the established connection.
    fn finish(
        self,
        peer: SocketAddr,
        ird: u8,
        ord: u8,
        private_data: Vec<u8>,
    ) -> Result<VerbsQp, ConnectionError> {
        let Self { rt, arena, events, properties, shared } = self;
        let mut inner = shared.0.lock();
        let q = inner.queues.as_mut().ok_or(ConnectionError::Closed)?;
        q.sends.set_ord(ord.into());
        if let Err(error) = q.hardware.shorten_retries() {
            tracing::warn!(%peer, %error, "cannot shorten the delay before messages without a receive are repeated");
        }
        let watched = q.hardware.fd().and_then(|fd| rt.watch(fd));
        let completions = watched.map_err(|e| fault::of_call("watch the RDMA device", &e))?;
        let info = ConnectionInfo {
            local: q.hardware.id.local_addr().unwrap_or_else(unspecified_addr),
            peer: q.hardware.id.peer_addr().unwrap_or(peer),
            ord: ord.into(),
            ird: ird.into(),
            private_data,
            // InfiniBand packets always have a CRC; iWARP devices do not report it.
            crc: !properties.iwarp,
        };
        let send_pieces = q.hardware.sizes().pieces;
        drop(inner);
        let max_transfer = MAX_TRANSFER.min(properties.max_message as usize);
        let capabilities =
            Capabilities::new("verbs", properties.send_with_invalidate, MAX_PIECES, max_transfer, 1);
        tracing::debug!(peer = %info.peer, ?properties, ird, ord, "verbs connection established");
        Ok(VerbsQp::new(shared, Parts { rt, arena, info, capabilities, send_pieces, completions, events }))
    }
}

/// Whether the device on the route to `peer` exposes memory by windows; a peer can invalidate only tags of
/// windows.
pub(super) fn has_windows(libraries: &'static Libraries, peer: SocketAddr) -> bool {
    let ask = || {
        let id = CmId::new(libraries)?;
        id.bind(local_address_to(peer)?)?;
        let context = id.context().ok_or(io::ErrorKind::NotFound)?;
        DeviceProperties::of(&id, context)
    };
    ask().is_ok_and(|properties| properties.windows)
}

/// Binds `id` to a reserved port, if this process is permitted to and one is free; otherwise leaves it
/// unbound.
fn bind_reserved(id: &CmId, peer: SocketAddr) {
    let Ok(mut local) = local_address_to(peer) else { return };
    for port in reserved_ports() {
        local.set_port(port);
        match id.bind(local) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return tracing::debug!(%peer, %error, "cannot bind a reserved port"),
            Ok(()) => return,
        }
    }
}

fn depth(n: u16) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX)
}

/// Connects to `addr` within the time limit of `params`.
pub(super) async fn connect(
    libraries: &'static Libraries,
    rt: RuntimeRef,
    arena: Arena,
    addr: SocketAddr,
    params: ConnectParams,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    let (clock, limit) = (Arc::clone(&rt), params.timeout);
    Ok(Box::new(setup_timeout(&*clock, limit, initiate(libraries, rt, arena, addr, params)).await?))
}

async fn initiate(
    libraries: &'static Libraries,
    rt: RuntimeRef,
    arena: Arena,
    addr: SocketAddr,
    params: ConnectParams,
) -> Result<VerbsQp, ConnectionError> {
    let failed = |what| move |e: io::Error| fault::of_call(what, &e);
    let mut id = CmId::new(libraries).map_err(failed("open the connection manager"))?;
    let watched = id.fd().and_then(|fd| rt.watch(fd));
    let mut events = watched.map_err(failed("watch the connection manager"))?;
    if params.local_port == LocalPort::Reserved {
        bind_reserved(&id, addr);
    }
    id.resolve_addr(addr, params.timeout).map_err(failed("find an RDMA device for the address"))?;
    expect(&mut *events, || id.next_event(), RDMA_CM_EVENT_ADDR_RESOLVED, addr).await?;
    id.resolve_route(params.timeout).map_err(failed("find a route to the peer"))?;
    expect(&mut *events, || id.next_event(), RDMA_CM_EVENT_ROUTE_RESOLVED, addr).await?;
    let mut pending = PendingConnection::new(id, events, rt, arena, &params)?;
    let most = if pending.properties.iwarp { MAX_ANSWER_DATA } else { MAX_REQUEST_DATA };
    check_private_data(&params, most)?;
    let ird = depth(params.ird).min(pending.properties.max_ird);
    let ord = depth(params.ord).min(pending.properties.max_ord);
    let parameters = Parameters { private_data: &params.private_data, ird, ord };
    pending.with_id(|id| id.connect(&parameters)).map_err(|e| match e.raw_os_error() {
        Some(libc::ECONNREFUSED) => no_listener(addr),
        _ => fault::of_call("request a connection", &e),
    })?;
    let up = pending.established(addr).await?;
    // Drivers of iWARP devices disagree about the order of the two values.
    let (ird, ord) = match pending.properties.iwarp {
        true => (ird, ord.min(up.ird).min(up.ord)),
        false => (ird.min(up.ird), ord.min(up.ord)),
    };
    pending.finish(addr, ird, ord, up.private_data)
}

fn check_private_data(params: &ConnectParams, most: usize) -> Result<(), ConnectionError> {
    match params.private_data.len() {
        n if n > most => Err(ConnectionError::Local(format!(
            "{n} bytes of private data exceed the device's maximum of {most}"
        ))),
        _ => Ok(()),
    }
}

/// Accepts the connection request `request`, whose identifier is `id`, within the time limit of `params`.
pub(super) async fn accept(
    id: CmId,
    request: Event,
    peer: SocketAddr,
    rt: RuntimeRef,
    arena: Arena,
    params: ConnectParams,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    let (clock, limit) = (Arc::clone(&rt), params.timeout);
    Ok(Box::new(setup_timeout(&*clock, limit, respond(id, request, peer, rt, arena, params)).await?))
}

async fn respond(
    id: CmId,
    request: Event,
    peer: SocketAddr,
    rt: RuntimeRef,
    arena: Arena,
    params: ConnectParams,
) -> Result<VerbsQp, ConnectionError> {
    check_private_data(&params, MAX_ANSWER_DATA)?;
    let failed = |what| move |e: io::Error| fault::of_call(what, &e);
    let watched = id.fd().and_then(|fd| rt.watch(fd));
    let events = watched.map_err(failed("watch the connection manager"))?;
    let mut pending = PendingConnection::new(id, events, rt, arena, &params)?;
    let ird = depth(params.ird).min(pending.properties.max_ird).min(request.ird);
    let ord = depth(params.ord).min(pending.properties.max_ord).min(request.ord);
    let parameters = Parameters { private_data: &params.private_data, ird, ord };
    pending.with_id(|id| id.accept(&parameters)).map_err(failed("accept a connection"))?;
    pending.established(peer).await?;
    pending.finish(peer, ird, ord, request.private_data)
}
