//! iWARP in user space (RFC 5040, 5041, 5044, 6581) over TCP: an RNIC in software.
//!
//! ```text
//! qp       posted work, and how a connection ends
//!  |- tx   work -> FPDUs -> one gathering write
//!  |- rx   one scattering read -> memory, completions
//!  |- reads   RDMA Reads in progress; millrace_rdma::stag has the STags and what the peer may access
//! connect  queue pairs over byte streams
//! setup    MPA start-up
//! wire     the bytes
//! listen   the sockets
//! ```
//!
//! A queue pair works over any [`ByteStream`](millrace_runtime::ByteStream): [`Iwarp`] gives it TCP sockets,
//! [`connect_over`] and [`accept_over`] take the stream of the caller.
//!
//! Choices where the RFCs leave one: no markers, in either direction (a peer that wants them is refused, as Linux's
//! siw does); CRC only if one end asks; tagged offsets of exposed regions begin at 0; tags belong to one connection,
//! so the tag of another connection is simply unknown.

mod connect;
mod fault;
mod listen;
mod nudge;
mod qp;
mod reads;
mod rx;
mod setup;
#[cfg(test)]
mod tests;
mod tx;
mod wire;

use std::net::SocketAddr;

use millrace_buffer::Arena;
use millrace_rdma::{ConnectParams, ConnectionError, Listener, Provider, QueuePair, stag::StagTables};
use millrace_runtime::{BoxFuture, RuntimeRef};

pub use self::connect::{accept_over, connect_over};

/// The iWARP provider: an RNIC in software, over ordinary TCP sockets.
#[derive(Clone, Default)]
pub struct Iwarp {
    tags: StagTables,
}

impl Iwarp {
    /// The provider. Connections have nothing in common.
    pub fn new() -> Self {
        Self::default()
    }

    /// **Insecure, for demonstrations and tests of attacks.** All connections of this provider share one STag table, and
    /// STag indexes are consecutive, as on an adapter with one protection domain for all clients that numbers its regions.
    /// A peer that knows one STag can guess the others and reach memory exposed to other peers (TR06, "server buffers
    /// exposed"). No command line, configuration file or URL selects this provider.
    pub fn insecure_with_predictable_shared_tags() -> Self {
        Self { tags: StagTables::insecure_shared_and_predictable() }
    }

    /// **Insecure, for demonstrations and tests of attacks.** The STag of [`millrace_rdma::Means::Global`] lets a peer
    /// write not only to the memory that is exposed now, but anywhere in the spans of the arena that contain it, also to
    /// memory of other owners. On an adapter such an STag reaches the whole arena at any time. No command line,
    /// configuration file or URL selects this provider.
    pub fn insecure_with_spans_behind_the_global_tag() -> Self {
        Self { tags: StagTables::insecure_whole_spans() }
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
