//! The requester: the client's end of a connection.
//!
//! Callers submit calls to a shared table and are woken with their replies; the [`driver`] owns the queue pair. A
//! call's memory is exposed when there is a credit to send it, and revoked before its caller hears of the reply, of a
//! timeout, or of the loss of the connection. The memory of a call that is cancelled belongs to nobody until the reply
//! comes or the call's time is up.

mod config;
mod demand;
mod driver;
mod marshal;
mod state;
mod stats;

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use millrace_buffer::Arena;
use millrace_oncrpc::{CallId, Reply, Request, RpcError, Transport};
use millrace_rdma::{ConnectionError, Counters, DomainRef, GLOBAL_PAGE, Provider, QueuePair};
use millrace_runtime::{RuntimeExt, RuntimeRef, poll_gathering};
use parking_lot::Mutex;

pub(crate) use self::marshal::{CallMemory, Marshaller, Recovered};
pub use self::{
    config::RequesterConfig,
    stats::{RequesterStats, RequesterStatsSnapshot},
};
use self::{demand::Demand, driver::Driver, marshal::Terms, state::State};
use crate::{
    counters::add,
    private_data::{PrivateData, Thresholds},
    registration::Strategy,
};

/// What callers and the driver share.
struct Shared {
    state: Mutex<State>,
    /// Taken by the driver's task, and by a caller that finds the connection idle. Locked before `state`.
    driver: Mutex<Driver>,
    peer: SocketAddr,
    rt: RuntimeRef,
    call_timeout: Duration,
    stats: Arc<RequesterStats>,
}

impl Shared {
    /// Stores a call's outcome and wakes its caller.
    fn finish(&self, id: CallId, result: Result<Reply, RpcError>) {
        let finished = self.state.lock().calls.finish(id, result);
        drop(finished.and_then(millrace_oncrpc::Finished::wake));
    }

    /// As [`Self::finish`], for a call that was sent: its credit is free.
    fn answer(&self, id: CallId, result: Result<Reply, RpcError>) {
        let mut state = self.state.lock();
        state.answered();
        let finished = state.calls.finish(id, result);
        drop(state);
        drop(finished.and_then(millrace_oncrpc::Finished::wake));
    }

    fn register_driver(&self, waker: &Waker) {
        let mut state = self.state.lock();
        match &mut state.driver {
            Some(w) => w.clone_from(waker),
            None => state.driver = Some(waker.clone()),
        }
    }

    fn lost(&self, reason: &str) -> RpcError {
        RpcError::Disconnected { peer: self.peer.to_string(), reason: reason.into() }
    }
}

/// One RPC-over-RDMA connection to a server. Dropping it closes the connection.
pub struct Requester {
    shared: Arc<Shared>,
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
        let domain = stats.exposure.meter(qp.domain(), &rt);
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
        // A new connection does not repeat the XIDs of the last one, which the server may remember.
        let state = State::new(rt.random_u64() as u32);
        let demand = Demand::new(config.credits);
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            driver: Mutex::new(Driver::new(qp, design, marshaller, demand, config.inline_size)),
            peer,
            rt: Arc::clone(&rt),
            call_timeout: config.call_timeout,
            stats,
        });
        let task = DriverTask(Arc::clone(&shared));
        rt.spawn("rpcrdma requester", Box::pin(task.run()));
        Ok(Arc::new(Self {
            shared,
            domain,
            terms,
            max_transfer: config.max_transfer.min(max_transfer).min(terms.max_payload()),
        }))
    }

    /// The server's address.
    pub fn peer(&self) -> SocketAddr {
        self.shared.peer
    }

    /// The inline thresholds that were negotiated.
    pub fn thresholds(&self) -> Thresholds {
        self.terms.thresholds
    }

    /// The counters.
    pub fn stats(&self) -> RequesterStatsSnapshot {
        self.shared.stats.snapshot()
    }

    /// The queue pair's counters; `None` once the connection is gone.
    pub fn counters(&self) -> Option<Counters> {
        self.shared.driver.lock().qp.as_ref().map(|qp| qp.counters())
    }

    /// How many regions the server can reach now, and their bytes.
    pub fn exposed(&self) -> (usize, usize) {
        self.domain.exposed()
    }

    fn wake_driver(&self) {
        // Cloned, so that the waker runs outside the lock.
        let waker = self.shared.state.lock().driver.clone();
        if let Some(w) = waker {
            w.wake();
        }
    }
}

impl Transport for Requester {
    fn submit(&self, request: Request) -> Result<CallId, RpcError> {
        let shared = &*self.shared;
        let shape = marshal::check(&self.terms, &request.message, &request.reply)?;
        let now = shared.rt.now();
        let deadline = now + shared.call_timeout;
        let mut state = shared.state.lock();
        if state.closing && state.failure.is_none() {
            return Err(shared.lost("closed by this side"));
        }
        let id = state.enqueue(request, shape, deadline)?;
        let driver = state.driver.clone();
        let (idle, may_send) =
            (state.in_flight == 0 && state.queue.len() == 1, state.in_flight < state.limit);
        drop(state);
        // An idle connection sends at once, from here. A busy one leaves it to the driver, whose one wake-up then
        // serves all callers that submit meanwhile; without a credit the next reply brings the driver here anyway.
        let Some(waker) = driver.filter(|_| may_send) else { return Ok(id) };
        if idle && let Some(mut d) = shared.driver.try_lock() {
            let _batch = shared.stats.exposure.batch_at(now);
            d.send_now(shared, &mut Context::from_waker(&waker));
        } else {
            waker.wake();
        }
        Ok(id)
    }

    fn poll_reply(&self, id: CallId, cx: &mut Context<'_>) -> Poll<Result<Reply, RpcError>> {
        self.shared.state.lock().calls.poll(id, cx)
    }

    fn cancel(&self, id: CallId) {
        let stage = self.shared.state.lock().cancel(id);
        if stage.is_some() {
            add(&self.shared.stats.cancelled, 1);
        }
        // Dropped outside the lock: a queued call's buffers go back to their arena.
        drop(stage);
    }

    fn max_payload(&self) -> usize {
        self.max_transfer
    }

    fn failure(&self) -> Option<RpcError> {
        self.shared.state.lock().failure.clone()
    }

    fn close(&self) {
        self.shared.state.lock().closing = true;
        self.wake_driver();
    }
}

impl Drop for Requester {
    fn drop(&mut self) {
        self.close();
    }
}

/// The driver's task. When its runtime drops it, the connection ends with it and its callers hear of that.
struct DriverTask(Arc<Shared>);

impl DriverTask {
    async fn run(self) {
        let may_send = || self.0.state.lock().may_send();
        poll_gathering(may_send, |cx| self.0.driver.lock().poll(&self.0, cx)).await;
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        let mut driver = self.0.driver.lock();
        if driver.qp.is_some() {
            driver.end(&self.0, &ConnectionError::Local("the runtime of the connection ended".into()));
        }
    }
}
