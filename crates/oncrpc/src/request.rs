//! Calls and replies, as callers and transports exchange them.

use std::{fmt, time::Duration};

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
    /// The call message; the transport replaces its XID.
    pub message: Message,
    /// The expected reply.
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
