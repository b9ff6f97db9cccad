//! Connection requests.

use std::net::SocketAddr;

use futures::channel::oneshot;
use millrace_buffer::Buffer;
use millrace_rdma::{ConnectParams, ConnectionError, QueuePair};
use millrace_runtime::RuntimeRef;

/// The queue pair of one end of a new connection, or the error.
pub(super) type SetupResult = Result<Box<dyn QueuePair>, ConnectionError>;

/// A connection request. It waits at its listener until it is accepted.
pub(super) struct ConnectRequest {
    pub(super) host: usize,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) rt: RuntimeRef,
    pub(super) params: ConnectParams,
    /// The receive that was posted before connection setup.
    pub(super) first: Option<Buffer>,
    pub(super) reply: oneshot::Sender<SetupResult>,
}
