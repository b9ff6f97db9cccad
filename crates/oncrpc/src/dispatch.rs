//! From a received call to a program's procedure, and from its outcome to the reply.

use std::sync::Arc;

use millrace_runtime::MaybeReady;
use millrace_xdr::{Arena, Decoder, Encode, Encoder, Message};

use crate::{
    AcceptError, AuthStat, Call, CallHeader, CallRefusal, Credential, Fault, MAX_AUTH_BODY, Outcome, Peer,
    Program, RPC_VERSION, ReplyHeader, ReplyStatus, RpcMismatch, SMALL_REPLY, Service, Stages,
};

/// AUTH_SHORT (RFC 5531 section 8.2): a token that only the server that gave it knows; we give none.
const AUTH_SHORT: u32 = 2;

/// The programs of a server: a [`Service`] for every transport.
///
/// Checks are made in the order of RFC 5531: message type, RPC version, credential, program, version; procedure and
/// arguments are the program's. A call that is answered at once allocates nothing from the heap.
pub struct Dispatcher {
    programs: Box<[Arc<dyn Program>]>,
}

impl Dispatcher {
    /// A dispatcher for `programs`. Of two programs with one number the first is used.
    pub fn new(programs: impl IntoIterator<Item = Arc<dyn Program>>) -> Self {
        Self { programs: programs.into_iter().collect() }
    }

    fn find(&self, header: &CallHeader) -> Result<&Arc<dyn Program>, ReplyStatus> {
        if let Credential::Other(flavor) = header.cred
            && header.proc != 0
        {
            // A client that is told RejectedCred for its AUTH_SHORT sends the full credential again.
            let stat = if flavor == AUTH_SHORT { AuthStat::RejectedCred } else { AuthStat::BadCred };
            return Err(ReplyStatus::Auth(stat));
        }
        let program = self.programs.iter().find(|p| p.number() == header.prog);
        let program = program.ok_or(ReplyStatus::Accept(AcceptError::ProgUnavail))?;
        let versions = program.versions();
        if versions.contains(&header.vers) {
            return Ok(program);
        }
        let (low, high) = versions.into_inner();
        Err(ReplyStatus::Accept(AcceptError::ProgMismatch { low, high }))
    }
}

impl Service for Dispatcher {
    fn reply_bytes(&self, message: &Message) -> Option<usize> {
        let Some((prog, proc, args)) = peek(message) else { return Some(SMALL_REPLY) };
        let program = self.programs.iter().find(|p| p.number() == prog);
        program.map_or(Some(SMALL_REPLY), |p| p.reply_bytes(message, proc, args))
    }

    fn call(
        &self,
        peer: &Peer,
        message: Message,
        mut reply: Encoder,
        stages: &Stages,
    ) -> MaybeReady<'static, Option<Message>> {
        let mut d = Decoder::new(&message);
        let header = match CallHeader::decode(&mut d) {
            Ok(header) => header,
            Err(refusal) => return MaybeReady::Ready(refuse(refusal, peer, reply)),
        };
        let args_at = d.position();
        let xid = header.xid;
        let program = match self.find(&header) {
            Ok(program) => program,
            Err(status) => return MaybeReady::Ready(bare_reply(xid, status, reply)),
        };
        reply.put(&ReplyHeader { xid, status: ReplyStatus::Success });
        let call = Call { header, message, args_at, peer: *peer, stages: stages.clone() };
        let arena = reply.arena().clone();
        match program.call(call, reply) {
            MaybeReady::Ready(outcome) => MaybeReady::Ready(finish(xid, outcome, &arena)),
            MaybeReady::Pending(outcome) => {
                MaybeReady::wait(async move { finish(xid, outcome.await, &arena) })
            }
            MaybeReady::Taken => {
                let system_err = ReplyStatus::Accept(AcceptError::SystemErr);
                MaybeReady::Ready(bare_reply(xid, system_err, Encoder::new(&arena, 0)))
            }
        }
    }
}

/// Program, procedure and arguments of a call, without a look at the credential. What is malformed gets a small reply.
fn peek(message: &Message) -> Option<(u32, u32, Decoder<'_>)> {
    let mut d = Decoder::new(message);
    d.raw(12).ok()?;
    let (prog, _, proc) = (d.u32().ok()?, d.u32().ok()?, d.u32().ok()?);
    for _ in ["credential", "verifier"] {
        d.u32().ok()?;
        d.opaque(MAX_AUTH_BODY).ok()?;
    }
    Some((prog, proc, d))
}

/// The answer to a call whose arguments cannot be right.
pub(crate) fn garbage_args(message: &Message, reply: Encoder) -> Option<Message> {
    bare_reply(message.xid()?, ReplyStatus::Accept(AcceptError::GarbageArgs), reply)
}

fn refuse(refusal: CallRefusal, peer: &Peer, reply: Encoder) -> Option<Message> {
    match refusal {
        CallRefusal::NotACall => {
            tracing::debug!(peer = %peer.addr, "dropped a message that is not an RPC call");
            None
        }
        CallRefusal::RpcVersion { xid } => {
            let only = RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
            bare_reply(xid, ReplyStatus::Mismatch(only), reply)
        }
        CallRefusal::Auth { xid, stat } => bare_reply(xid, ReplyStatus::Auth(stat), reply),
    }
}

fn finish(xid: u32, outcome: Outcome, arena: &Arena) -> Option<Message> {
    let status = match outcome {
        Ok(reply) if reply.has_failed() => {
            tracing::warn!("no memory for a reply of more than {} bytes", reply.len());
            return bare_reply(xid, ReplyStatus::Accept(AcceptError::SystemErr), reply);
        }
        Ok(reply) => return reply.finish().ok(),
        Err(Fault::ProcUnavail) => ReplyStatus::Accept(AcceptError::ProcUnavail),
        Err(Fault::GarbageArgs) => ReplyStatus::Accept(AcceptError::GarbageArgs),
        Err(Fault::SystemErr) => ReplyStatus::Accept(AcceptError::SystemErr),
        Err(Fault::Auth(stat)) => ReplyStatus::Auth(stat),
        Err(Fault::Drop) => return None,
    };
    bare_reply(xid, status, Encoder::new(arena, 0))
}

/// A reply that is all header, in `reply`.
fn bare_reply(xid: u32, status: ReplyStatus, mut reply: Encoder) -> Option<Message> {
    reply.truncate(0);
    ReplyHeader { xid, status }.encode(&mut reply);
    reply.finish().ok()
}
