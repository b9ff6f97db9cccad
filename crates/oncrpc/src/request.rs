//! Calls and replies at the interface between callers and transports.

use std::{fmt, time::Duration};

use millrace_xdr::{Buffer, Message};

use crate::{AcceptError, AuthStat, ReplyHeader, ReplyStatus, RpcMismatch, Stages, gss::CallSeal};

/// The reason why a call has no results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The connection was lost before the reply was received. The server may have executed the call.
    #[error("connection to {peer} lost: {reason}")]
    Disconnected {
        /// Address of the server.
        peer: String,
        /// Cause of the loss.
        reason: String,
    },
    /// No reply within the time limit; the connection may be usable.
    #[error("no reply from {peer} within {after:?}")]
    TimedOut {
        /// Address of the server.
        peer: String,
        /// The time limit.
        after: Duration,
    },
    /// The server accepted the call but did not execute it.
    #[error("the server did not execute the call: {0:?}")]
    Accept(AcceptError),
    /// The server rejected the credential.
    #[error("the server rejected the credential: {0:?}; check the export's access rules")]
    Auth(AuthStat),
    /// The server does not support RPC version 2.
    #[error("the server supports RPC versions {0:?} only")]
    Mismatch(RpcMismatch),
    /// The reply violates the protocol.
    #[error("malformed reply from {peer}: {what}")]
    BadReply {
        /// Address of the server.
        peer: String,
        /// The violation.
        what: String,
    },
    /// The transport cannot convey this call or its reply (ERR_CHUNK, or the message is too large).
    #[error("the transport cannot convey the call: {0}")]
    Unsupported(String),
    /// A local error, such as lack of memory.
    #[error("{0}")]
    Local(String),
}

/// Memory for the reply.
#[derive(Debug, Default)]
pub struct ReplySpec {
    /// Maximum bytes of the whole reply, header included, payload excluded.
    pub max_head: usize,
    /// Memory for the reply's payload (READ data, READLINK text), whose length is the maximum size of the
    /// payload. The transport places the payload there directly if it can.
    pub payload: Option<Buffer>,
    /// Bytes of a successful reply before the payload, header included, if they are known; otherwise 0. A transport
    /// without placement by the peer (TCP) then receives the payload directly to its memory. Another reply is received
    /// correctly, and its payload elsewhere.
    pub payload_offset: usize,
}

/// A call to be sent.
pub struct Request {
    /// The call message; the transport replaces its XID.
    pub message: Message,
    /// The memory for the reply.
    pub reply: ReplySpec,
    /// XID of a call that is retransmitted after the loss of its connection, by which the server's duplicate
    /// request cache recognizes it. A transport rejects the XID of an open call with [`RpcError::Local`].
    /// `None`: the transport selects the XID.
    pub xid: Option<u32>,
    /// What protects the call and its reply, which are encoded with an AUTH_NONE credential; `None`: nothing.
    pub seal: Option<CallSeal>,
    /// Stages of the call.
    pub stages: Stages,
}

impl Request {
    /// Creates a call whose XID the transport selects, without recording of stages.
    pub fn new(message: Message, reply: ReplySpec) -> Self {
        Self { message, reply, xid: None, seal: None, stages: Stages::NONE }
    }
}

/// A successful reply.
#[derive(Debug)]
pub struct Reply {
    /// The whole message. A payload that was placed in [`ReplySpec::payload`] is backed by that memory.
    pub message: Message,
    /// Offset of the results in the head, in bytes.
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

/// Checks that `message` from `peer` is a successful reply. The transport must compare the XID with those of
/// the calls in flight.
///
/// # Errors
/// The status of the reply, or [`RpcError::BadReply`].
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
