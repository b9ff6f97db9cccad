//! The requester: the client's end of a connection.
//!
//! The [`driver`] owns the queue pair, and [`millrace_oncrpc::Calls`] matches calls and replies. A call's
//! memory is exposed when a credit is available to send the call, and revoked before the caller gets the
//! reply, a timeout or the loss of the connection. The memory of a cancelled call stays exposed, and is not
//! reused, until its reply arrives or the call times out: an RDMA Write to a revoked tag would terminate the
//! connection and fail all other calls.

mod config;
mod demand;
mod driver;
mod marshal;
mod returned;
mod reverse;

use std::{net::SocketAddr, sync::Arc};

use millrace_buffer::Arena;
use millrace_oncrpc::{
    CallbackHandler, CallbackHandlerRef, Calls, Connection, PendingCall, Request, RpcError, Submissions,
    Transport,
};
use millrace_runtime::RuntimeRef;

use self::driver::Driver;
pub use self::{
    config::RequesterConfig,
    demand::CreditDemand,
    marshal::{Marshaller, Outgoing},
};
use crate::{
    counters::{RequesterStats, RequesterStatsSnapshot},
    private_data::{PrivateData, Thresholds},
};
use millrace_rdma::{ConnectionError, Counters, DomainRef, Provider, QueuePair};

/// Maximum number of queued calls on one connection.
const MAX_CALLS: usize = 1 << 16;

/// One RPC-over-RDMA connection to a server. Dropping it closes the connection.
pub struct Requester {
    connection: Connection<Driver>,
    handler: CallbackHandlerRef,
    peer: SocketAddr,
    stats: Arc<RequesterStats>,
    domain: DomainRef,
    thresholds: Thresholds,
    max_transfer: usize,
}

impl Requester {
    /// Connects to `addr` and starts the connection's driver on `rt`.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn connect(
        provider: &dyn Provider,
        rt: RuntimeRef,
        arena: Arena,
        addr: SocketAddr,
        mut config: RequesterConfig,
    ) -> Result<Arc<Self>, ConnectionError> {
        config.remote_invalidate &= provider.can_be_invalidated(addr);
        let params = config.connect_params();
        let qp = provider.connect(Arc::clone(&rt), arena.clone(), addr, params).await?;
        Self::from_queue_pair(qp, rt, arena, config)
    }

    /// Starts a requester on a queue pair that was connected with [`RequesterConfig::connect_params`].
    ///
    /// # Errors
    /// The arena has no memory, or the registration strategy is rejected.
    pub fn from_queue_pair(
        qp: Box<dyn QueuePair>,
        rt: RuntimeRef,
        arena: Arena,
        config: RequesterConfig,
    ) -> Result<Arc<Self>, ConnectionError> {
        let config = config.clamped();
        let theirs = PrivateData::decode(&qp.info().private_data);
        let thresholds = Thresholds::negotiate(&config.private_data(), theirs.as_ref());
        let stats = Arc::new(RequesterStats::default());
        let domain =
            if config.measure_exposure { stats.exposure.meter(qp.domain(), &rt) } else { qp.domain() };
        let (peer, max_transfer) = (qp.info().peer, qp.capabilities().max_transfer);
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
        let submissions = Submissions::new(peer);
        let calls = Calls::new(Arc::clone(&submissions), Arc::clone(&rt), MAX_CALLS, config.call_timeout);
        let handler = CallbackHandlerRef::default();
        let driver = Driver::new(calls, qp, marshaller, &config, Arc::clone(&handler), Arc::clone(&rt));
        Ok(Arc::new(Self {
            connection: Connection::start(&rt, "rpcrdma requester", submissions, driver),
            handler,
            peer,
            stats,
            domain,
            thresholds,
            max_transfer,
        }))
    }

    /// The server's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The negotiated inline thresholds.
    pub fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> RequesterStatsSnapshot {
        RequesterStatsSnapshot { cancelled: self.connection.cancelled(), ..self.stats.snapshot() }
    }

    /// The queue pair's counters; `None` after the end of the connection.
    pub fn counters(&self) -> Option<Counters> {
        self.connection.inspect(Driver::counters)
    }

    /// Number of regions that the server can access now, and their total bytes.
    pub fn exposed(&self) -> (usize, usize) {
        self.domain.exposed()
    }
}

impl Transport for Requester {
    fn submit(&self, request: Request) -> PendingCall {
        self.connection.submit(request)
    }

    fn max_payload(&self) -> usize {
        self.max_transfer
    }

    fn handle_callbacks(&self, handler: &Arc<dyn CallbackHandler>) {
        *self.handler.lock() = Some(Arc::clone(handler));
    }

    fn failure(&self) -> Option<RpcError> {
        self.connection.failure()
    }

    fn close(&self) {
        self.connection.close();
    }
}
