//! A test program behind the duplicate request cache, with the order of checks of the NFS program.

use std::sync::Arc;

use millrace_buffer::Arena;
use millrace_nfs::v3::Status;
use millrace_oncrpc::{
    CallContext, Dispatcher, Fault, LastSender, MaybeReady, Message, Outcome, Peer, Program, ReceivedCall,
    Results,
};
use millrace_xdr::Encoder;

use super::{Disposition, DuplicateRequestCache};

/// The procedures of a test.
pub(super) trait Procedures: Send + Sync + 'static {
    /// Admits the caller, or returns the rejection.
    fn admit(&self, call: &CallContext) -> Result<(), Refusal>;

    /// Executes the call.
    fn execute(&self, call: &CallContext, reply: Encoder) -> MaybeReady<'static, Result<Encoder, Fault>>;
}

/// The rejection of a call.
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
    cache: Arc<DuplicateRequestCache>,
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
        match self.cache.look_up_or_start(&call, reply) {
            Disposition::Execute(entry, reply) => match self.procedures.execute(&call, reply) {
                MaybeReady::Ready(outcome) => MaybeReady::Ready(entry.finish(outcome)),
                other => MaybeReady::wait(async move { entry.finish(other.await) }),
            },
            Disposition::Retransmission(outcome) => outcome,
            Disposition::TryLater(reply) => {
                MaybeReady::Ready(Refusal::Nfs(Status::Jukebox).answer(reply).map(Results::from))
            }
        }
    }
}

/// A server of these procedures with a duplicate request cache.
pub(super) struct TestServer {
    dispatcher: Dispatcher,
    pub(super) cache: Arc<DuplicateRequestCache>,
}

impl TestServer {
    pub(super) fn new(procedures: impl Procedures, cache: DuplicateRequestCache) -> Self {
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
        let received = ReceivedCall::parse(message, &mut LastSender::new(*peer), &self.dispatcher);
        received.execute(&self.dispatcher, Encoder::new(arena, 64))
    }
}
