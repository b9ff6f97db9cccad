//! The client's side: what callers see of a transport.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use millrace_xdr::{Buffer, Message};

use crate::{AcceptError, AuthStat, ReplyHeader, ReplyStatus, RpcMismatch, Stages};

/// Why a call has no results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The connection was lost before the reply came. Whether the server executed the call is not known.
    #[error("connection to {peer} lost: {reason}")]
    Disconnected {
        /// The server.
        peer: String,
        /// What happened.
        reason: String,
    },
    /// No reply in time; the connection may be alive.
    #[error("no reply from {peer} within {after:?}")]
    TimedOut {
        /// The server.
        peer: String,
        /// How long we waited.
        after: Duration,
    },
    /// The server accepted the call but did not execute it.
    #[error("the server did not execute the call: {0:?}")]
    Accept(AcceptError),
    /// The server refused the credential.
    #[error("the server refused our credential: {0:?}; check the export's access rules")]
    Auth(AuthStat),
    /// The server speaks another RPC version.
    #[error("the server speaks RPC versions {0:?} only")]
    Mismatch(RpcMismatch),
    /// The reply breaks the protocol.
    #[error("malformed reply from {peer}: {what}")]
    BadReply {
        /// The server.
        peer: String,
        /// What is wrong with it.
        what: String,
    },
    /// The transport reports that it cannot carry this call or its reply (ERR_CHUNK, too large).
    #[error("the call cannot be carried: {0}")]
    Unsupported(String),
    /// We are out of memory or other resources.
    #[error("{0}")]
    Local(String),
}

/// What the caller knows of the reply.
#[derive(Debug, Default)]
pub struct ReplySpec {
    /// The most bytes of the whole reply message, its header included, payload excluded.
    pub max_head: usize,
    /// Memory for the reply's payload (READ data, READLINK text): the transport places the payload there directly
    /// if it can. The most bytes of payload are the buffer's length.
    pub payload: Option<Buffer>,
}

/// A call to be sent.
pub struct Request {
    /// The call message; its XID is replaced by [`Self::xid`], or by one of the transport's own.
    pub message: Message,
    /// What to expect.
    pub reply: ReplySpec,
    /// The XID to send it with, for a call that is sent again after its connection was lost: the server's duplicate
    /// request cache recognises it by that. A transport refuses one that an open call has ([`RpcError::Local`]).
    /// `None`, the ordinary case: the transport chooses.
    pub xid: Option<u32>,
    /// Its stamps.
    pub stages: Stages,
}

impl Request {
    /// A call whose XID the transport chooses, and whose stages are not timed.
    pub fn new(message: Message, reply: ReplySpec) -> Self {
        Self { message, reply, xid: None, stages: Stages::NONE }
    }
}

/// A reply that came: the whole message, checked to be the SUCCESS reply to the call.
#[derive(Debug)]
pub struct Reply {
    /// The message. A payload that was placed into [`ReplySpec::payload`] is a payload of it, backed by that memory.
    pub message: Message,
    /// Where in the head the results begin.
    pub results_at: usize,
}

impl Reply {
    /// A decoder at the start of the results.
    pub fn results(&self) -> millrace_xdr::Decoder<'_> {
        let mut d = millrace_xdr::Decoder::new(&self.message);
        let skipped = d.raw(self.results_at);
        debug_assert!(skipped.is_ok());
        d
    }
}

/// Checks that `message`, which came from `peer`, is the reply of an executed call. Whether its XID is that of a
/// call in flight is for the transport to check.
///
/// # Errors
/// What the reply says instead of success, or [`RpcError::BadReply`].
pub fn parse_reply(message: Message, peer: &dyn fmt::Display) -> Result<Reply, RpcError> {
    let mut d = millrace_xdr::Decoder::new(&message);
    let header: ReplyHeader =
        d.get().map_err(|e| RpcError::BadReply { peer: peer.to_string(), what: e.to_string() })?;
    let results_at = d.position();
    match header.status {
        ReplyStatus::Success => Ok(Reply { message, results_at }),
        ReplyStatus::Accept(e) => Err(RpcError::Accept(e)),
        ReplyStatus::Auth(stat) => Err(RpcError::Auth(stat)),
        ReplyStatus::Mismatch(versions) => Err(RpcError::Mismatch(versions)),
    }
}

/// Names a submitted call in its transport. A number is reused only after its call is gone. Its low 32 bits are the
/// XID with which the call is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallId(pub u64);

/// One connection to a server, on any transport. Calls do not wait for one another, up to the transport's credits;
/// further ones queue.
pub trait Transport: Send + Sync + 'static {
    /// Hands a call over. It is sent as soon as there is a credit.
    ///
    /// # Errors
    /// When the connection is down or the call cannot be carried.
    fn submit(&self, request: Request) -> Result<CallId, RpcError>;

    /// The reply to a submitted call, once it is there.
    fn poll_reply(&self, id: CallId, cx: &mut Context<'_>) -> Poll<Result<Reply, RpcError>>;

    /// Forgets a call. Memory that the peer could still reach is taken back before it is reused.
    fn cancel(&self, id: CallId);

    /// The most bytes of payload that one call may carry.
    fn max_payload(&self) -> usize;

    /// Why the connection is down, if it is.
    fn failure(&self) -> Option<RpcError>;

    /// Ends the connection; open calls fail.
    fn close(&self);
}

/// A submitted call, as a future that allocates nothing. Dropping it cancels the call.
pub struct PendingCall {
    transport: Arc<dyn Transport>,
    id: Result<CallId, Option<RpcError>>,
}

impl PendingCall {
    /// Submits `request` to `transport`.
    pub fn new(transport: &Arc<dyn Transport>, request: Request) -> Self {
        let id = transport.submit(request).map_err(Some);
        Self { transport: Arc::clone(transport), id }
    }

    /// The XID with which the call is sent; `None` when it was not accepted or has been answered.
    pub fn xid(&self) -> Option<u32> {
        self.id.as_ref().ok().map(|id| id.0 as u32)
    }
}

impl Future for PendingCall {
    type Output = Result<Reply, RpcError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let id = match &mut this.id {
            Ok(id) => *id,
            Err(e) => {
                let e = e.take().unwrap_or_else(|| RpcError::Local("the call was already answered".into()));
                return Poll::Ready(Err(e));
            }
        };
        let poll = this.transport.poll_reply(id, cx);
        if poll.is_ready() {
            this.id = Err(None);
        }
        poll
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Ok(id) = self.id {
            self.transport.cancel(id);
        }
    }
}
