//! Connection requests.

use std::net::SocketAddr;

use futures::channel::oneshot;
use millrace_buffer::Buffer;
use millrace_rdma::{ConnectParams, ConnectionError, QueuePair};
use millrace_runtime::RuntimeRef;

/// The queue pair of one end of a new connection, or why there is none.
pub(super) type Made = Result<Box<dyn QueuePair>, ConnectionError>;

/// A connection request. Those of a listener wait until they are accepted.
pub(super) struct ConnectRequest {
    pub(super) host: usize,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) rt: RuntimeRef,
    pub(super) params: ConnectParams,
    /// The receive that its owner posted before the connection was there.
    pub(super) first: Option<Buffer>,
    pub(super) reply: oneshot::Sender<Made>,
}
