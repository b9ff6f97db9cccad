//! The transport-independent interface of a client's connection.

use std::sync::Arc;

use millrace_runtime::sync::Mutex;
use millrace_xdr::Message;

use super::PendingCall;
use crate::{Request, RpcError};

/// Answers the calls of a server to a client, which NFSv4.1 makes on the client's connections (RFC 8881 section
/// 2.10.3.1).
pub trait CallbackHandler: Send + Sync + 'static {
    /// The reply to `call`; both begin with the XID. `None` drops the call. The connection's task waits for this, so that it
    /// must return at once.
    fn answer(&self, call: &Message) -> Option<Message>;
}

/// The handler of the calls that a connection receives, if there is one.
pub type CallbackHandlerRef = Arc<Mutex<Option<Arc<dyn CallbackHandler>>>>;

/// One connection to a server. Calls are independent of each other, up to the transport's limit of calls in
/// flight; further calls are queued.
pub trait Transport: Send + Sync + 'static {
    /// Submits a call. The future fails if the connection is down or the transport cannot convey the call.
    fn submit(&self, request: Request) -> PendingCall;

    /// Maximum bytes of payload of one call.
    fn max_payload(&self) -> usize;

    /// Has `handler` answer the calls of the server from now on. Without a handler the transport drops them.
    fn handle_callbacks(&self, handler: &Arc<dyn CallbackHandler>);

    /// The reason why the connection is unusable, if it is.
    fn failure(&self) -> Option<RpcError>;

    /// Closes the connection; open calls fail.
    fn close(&self);
}
