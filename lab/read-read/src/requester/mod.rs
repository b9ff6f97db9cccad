//! The requester: the client's end of a connection.
//!
//! The [`driver`] owns the queue pair, and [`millrace_oncrpc::Calls`] matches calls and replies, as in the requester of
//! RFC 8166, whose [`Marshaller`] exposes the arguments of calls. The [`reader`] reads the chunks of replies.

mod driver;
mod marshal;
mod reader;

use std::{net::SocketAddr, sync::Arc};

use millrace_buffer::Arena;
use millrace_oncrpc::{
    CallbackHandler, Calls, Connection, PendingCall, Request, RpcError, Submissions, Transport,
};
use millrace_rdma::{ConnectionError, Counters, DomainRef, QueuePair};
use millrace_rpcrdma::{
    Marshaller, RequesterConfig, RequesterStats, RequesterStatsSnapshot, RequesterTransport, Thresholds,
};
use millrace_runtime::RuntimeRef;

use self::{driver::Driver, marshal::Outbox, reader::Reader};
use crate::{ReadRead, private_data};

/// Maximum number of queued calls on one connection.
const MAX_CALLS: usize = 1 << 16;

/// One connection to a server. Dropping it closes the connection.
pub struct Requester {
    connection: Connection<Driver>,
    stats: Arc<RequesterStats>,
    domain: DomainRef,
    max_transfer: usize,
}

impl Requester {
    /// Starts a requester on a queue pair that was connected with [`connect_params`](millrace_rpcrdma::Protocol::connect_params).
    ///
    /// # Errors
    /// The arena has no memory, the server uses another design or serves no RDMA Reads, or the registration strategy
    /// is rejected.
    pub fn from_queue_pair(
        qp: Box<dyn QueuePair>,
        rt: RuntimeRef,
        arena: Arena,
        config: RequesterConfig,
        protocol: ReadRead,
    ) -> Result<Arc<Self>, ConnectionError> {
        let config = config.clamped();
        let theirs = peer_data(&*qp)?;
        let thresholds = Thresholds::negotiate(&config.private_data(), Some(&theirs));
        let reader = Reader::new(config.registration.local(qp.domain(), &rt), Arc::clone(&protocol.counts));
        let stats = Arc::new(RequesterStats::default());
        let domain =
            if config.measure_exposure { stats.exposure.meter(qp.domain(), &rt) } else { qp.domain() };
        let (peer, max_transfer): (SocketAddr, _) = (qp.info().peer, qp.capabilities().max_transfer);
        let marshaller = Marshaller::new(
            &*qp,
            &config,
            thresholds,
            Arc::clone(&domain),
            arena,
            Arc::clone(&rt),
            Arc::clone(&stats),
        )?;
        let max_transfer = config.max_transfer.min(max_transfer).min(marshaller.max_payload());
        let outbox = Outbox::new(marshaller, protocol)?;
        let submissions = Submissions::new(peer);
        let calls = Calls::new(Arc::clone(&submissions), Arc::clone(&rt), MAX_CALLS, config.call_timeout);
        let driver = Driver::new(calls, qp, reader, outbox, &config, Arc::clone(&rt));
        let connection = Connection::start(&rt, "read-read requester", submissions, driver);
        Ok(Arc::new(Self { connection, stats, domain, max_transfer }))
    }

    /// Number of regions that the server can access now, and their total bytes.
    pub fn exposed(&self) -> (usize, usize) {
        self.domain.exposed()
    }
}

/// The private data of a responder of this design.
fn peer_data(qp: &dyn QueuePair) -> Result<millrace_rpcrdma::PrivateData, ConnectionError> {
    let mismatch = |what: &str| Err(ConnectionError::Incompatible(what.into()));
    match private_data::decode(&qp.info().private_data) {
        None => mismatch(
            "it does not offer the Read-Read design; use the design read-write, or start the server with millrace-lab \
             serve --design read-read",
        ),
        Some(_) if qp.info().ord == 0 => {
            mismatch("it serves no RDMA Reads, which the Read-Read design needs")
        }
        Some(theirs) => Ok(theirs),
    }
}

impl Transport for Requester {
    fn submit(&self, request: Request) -> PendingCall {
        self.connection.submit(request)
    }

    fn max_payload(&self) -> usize {
        self.max_transfer
    }

    /// The design has no calls in the reverse direction.
    fn handle_callbacks(&self, _: &Arc<dyn CallbackHandler>) {}

    fn failure(&self) -> Option<RpcError> {
        self.connection.failure()
    }

    fn close(&self) {
        self.connection.close();
    }
}

impl RequesterTransport for Requester {
    fn counters(&self) -> Option<Counters> {
        self.connection.inspect(Driver::counters)
    }

    fn stats(&self) -> RequesterStatsSnapshot {
        RequesterStatsSnapshot { cancelled: self.connection.cancelled(), ..self.stats.snapshot() }
    }
}
