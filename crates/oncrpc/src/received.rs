//! A received message before its execution.

use std::sync::Arc;

use millrace_runtime::{MaybeReady, RuntimeRef};
use millrace_xdr::{Arena, Encoder, Message};

use crate::{
    AcceptError, AuthStat, CallContext, CallHeaderError, Credential, LastSender, RPC_VERSION, ReplyStatus,
    RpcMismatch, SMALL_REPLY, Service, Stages,
    gss::{GssCall, GssServer, LastContext},
    message::{AUTH_TLS, RPCSEC_GSS, bare_reply},
};

/// Bytes of a probe for TLS: a header with empty credential and verifier, and nothing else.
const PROBE_BYTES: usize = 40;

/// A received message with a decoded RPC header. A server decodes call headers here only.
pub struct ReceivedCall {
    parsed: Result<CallContext, CallHeaderError>,
    /// Of a call with a verified credential of RPCSEC_GSS.
    gss: Option<GssCall>,
}

impl ReceivedCall {
    /// Decodes the RPC header of `message`, and has `service` look at the arguments. `last` is the sender of the
    /// connection's last call, and becomes that of this one.
    #[inline]
    pub fn parse(message: Message, last: &mut LastSender, service: &dyn Service) -> Self {
        let mut parsed = CallContext::parse(message, last);
        match &mut parsed {
            Ok(call) => call.plan = service.plan(call),
            Err(error) => {
                tracing::debug!(peer = %last.peer().addr, ?error, "received a message without a valid call header");
            }
        }
        Self { parsed, gss: None }
    }

    /// Whether the credential is one of RPCSEC_GSS, which is not verified.
    pub(crate) fn has_gss(&self) -> bool {
        matches!(&self.parsed, Ok(call) if matches!(call.sender.credential, Credential::Other(RPCSEC_GSS)))
    }

    /// Verifies a call with a credential of RPCSEC_GSS, opens its arguments, and has `service` look at them. `last` is the
    /// security context of the connection's last call, and becomes that of this one. Without an acceptor of security
    /// contexts, the flavor is unsupported.
    #[inline(never)] // Keeps it out of the path of calls without RPCSEC_GSS.
    pub(crate) fn verify(
        &mut self,
        gss: &Arc<GssServer>,
        last: &mut LastContext,
        service: &dyn Service,
        rt: &RuntimeRef,
        arena: &Arena,
    ) {
        let Ok(call) = &mut self.parsed else { return };
        if !gss.is_enabled() {
            return;
        }
        match gss.receive(call, last, rt, arena) {
            Ok(verified) => {
                if verified.is_for_program() {
                    call.plan = service.plan(call);
                    call.plan.reply_bytes = call.plan.reply_bytes.map(|bytes| verified.reply_bytes(bytes));
                }
                self.gss = Some(verified);
            }
            Err(stat) => self.parsed = Err(CallHeaderError::Auth { xid: call.header.xid, stat }),
        }
    }

    /// Whether the call is discarded and ends its connection (RFC 2203 section 5.3.3.1).
    pub fn is_discarded(&self) -> bool {
        matches!(self.gss, Some(GssCall::Discarded))
    }

    /// Whether the message is an RPC message: a call or a reply.
    pub fn is_rpc(&self) -> bool {
        !matches!(self.parsed, Err(CallHeaderError::NotRpc))
    }

    /// Whether the call is a probe for TLS (RFC 9289 section 4.1): a NULL procedure with AUTH_TLS.
    pub(crate) fn is_tls_probe(&self) -> bool {
        matches!(&self.parsed, Ok(call) if call.header.proc == 0
            && call.sender.credential == Credential::Other(AUTH_TLS))
    }

    /// The transaction id of a probe for TLS. `None`: it is rejected with BADCRED when it is executed, because it has a
    /// credential or verifier with a body, or arguments, or the connection has TLS.
    pub(crate) fn tls_probe(&mut self, has_tls: bool) -> Option<u32> {
        let Ok(call) = &self.parsed else { return None };
        let xid = call.header.xid;
        if has_tls || call.message().stream_len() != PROBE_BYTES {
            self.parsed = Err(CallHeaderError::Auth { xid, stat: AuthStat::BadCred });
            return None;
        }
        Some(xid)
    }

    /// Maximum size of the reply in bytes. `None`: the arguments are invalid, and the reply is GARBAGE_ARGS.
    pub fn reply_bytes(&self) -> Option<usize> {
        match &self.parsed {
            Ok(call) => call.plan.reply_bytes.map(|bytes| bytes as usize),
            Err(_) => Some(SMALL_REPLY),
        }
    }

    /// Attributes `stages` to the call.
    #[cold]
    pub(crate) fn identify(&self, stages: &Stages) {
        if let Ok(call) = &self.parsed {
            stages.set_xid(call.header.xid);
            stages.set_class(call.plan.class);
        }
    }

    /// Executes the call, or rejects it according to RFC 5531 section 9. Returns the reply, or `None` if none
    /// is sent. The reply is encoded in `reply`, which is empty.
    pub fn execute(self, service: &dyn Service, reply: Encoder) -> MaybeReady<'static, Option<Message>> {
        let (xid, status) = match self.parsed {
            Ok(call) if self.gss.is_some() => {
                let runs = call.plan.reply_bytes.is_some();
                return match self.gss {
                    Some(gss) => gss.execute(call, runs, service, reply),
                    None => MaybeReady::Ready(None),
                };
            }
            Ok(call) if call.plan.reply_bytes.is_some() => return service.call(call, reply),
            Ok(call) => (call.header.xid, ReplyStatus::Accept(AcceptError::GarbageArgs)),
            Err(CallHeaderError::NotRpc | CallHeaderError::NotACall) => return MaybeReady::Ready(None),
            Err(CallHeaderError::RpcVersion { xid }) => {
                (xid, ReplyStatus::Mismatch(RpcMismatch { low: RPC_VERSION, high: RPC_VERSION }))
            }
            Err(CallHeaderError::Auth { xid, stat }) => (xid, ReplyStatus::Auth(stat)),
        };
        MaybeReady::Ready(bare_reply(xid, status, reply))
    }
}
