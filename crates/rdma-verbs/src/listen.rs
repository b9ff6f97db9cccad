//! Listening, and connection requests that can move between shards.

use std::{io, net::SocketAddr};

use millrace_buffer::Arena;
use millrace_rdma::{
    ConnectParams, ConnectionError, Incoming, Listener, QueuePair, RejectReason, provider::pause_if_exhausted,
};
use millrace_runtime::{BoxFuture, Readiness, RuntimeRef};

use super::{
    cm::{CmId, Event},
    ffi::Libraries,
    qp::unspecified_addr,
    setup,
};

/// Maximum number of connection requests that the kernel queues.
const BACKLOG: i32 = 1024;

/// A listening identifier.
pub(super) struct VerbsListener {
    rt: RuntimeRef,
    addr: SocketAddr,
    id: CmId,
    events: Box<dyn Readiness>,
}

impl VerbsListener {
    /// Binds `addr`: the address of a device, or the unspecified address for all devices.
    pub(super) fn bind(libraries: &'static Libraries, rt: RuntimeRef, addr: SocketAddr) -> io::Result<Self> {
        let id = CmId::new(libraries)?;
        let no_device = || {
            let text = format!(
                "no RDMA device has the address {}; run `millrace devices` to list devices",
                addr.ip()
            );
            io::Error::new(io::ErrorKind::AddrNotAvailable, text)
        };
        id.bind(addr).map_err(|e| match e.raw_os_error() {
            Some(libc::ENODEV | libc::EADDRNOTAVAIL) => no_device(),
            _ => e,
        })?;
        // A loopback address can be bound although no device has it.
        if !addr.ip().is_unspecified() && id.context().is_none() {
            return Err(no_device());
        }
        id.listen(BACKLOG)?;
        let events = rt.watch(id.fd()?)?;
        Ok(Self { rt, addr: id.local_addr().unwrap_or(addr), id, events })
    }

    async fn next(&mut self) -> io::Result<Box<dyn Incoming>> {
        loop {
            let id = &mut self.id;
            match setup::next_event(&mut *self.events, || id.next_event()).await {
                Ok(mut event) => match event.request.take() {
                    Some(id) => {
                        return Ok(Box::new(VerbsIncoming {
                            peer: id.peer_addr().unwrap_or_else(unspecified_addr),
                            id,
                            event,
                        }));
                    }
                    None => tracing::debug!(addr = %self.addr, kind = event.kind, "event of a listener"),
                },
                Err(e) if pause_if_exhausted(&self.rt, self.addr, &e).await => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Listener for VerbsListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Incoming>>> {
        Box::pin(self.next())
    }
}

/// A connection request. Dropping it rejects the peer.
struct VerbsIncoming {
    peer: SocketAddr,
    id: CmId,
    event: Event,
}

impl Incoming for VerbsIncoming {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn accept(
        self: Box<Self>,
        rt: RuntimeRef,
        arena: Arena,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
        let Self { peer, id, event } = *self;
        Box::pin(setup::accept(id, event, peer, rt, arena, params))
    }

    fn reject(self: Box<Self>, reason: RejectReason) {
        tracing::debug!(peer = %self.peer, ?reason, "connection rejected");
        if let Err(error) = self.id.reject() {
            tracing::debug!(peer = %self.peer, %error, "cannot reject a connection");
        }
    }
}
