//! From a received call to a program's procedure, and from its outcome to the reply.

use std::sync::Arc;

use runtime::MaybeReady;
use xdr::{Arena, Decoder, Encode, Encoder, Message};

use crate::{
    AcceptError, AuthStat, Call, CallHeader, CallRefusal, Credential, Fault, Outcome, Peer, Program,
    RPC_VERSION, ReplyHeader, ReplyStatus, RpcMismatch, Service, Stages,
};

/// Room for the header and the results of nearly every procedure, payload apart, so that the head does not grow.
const REPLY_HINT: usize = 256;
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
    fn call(
        &self,
        peer: &Peer,
        message: Message,
        arena: &Arena,
        stages: &Stages,
    ) -> MaybeReady<'static, Option<Message>> {
        let mut d = Decoder::new(&message);
        let header = match CallHeader::decode(&mut d) {
            Ok(header) => header,
            Err(refusal) => return MaybeReady::Ready(refuse(refusal, peer, arena)),
        };
        let args_at = d.position();
        let xid = header.xid;
        let program = match self.find(&header) {
            Ok(program) => program,
            Err(status) => return MaybeReady::Ready(bare_reply(xid, status, arena)),
        };
        let mut reply = Encoder::new(arena, REPLY_HINT);
        reply.put(&ReplyHeader { xid, status: ReplyStatus::Success });
        let call = Call { header, message, args_at, peer: *peer, stages: stages.clone() };
        match program.call(call, reply) {
            MaybeReady::Ready(outcome) => MaybeReady::Ready(finish(xid, outcome, arena)),
            MaybeReady::Pending(outcome) => {
                let arena = arena.clone();
                MaybeReady::wait(async move { finish(xid, outcome.await, &arena) })
            }
            MaybeReady::Taken => {
                MaybeReady::Ready(bare_reply(xid, ReplyStatus::Accept(AcceptError::SystemErr), arena))
            }
        }
    }
}

fn refuse(refusal: CallRefusal, peer: &Peer, arena: &Arena) -> Option<Message> {
    match refusal {
        CallRefusal::NotACall => {
            tracing::debug!(peer = %peer.addr, "dropped a message that is not an RPC call");
            None
        }
        CallRefusal::RpcVersion { xid } => {
            let only = RpcMismatch { low: RPC_VERSION, high: RPC_VERSION };
            bare_reply(xid, ReplyStatus::Mismatch(only), arena)
        }
        CallRefusal::Auth { xid, stat } => bare_reply(xid, ReplyStatus::Auth(stat), arena),
    }
}

fn finish(xid: u32, outcome: Outcome, arena: &Arena) -> Option<Message> {
    let status = match outcome {
        Ok(reply) => match reply.finish() {
            Ok(message) => return Some(message),
            Err(e) => {
                tracing::warn!("no memory for a reply: {e}");
                ReplyStatus::Accept(AcceptError::SystemErr)
            }
        },
        Err(Fault::ProcUnavail) => ReplyStatus::Accept(AcceptError::ProcUnavail),
        Err(Fault::GarbageArgs) => ReplyStatus::Accept(AcceptError::GarbageArgs),
        Err(Fault::SystemErr) => ReplyStatus::Accept(AcceptError::SystemErr),
        Err(Fault::Auth(stat)) => ReplyStatus::Auth(stat),
        Err(Fault::Drop) => return None,
    };
    bare_reply(xid, status, arena)
}

/// A reply that is all header. `None` when the arena has no room even for that: the client then times out.
fn bare_reply(xid: u32, status: ReplyStatus, arena: &Arena) -> Option<Message> {
    let mut e = Encoder::new(arena, 0);
    ReplyHeader { xid, status }.encode(&mut e);
    e.finish().ok()
}
