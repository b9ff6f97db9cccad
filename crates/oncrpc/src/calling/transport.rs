//! The transport-independent interface of a client's connection.

use super::PendingCall;
use crate::{Request, RpcError};

/// One connection to a server. Calls are independent of each other, up to the transport's limit of calls in
/// flight; further calls are queued.
pub trait Transport: Send + Sync + 'static {
    /// Submits a call. The future fails if the connection is down or the transport cannot convey the call.
    fn submit(&self, request: Request) -> PendingCall;

    /// Maximum bytes of payload of one call.
    fn max_payload(&self) -> usize;

    /// The reason why the connection is unusable, if it is.
    fn failure(&self) -> Option<RpcError>;

    /// Closes the connection; open calls fail.
    fn close(&self);
}
