//! A received message between its arrival and its execution.

use millrace_runtime::MaybeReady;
use millrace_xdr::{Encoder, Message};

use crate::{
    AcceptError, CallContext, CallRefusal, Peer, RPC_VERSION, ReplyStatus, RpcMismatch, SMALL_REPLY, Service,
    Stages, dispatch::bare_reply,
};

/// A message that arrived on a connection, with its RPC header decoded. This is the only place where a server decodes the
/// header of a call.
pub struct ReceivedCall {
    parsed: Result<CallContext, CallRefusal>,
    reply_bytes: Option<usize>,
}

impl ReceivedCall {
    /// Decodes the RPC header of `message`, which `peer` has sent, and asks `service` for the size of the reply.
    pub fn parse(message: Message, peer: &Peer, service: &dyn Service) -> Self {
        let parsed = CallContext::parse(message, peer);
        let reply_bytes = match &parsed {
            Ok(call) => service.reply_bytes(call),
            Err(refusal) => {
                tracing::debug!(peer = %peer.addr, ?refusal, "received a message without a valid call header");
                Some(SMALL_REPLY)
            }
        };
        Self { parsed, reply_bytes }
    }

    /// Whether the message is an RPC message at all: a call, or a reply.
    pub fn is_rpc(&self) -> bool {
        !matches!(self.parsed, Err(CallRefusal::NotRpc))
    }

    /// The maximum size of the reply in bytes. `None`: the arguments are invalid, and the call is answered with
    /// GARBAGE_ARGS.
    pub fn reply_bytes(&self) -> Option<usize> {
        self.reply_bytes
    }

    /// Executes the call, or refuses it as RFC 5531 section 9 demands. Returns the reply message, `None` if there is none
    /// to send. The reply is built in `reply`, which is empty; the stages of the call are recorded in `stages`.
    pub fn execute(
        self,
        service: &dyn Service,
        stages: &Stages,
        reply: Encoder,
    ) -> MaybeReady<'static, Option<Message>> {
        let (xid, status) = match self.parsed {
            Ok(mut call) if self.reply_bytes.is_some() => {
                call.stages = stages.clone();
                return service.call(call, reply);
            }
            Ok(call) => (call.header.xid, ReplyStatus::Accept(AcceptError::GarbageArgs)),
            Err(CallRefusal::NotRpc | CallRefusal::NotACall) => return MaybeReady::Ready(None),
            Err(CallRefusal::RpcVersion { xid }) => {
                (xid, ReplyStatus::Mismatch(RpcMismatch { low: RPC_VERSION, high: RPC_VERSION }))
            }
            Err(CallRefusal::Auth { xid, stat }) => (xid, ReplyStatus::Auth(stat)),
        };
        MaybeReady::Ready(bare_reply(xid, status, reply))
    }
}
