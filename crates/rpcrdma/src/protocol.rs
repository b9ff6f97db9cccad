//! The protocol of a connection, as clients and servers select it.

use std::{fmt, ops::Deref, sync::Arc};

use millrace_buffer::Arena;
use millrace_oncrpc::Transport;
use millrace_rdma::{ConnectParams, ConnectionError, Counters, QueuePair};
use millrace_runtime::{BoxFuture, RuntimeRef};

use crate::{
    Accepted, Requester, RequesterConfig, RequesterStatsSnapshot, Responder, ResponderConfig, ResponderStats,
};

/// A protocol that conveys calls over queue pairs. A client and a server select one; that of this crate is
/// [`Rfc8166`], the default. It decides once for each connection, and takes no part in calls.
pub trait Protocol: Send + Sync + 'static {
    /// Name in figures. Protocols with the same name are equal.
    fn name(&self) -> &'static str;

    /// The parameters with which a requester connects.
    fn connect_params(&self, config: &RequesterConfig) -> ConnectParams;

    /// Starts a requester on a queue pair that was connected with [`Self::connect_params`].
    ///
    /// # Errors
    /// Those of [`Requester::from_queue_pair`]; and if the responder has another protocol.
    fn requester(
        &self,
        qp: Box<dyn QueuePair>,
        rt: RuntimeRef,
        arena: Arena,
        config: RequesterConfig,
    ) -> Result<Arc<dyn RequesterTransport>, ConnectionError>;

    /// The parameters with which a responder accepts connections; those of the lower layer are in `base`.
    fn accept_params(&self, config: &ResponderConfig, base: ConnectParams) -> ConnectParams;

    /// Serves a connection that was accepted with [`Self::accept_params`], as [`Responder::run_until`].
    ///
    /// # Errors
    /// The reason for the end of the connection, unless the peer closed it or it was idle.
    fn serve(
        &self,
        connection: Accepted,
        config: ResponderConfig,
        stats: Arc<ResponderStats>,
        stop: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, Result<(), ConnectionError>>;
}

/// A requester's transport, with its counters.
pub trait RequesterTransport: Transport {
    /// The queue pair's counters; `None` after the end of the connection.
    fn counters(&self) -> Option<Counters>;

    /// A snapshot of the requester's counters.
    fn stats(&self) -> RequesterStatsSnapshot;
}

impl RequesterTransport for Requester {
    fn counters(&self) -> Option<Counters> {
        self.counters()
    }

    fn stats(&self) -> RequesterStatsSnapshot {
        self.stats()
    }
}

/// RPC-over-RDMA version 1: [`Requester`] and [`Responder`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Rfc8166;

impl Protocol for Rfc8166 {
    /// The end that reads arguments and the one that writes results are the same: the responder.
    fn name(&self) -> &'static str {
        "read-write"
    }

    fn connect_params(&self, config: &RequesterConfig) -> ConnectParams {
        config.connect_params()
    }

    fn requester(
        &self,
        qp: Box<dyn QueuePair>,
        rt: RuntimeRef,
        arena: Arena,
        config: RequesterConfig,
    ) -> Result<Arc<dyn RequesterTransport>, ConnectionError> {
        Ok(Requester::from_queue_pair(qp, rt, arena, config)?)
    }

    fn accept_params(&self, config: &ResponderConfig, base: ConnectParams) -> ConnectParams {
        config.connect_params(base)
    }

    fn serve(
        &self,
        connection: Accepted,
        config: ResponderConfig,
        stats: Arc<ResponderStats>,
        stop: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, Result<(), ConnectionError>> {
        match Responder::new(connection, config, stats) {
            Ok(responder) => Box::pin(responder.run_until(stop)),
            Err(e) => Box::pin(std::future::ready(Err(e))),
        }
    }
}

/// A selected [`Protocol`].
#[derive(Clone)]
pub struct ProtocolRef(Arc<dyn Protocol>);

impl ProtocolRef {
    /// Selects `protocol`.
    pub fn new(protocol: impl Protocol) -> Self {
        Self(Arc::new(protocol))
    }
}

impl Default for ProtocolRef {
    fn default() -> Self {
        Self::new(Rfc8166)
    }
}

impl Deref for ProtocolRef {
    type Target = dyn Protocol;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for ProtocolRef {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for ProtocolRef {}

impl fmt::Debug for ProtocolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
