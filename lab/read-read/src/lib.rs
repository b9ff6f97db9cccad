//! The Read-Read design of NFS over RDMA (Callaghan 2003, the first OpenSolaris transport; RFC 5666): all bulk data
//! moves by RDMA Read. For experiments: the papers compare it with the design of RFC 8166, Read-Write.
//!
//! Calls are conveyed as in RFC 8166, without chunks for results. The responder exposes long results and long replies
//! in its own memory and lists them in the *reply's* Read list. The requester reads them, READ data directly into the
//! caller's buffer, and sends RDMA_DONE, at which the responder revokes the memory. [`ReadRead`] is selected as the
//! protocol of a client and of a server; both ends must use it. It has no calls in the reverse direction.
//!
//! **Security.** While a reply is unacknowledged, a client that holds or guesses its tag on that connection
//! can read the responder's memory, and a requester that sends no RDMA_DONE holds the memory. The responder
//! limits the regions, the bytes and the time. (Tags of the iWARP provider are random and valid on one
//! connection only.)
//!
//! RFC 5666 specifies that an RDMA_DONE consumes a credit. In this implementation a call whose reply has Read
//! chunks keeps its credit until its RDMA_DONE is sent, and the responder posts one additional receive for
//! each.

mod counts;
mod design;
mod padding;
mod private_data;
mod requester;
mod responder;

use std::{sync::Arc, time::Duration};

use millrace_buffer::Arena;
use millrace_rdma::{ConnectParams, ConnectionError, QueuePair};
use millrace_rpcrdma::{
    Accepted, Protocol, RequesterConfig, RequesterTransport, ResponderConfig, ResponderStats,
};
use millrace_runtime::{BoxFuture, RuntimeRef};

pub use self::{
    counts::Counts, design::Design, padding::Padding, requester::Requester, responder::Responder,
};

/// Limits of the memory that a responder exposes on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExposureLimits {
    /// Maximum number of regions.
    pub regions: usize,
    /// Maximum number of bytes.
    pub bytes: usize,
    /// Time limit for RDMA_DONE after a reply. When it expires, the connection is closed and its memory
    /// revoked.
    pub done_timeout: Duration,
}

impl Default for ExposureLimits {
    fn default() -> Self {
        Self { regions: 1024, bytes: 128 << 20, done_timeout: Duration::from_secs(30) }
    }
}

/// The protocol, with its settings at either end.
#[derive(Debug, Clone, Default)]
pub struct ReadRead {
    /// Limits of the memory that a responder exposes.
    pub exposure: ExposureLimits,
    /// Padding of a requester's inline calls with payloads, which are sent as RDMA_MSGP.
    pub padding: Option<Padding>,
    /// The counters of all connections of this value and of its clones.
    pub counts: Arc<Counts>,
}

impl Protocol for ReadRead {
    fn name(&self) -> &'static str {
        Design::ReadRead.name()
    }

    fn connect_params(&self, config: &RequesterConfig) -> ConnectParams {
        let private_data = private_data::encode(&config.private_data()).to_vec();
        ConnectParams { private_data, ..config.connect_params() }
    }

    fn requester(
        &self,
        qp: Box<dyn QueuePair>,
        rt: RuntimeRef,
        arena: Arena,
        config: RequesterConfig,
    ) -> Result<Arc<dyn RequesterTransport>, ConnectionError> {
        Ok(Requester::from_queue_pair(qp, rt, arena, config, self.clone())?)
    }

    fn accept_params(&self, config: &ResponderConfig, base: ConnectParams) -> ConnectParams {
        let private_data = private_data::encode(&config.private_data()).to_vec();
        ConnectParams { private_data, ..config.connect_params(base) }
    }

    fn serve(
        &self,
        connection: Accepted,
        config: ResponderConfig,
        stats: Arc<ResponderStats>,
        stop: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, Result<(), ConnectionError>> {
        match Responder::new(connection, config, self.clone(), stats) {
            Ok(responder) => Box::pin(responder.run_until(stop)),
            Err(e) => Box::pin(std::future::ready(Err(e))),
        }
    }
}
