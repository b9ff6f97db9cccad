//! iWARP in user space (RFC 5040, 5041, 5044, 6581) over TCP: an RNIC in software.
//!
//! ```text
//! qp       posted work, and how a connection ends
//!  |- tx   work -> FPDUs -> one gathering write
//!  |- rx   one scattering read -> memory, completions
//!  |- reads   RDMA Reads in progress; [`millrace_rdma::stag`] has the STags and what the peer may access
//! setup    MPA start-up
//! wire     the bytes
//! listen   the sockets
//! ```
//!
//! A queue pair works over any [`ByteStream`]: [`Iwarp`] gives it TCP sockets, [`connect_over`] and [`accept_over`]
//! take whatever the caller has.
//!
//! Choices where the RFCs leave one: no markers, in either direction (a peer that wants them is refused, as Linux's
//! siw does); CRC only if one end asks; tagged offsets of exposed regions begin at 0; tags belong to one connection,
//! so the tag of another connection is simply unknown.

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
use millrace_runtime::{BoxFuture, ByteStream, RuntimeRef};

use self::qp::IwarpQp;

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

    /// **Deliberately weak: for demonstrations and tests of attacks alone.** All connections of this provider have one
    /// table of tags, and tags follow one another, as with an adapter whose protection domain all clients of a server
    /// share and which numbers its regions. A peer that knows one tag guesses the others, and reaches what was exposed
    /// to other peers (TR06, "server buffers exposed"). Nothing that a server or client is told on a command line, in a
    /// file or in a URL makes this provider.
    pub fn insecure_with_predictable_shared_tags() -> Self {
        Self { tags: StagTables::insecure_shared_and_predictable() }
    }

    /// **Deliberately weak: for demonstrations and tests of attacks alone.** By the tag of
    /// [`millrace_rdma::Means::Global`] a peer writes not only to what is exposed at the moment, but wherever it likes in the spans of the arena in which that
    /// lies, to memory of other owners too: a part of what it reaches on an adapter, where that is all of the arena, at
    /// any time. Nothing that a server or client is told on a command line, in a file or in a URL makes this provider.
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

/// Makes a connection over `stream` as the MPA initiator (the end that opened the stream).
///
/// # Errors
/// As [`Provider::connect`].
pub async fn connect_over(
    rt: RuntimeRef,
    _arena: Arena,
    stream: Box<dyn ByteStream>,
    params: ConnectParams,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    initiate(rt, stream, params, StagTables::default()).await
}

async fn initiate(
    rt: RuntimeRef,
    mut stream: Box<dyn ByteStream>,
    params: ConnectParams,
    tags: StagTables,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    let agreed = setup::initiate(&rt, &mut *stream, &params).await?;
    Ok(Box::new(IwarpQp::new(rt, stream, &params, agreed, tags)))
}

/// Makes a connection over `stream` as the MPA responder.
///
/// # Errors
/// As [`millrace_rdma::Incoming::accept`].
pub async fn accept_over(
    rt: RuntimeRef,
    _arena: Arena,
    stream: Box<dyn ByteStream>,
    params: ConnectParams,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    respond(rt, stream, params, StagTables::default()).await
}

async fn respond(
    rt: RuntimeRef,
    mut stream: Box<dyn ByteStream>,
    params: ConnectParams,
    tags: StagTables,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    let agreed = setup::respond(&rt, &mut *stream, &params).await?;
    Ok(Box::new(IwarpQp::new(rt, stream, &params, agreed, tags)))
}
