//! The requester: the client's end of a connection.
//!
//! The [`driver`] owns the queue pair, and [`millrace_oncrpc::Calls`] matches calls and replies. A call's memory is
//! exposed when there is a credit to send it, and revoked before its caller gets the reply, a timeout, or the loss of the
//! connection. The memory of a cancelled call stays exposed, and is not reused, until the reply comes or the call times out:
//! an RDMA Write to a tag that is revoked would cost the connection, and so all other calls.

mod config;
mod demand;
mod driver;
mod marshal;
mod stats;

use std::{net::SocketAddr, sync::Arc};

use millrace_buffer::Arena;
use millrace_oncrpc::{Calls, Connection, PendingCall, Request, RpcError, Submissions, Transport};
use millrace_rdma::{ConnectionError, Counters, DomainRef, GLOBAL_PAGE, Provider, QueuePair};
use millrace_runtime::RuntimeRef;

pub(crate) use self::marshal::{CallMemory, Marshaller, Recovered};
pub use self::{
    config::RequesterConfig,
    stats::{RequesterStats, RequesterStatsSnapshot},
};
use self::{demand::Demand, driver::Driver, marshal::Terms};
use crate::{
    private_data::{PrivateData, Thresholds},
    registration::Strategy,
};

/// The most calls that may wait on one connection.
const MAX_CALLS: usize = 1 << 16;

/// One RPC-over-RDMA connection to a server. Dropping it closes the connection.
pub struct Requester {
    connection: Connection<Driver>,
    peer: SocketAddr,
    stats: Arc<RequesterStats>,
    domain: DomainRef,
    terms: Terms,
    max_transfer: usize,
}

impl Requester {
    /// Connects to `addr` and starts the connection's driver on `rt`.
    ///
    /// # Errors
    /// When there is no connection.
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
        Self::over(qp, rt, arena, config)
    }

    /// Takes over a connection that was made with [`RequesterConfig::connect_params`].
    ///
    /// # Errors
    /// When there is no memory.
    pub fn over(
        qp: Box<dyn QueuePair>,
        rt: RuntimeRef,
        arena: Arena,
        config: RequesterConfig,
    ) -> Result<Arc<Self>, ConnectionError> {
        let config = config.clamped();
        let theirs = PrivateData::decode(&qp.info().private_data);
        let thresholds = Thresholds::negotiate(&config.private_data(), theirs.as_ref());
        let local = config.registration.local(qp.domain(), &rt);
        let design = config.design.requesting(theirs.as_ref(), qp.info().ord, local)?;
        // As many as are put before an item at most.
        let zeros = vec![0; config.padding.map_or(4, |p| p.align as usize)];
        let zeros = arena.copy_from(&zeros).map_err(|e| ConnectionError::Local(e.to_string()))?;
        let stats = Arc::new(RequesterStats::default());
        let domain =
            if config.measure_exposure { stats.exposure.meter(qp.domain(), &rt) } else { qp.domain() };
        let (peer, max_transfer) = (qp.info().peer, qp.capabilities().max_transfer);
        let region_pieces = qp.capabilities().max_region_pieces.max(1);
        let settings = config.registration.settings();
        // What is copied lies in one piece, whatever it was.
        let region_pieces = if settings.strategy == Strategy::Cache { usize::MAX } else { region_pieces };
        let adapters = qp.capabilities().max_segment.max(1);
        let segment =
            if settings.strategy == Strategy::AllPhysical { adapters.min(GLOBAL_PAGE) } else { adapters };
        let terms = Terms { design: config.design, thresholds, region_pieces, segment };
        let lending = config.registration.attach(Arc::clone(&domain), arena.clone(), Arc::clone(&rt))?;
        let marshaller = Marshaller {
            arena,
            terms,
            lending,
            credits: 1,
            padding: config.padding,
            zeros,
            stats: Arc::clone(&stats),
        };
        let submissions = Submissions::new(peer);
        let calls = Calls::new(Arc::clone(&submissions), Arc::clone(&rt), MAX_CALLS, config.call_timeout);
        let demand = Demand::new(config.credits);
        let driver = Driver::new(calls, qp, design, marshaller, demand, config.inline_size, Arc::clone(&rt));
        Ok(Arc::new(Self {
            connection: Connection::start(&rt, "rpcrdma requester", submissions, driver),
            peer,
            stats,
            domain,
            terms,
            max_transfer: config.max_transfer.min(max_transfer).min(terms.max_payload()),
        }))
    }

    /// The server's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The inline thresholds that were negotiated.
    pub fn thresholds(&self) -> Thresholds {
        self.terms.thresholds
    }

    /// The counters.
    pub fn stats(&self) -> RequesterStatsSnapshot {
        RequesterStatsSnapshot { cancelled: self.connection.cancelled(), ..self.stats.snapshot() }
    }

    /// The queue pair's counters; `None` once the connection is gone.
    pub fn counters(&self) -> Option<Counters> {
        self.connection.inspect(Driver::counters)
    }

    /// How many regions the server can reach now, and their bytes.
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

    fn failure(&self) -> Option<RpcError> {
        self.connection.failure()
    }

    fn close(&self) {
        self.connection.close();
    }
}
