//! A program behind the cache, for tests: it does with each call what the NFS program does.

use std::sync::Arc;

use millrace_buffer::Arena;
use millrace_nfs::v3::Status;
use millrace_oncrpc::{
    CallContext, Dispatcher, Fault, MaybeReady, Message, Outcome, Peer, Program, ReceivedCall, Results,
    Stages,
};
use millrace_xdr::Encoder;

use super::{Begun, ReplyCache};

/// What a test executes.
pub(super) trait Procedures: Send + Sync + 'static {
    /// Whether the caller is admitted; otherwise, what it is answered.
    fn admit(&self, call: &CallContext) -> Result<(), Refusal>;

    /// Executes the call.
    fn execute(&self, call: &CallContext, reply: Encoder) -> MaybeReady<'static, Result<Encoder, Fault>>;
}

/// How a call is refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    Rpc(Fault),
    Nfs(Status),
}

impl Refusal {
    pub(super) fn answer(self, mut reply: Encoder) -> Result<Encoder, Fault> {
        match self {
            Self::Rpc(fault) => Err(fault),
            Self::Nfs(status) => {
                reply.put(&status);
                Ok(reply)
            }
        }
    }
}

struct Cached<P> {
    procedures: P,
    cache: Arc<ReplyCache>,
}

impl<P: Procedures> Program for Cached<P> {
    fn number(&self) -> u32 {
        millrace_nfs::v3::PROGRAM
    }

    fn versions(&self) -> std::ops::RangeInclusive<u32> {
        3..=3
    }

    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Outcome> {
        if let Err(refusal) = self.procedures.admit(&call) {
            return MaybeReady::Ready(refusal.answer(reply).map(Results::from));
        }
        match self.cache.begin(&call, reply) {
            Begun::Execute(entry, reply) => match self.procedures.execute(&call, reply) {
                MaybeReady::Ready(outcome) => MaybeReady::Ready(entry.finish(outcome)),
                other => MaybeReady::wait(async move { entry.finish(other.await) }),
            },
            Begun::Retransmission(outcome) => outcome,
            Begun::TryLater(reply) => {
                MaybeReady::Ready(Refusal::Nfs(Status::Jukebox).answer(reply).map(Results::from))
            }
        }
    }
}

/// A server of these procedures, behind its cache.
pub(super) struct Front {
    dispatcher: Dispatcher,
    pub(super) cache: Arc<ReplyCache>,
}

impl Front {
    pub(super) fn new(procedures: impl Procedures, cache: ReplyCache) -> Self {
        let cache = Arc::new(cache);
        let program: Arc<dyn Program> = Arc::new(Cached { procedures, cache: Arc::clone(&cache) });
        Self { dispatcher: Dispatcher::new([program]), cache }
    }

    /// Executes the call in `message`.
    pub(super) fn call(
        &self,
        peer: &Peer,
        message: Message,
        arena: &Arena,
    ) -> MaybeReady<'static, Option<Message>> {
        let received = ReceivedCall::parse(message, peer, &self.dispatcher);
        received.execute(&self.dispatcher, &Stages::NONE, Encoder::new(arena, 64))
    }
}
