//! What callers see of a connection.

use super::PendingCall;
use crate::{Request, RpcError};

/// One connection to a server, on any transport. Calls do not wait for one another, up to the transport's limit of calls in
/// flight; further ones queue.
pub trait Transport: Send + Sync + 'static {
    /// Submits a call. The future fails when the connection is down or the call cannot be carried.
    fn submit(&self, request: Request) -> PendingCall;

    /// The most bytes of payload that one call may carry.
    fn max_payload(&self) -> usize;

    /// Why the connection cannot be used, if it cannot.
    fn failure(&self) -> Option<RpcError>;

    /// Closes the connection; open calls fail.
    fn close(&self);
}
