//! iWARP in user space (RFC 5040, 5041, 5044, 6581) over TCP: a software RNIC.
//!
//! ```text
//! qp        posted work, connection life cycle
//!  |- tx    work -> FPDUs -> one gathering write
//!  |- rx    one scattering read -> memory, completions
//!  |- reads RDMA Reads in progress; millrace_rdma::stag has the STag table
//! connect   queue pairs over byte streams
//! setup     MPA startup
//! wire      encoding and decoding of headers
//! listen    sockets
//! ```
//!
//! A queue pair works over any [`ByteStream`](millrace_runtime::ByteStream): [`Iwarp`] uses TCP sockets;
//! [`connect_over`] and [`accept_over`] use a stream of the caller, [`connect_secured`] one that the caller encrypts.
//!
//! Choices that the RFCs leave open: no markers in either direction (a peer that requires them is rejected,
//! as by Linux's siw); CRC only if one end requests it; tagged offsets of exposed regions begin at 0; tags
//! are valid on one connection only.

mod connect;
mod fault;
mod listen;
mod nudge;
mod qp;
mod reads;
mod receives;
mod rx;
mod setup;
#[cfg(test)]
mod tests;
mod tx;
mod wire;

use std::net::{SocketAddr, TcpListener};

use millrace_buffer::Arena;
use millrace_rdma::{ConnectParams, ConnectionError, Listener, Provider, QueuePair, stag::StagTables};
use millrace_runtime::{BoxFuture, RuntimeRef};

pub use self::{
    connect::{accept_over, connect_over},
    listen::connect_secured,
};

/// The iWARP provider: a software RNIC over TCP sockets.
#[derive(Clone, Default)]
pub struct Iwarp {
    tags: StagTables,
}

impl Iwarp {
    /// Creates a provider whose connections share no state.
    pub fn new() -> Self {
        Self::default()
    }

    /// **Insecure, for demonstrations and tests of attacks.** All connections of this provider share one STag
    /// table, and STag indexes are consecutive, as on an adapter with one protection domain for all clients
    /// that numbers its regions. A peer that knows one STag can guess the others and access memory exposed to
    /// other peers (TR06, "server buffers exposed"). No command line, configuration file or URL selects this
    /// provider.
    pub fn insecure_with_predictable_shared_tags() -> Self {
        Self { tags: StagTables::insecure_shared_and_predictable() }
    }

    /// **Insecure, for demonstrations and tests of attacks.** With the STag of
    /// [`millrace_rdma::RegistrationKind::Global`], a peer can write not only to exposed memory but anywhere in the
    /// arena spans that contain it, including memory of other owners. On an adapter such an STag permits
    /// access to the whole arena at any time. No command line, configuration file or URL selects this
    /// provider.
    pub fn insecure_with_whole_spans() -> Self {
        Self { tags: StagTables::insecure_whole_spans() }
    }

    /// Listens for connections on `listener`, a listening socket that does not block, for example one that a service
    /// manager has opened.
    ///
    /// # Errors
    /// When the socket has no address.
    pub fn listen_on(&self, rt: RuntimeRef, listener: TcpListener) -> std::io::Result<Box<dyn Listener>> {
        Ok(Box::new(listen::IwarpListener::new(rt, listener, self.tags.clone())?))
    }
}

impl Provider for Iwarp {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn connect(
        &self,
        rt: RuntimeRef,
        _arena: Arena,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
        Box::pin(listen::connect(rt, addr, params, self.tags.clone()))
    }

    fn listen(&self, rt: RuntimeRef, addr: SocketAddr) -> std::io::Result<Box<dyn Listener>> {
        Ok(Box::new(listen::IwarpListener::bind(rt, addr, self.tags.clone())?))
    }
}
