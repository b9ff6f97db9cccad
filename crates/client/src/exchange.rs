//! The calls of all versions of NFS, with reconnection, retransmission and recovery ([`crate::retransmission`]).

use std::{borrow::Cow, future::Future, sync::Arc};

use millrace_buffer::Buffer;
use millrace_oncrpc::{
    AuthStat, Reply, ReplySpec, Request, RpcError, Stage, Stages, Transport,
    gss::{CallSeal, GssError},
};
use millrace_xdr::{Encode, Encoder};

use crate::{
    Error,
    credential::CallCredential,
    pool::{CallSpec, Pool, Retry},
    retry::{Event, How, Next, Recovery, State},
    stats::add,
};

/// What a call of a protocol sends, and what the replies mean. [`Pool::call`] runs it: it takes a [slot](Self::slot),
/// [encodes](Self::encode) the request and [evaluates](Self::evaluate) the reply. [`crate::retry`] selects what is next:
/// the same in the same slot, or again from the beginning, perhaps after a [recovery](Self::recover).
pub(crate) trait Exchange: Send {
    /// The results, or the status of a failure.
    type Result: Send;
    /// What identifies a request beside its XID, on all connections, from its first transmission to its reply.
    type Slot: Send;
    /// Whether the server executes a request in a slot once, however often it is sent.
    const EXACTLY_ONCE: bool;

    /// Takes a slot, when there is one.
    fn slot(&mut self) -> impl Future<Output = Result<Self::Slot, Error>> + Send;

    /// Whether the next request in the slot settles what became of an earlier one of another call, and is not that of the
    /// call.
    fn settles(&self, _slot: &Self::Slot) -> bool {
        false
    }

    /// The credential of the next request in the slot.
    fn credential(&self, slot: &Self::Slot) -> &CallCredential;

    /// The properties of the next request in the slot.
    fn spec(&self, slot: &Self::Slot) -> CallSpec;

    /// Encodes the next request in the slot with its header, the same one for each transmission.
    fn encode(&mut self, slot: &mut Self::Slot, e: &mut Encoder);

    /// Evaluates the reply.
    ///
    /// # Errors
    /// The call ends with them.
    fn evaluate(
        &mut self,
        slot: &mut Self::Slot,
        reply: Reply,
    ) -> impl Future<Output = Result<Verdict<Self::Result>, Error>> + Send;

    /// Binds a connection to the session.
    fn bind(&self, _transport: &Arc<dyn Transport>) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// Recovers what the server has lost. `false`: the call ends with the reply that has reported it.
    fn recover(&mut self, _lost: Recovery) -> impl Future<Output = Result<bool, Error>> + Send {
        async { Ok(true) }
    }
}

/// What became of a transmission.
pub(crate) struct Verdict<R> {
    event: Event,
    /// The reason of a retry.
    why: Cow<'static, str>,
    /// The result of the call, if the transmission is the last one.
    result: Option<R>,
}

impl<R> Verdict<R> {
    /// The reply with this result ends the call.
    pub(crate) fn done(result: R) -> Self {
        Self { event: Event::Answered, why: Cow::Borrowed(""), result: Some(result) }
    }

    /// The request must be sent again.
    pub(crate) fn again(event: Event, why: impl Into<Cow<'static, str>>) -> Self {
        Self { event, why: why.into(), result: None }
    }

    /// The call ends with this result if no further attempt is permitted, instead of [`Error::Unreachable`].
    pub(crate) fn or(self, result: R) -> Self {
        Self { result: Some(result), ..self }
    }
}

/// The reply to a call.
pub(crate) struct Answer<R> {
    pub(crate) result: R,
    /// Whether the server may have executed the call before.
    pub(crate) resent: bool,
}

/// A request until its reply.
struct Sent<S> {
    slot: S,
    /// The XID of its first transmission.
    xid: Option<u32>,
    /// Number of security contexts with which the server has refused it.
    refused: u32,
}

/// Maximum number of security contexts that a server may refuse for one request (RFC 2203 section 5.3.3.3).
const MAX_REFUSED: u32 = 2;

impl Pool {
    /// Makes a call, within the deadline of `retry`. `payload` is the buffer for the reply's payload; further
    /// transmissions have new ones of the same length.
    ///
    /// What the first transmission on an established connection does not need is boxed: it is rare, and would enlarge the
    /// future of every call.
    ///
    /// # Errors
    /// [`Error::Unreachable`] after the deadline, unless the last reply has a result; those of the recovery;
    /// [`Error::Closed`]; failures that another transmission does not cure.
    pub(crate) async fn call<X: Exchange>(
        &self,
        retry: &mut Retry<'_>,
        exchange: &mut X,
        mut payload: Option<Buffer>,
    ) -> Result<Answer<X::Result>, Error> {
        let payload_len = payload.as_ref().map(|b| b.len());
        let mut state = State::new(X::EXACTLY_ONCE);
        let (mut turn, mut kept) = (None, Some(Sent { slot: exchange.slot().await?, xid: None, refused: 0 }));
        loop {
            let mut sent = match kept.take() {
                Some(sent) => sent,
                None => {
                    let slot = retry.within("all slots of the session are in use", exchange.slot());
                    Sent { slot: Box::pin(slot).await??, xid: None, refused: 0 }
                }
            };
            let transport = match self.next_connection()? {
                (_, Some(transport)) if turn.is_none() => Ok(transport),
                (next, _) => Box::pin(self.transport(&mut turn, next, retry)).await?,
            };
            let (verdict, transport) = match transport {
                Ok(transport) => {
                    let settles = exchange.settles(&sent.slot);
                    let memory = match payload_len {
                        _ if settles => None,
                        Some(len) if payload.is_none() => {
                            let memory = retry.within("no memory for the reply", self.wait_for_buffer(len));
                            Some(Box::pin(memory).await??)
                        }
                        _ => payload.take(),
                    };
                    let sending = self.transmit(exchange, &mut sent, &transport, memory, retry);
                    (sending.await?, Some(transport))
                }
                Err(why) => (Verdict::again(Event::Unconnected, why), None),
            };
            let Verdict { event, why, result } = verdict;
            if let (Event::Lost { .. }, Some(transport)) = (event, &transport) {
                self.abandon(transport);
            }
            let next = retry.next(&mut state, event);
            let ended = |result: Option<X::Result>, error: &dyn Fn() -> Error| match result {
                Some(result) => Ok(Answer { result, resent: state.resent() }),
                None => Err(error()),
            };
            let Next::Retry { how, after } = next else { return ended(result, &|| retry.expired(&why)) };
            add(&self.counts.retransmits, usize::from(how == How::Reconnect && sent.xid.is_some()));
            // Before the wait, so that other calls may use its slot.
            kept = Some(sent).filter(|_| how.keeps_identity());
            Box::pin(retry.sleep(after, &why)).await?;
            match (how, &transport) {
                (How::Bind, Some(transport)) => {
                    let bound = retry.within("the connection is not bound", exchange.bind(transport));
                    Box::pin(bound).await??;
                }
                (How::Recover(lost), _) => {
                    let recovery = retry.within("a recovery is in progress", exchange.recover(lost));
                    match Box::pin(recovery).await {
                        Ok(Ok(true)) => {}
                        Ok(Ok(false)) | Err(_) => return ended(result, &|| retry.expired(&why)),
                        Ok(Err(error)) => return Err(error),
                    }
                }
                _ => {}
            }
        }
    }

    /// Sends a request once, and waits for its reply. It waits for its security context within the deadline of `retry`.
    async fn transmit<X: Exchange>(
        &self,
        exchange: &mut X,
        sent: &mut Sent<X::Slot>,
        transport: &Arc<dyn Transport>,
        payload: Option<Buffer>,
        retry: &Retry<'_>,
    ) -> Result<Verdict<X::Result>, Error> {
        let (spec, is_call) = (exchange.spec(&sent.slot), !exchange.settles(&sent.slot));
        let credential = exchange.credential(&sent.slot);
        let limit = || retry.left().unwrap_or(self.timeout);
        let seal = match credential.seal(transport, (spec.program, spec.version), limit).await {
            Ok(seal) => seal,
            Err(GssError::Call(e)) => {
                return match Event::of_failure(&e, false, false) {
                    Some(event) => Ok(Verdict::again(event, e.to_string())),
                    None => Err(self.rpc_error(spec.name, e)),
                };
            }
            Err(e @ GssError::NoAnswer { .. }) => {
                return Ok(Verdict::again(Event::Unconnected, e.to_string()));
            }
            Err(e) => return Err(self.gss_error(spec.name, e)),
        };
        let context = seal.as_ref().map(CallSeal::context);
        // Retransmissions are not sampled, because the loss of the connection dominates their time.
        let stages = if sent.xid.is_some() { Stages::NONE } else { self.sampler.next_call(None) };
        let message = self.encode(|e| exchange.encode(&mut sent.slot, e))?;
        stages.set_class(spec.class);
        stages.end(Stage::Encode);
        let kept_xid = sent.xid.filter(|_| spec.keep_xid);
        let mut pending = transport.submit(Request {
            message,
            reply: ReplySpec { max_head: spec.max_head, payload, payload_offset: spec.payload_offset },
            xid: kept_xid,
            seal,
            stages: stages.clone(),
        });
        let result = (&mut pending).await;
        // `None` if the request was never sent, so that the server cannot have executed it.
        let xid = pending.xid();
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => {
                sent.xid = sent.xid.or(xid);
                if let Some(context) = &context
                    && let RpcError::Auth(AuthStat::GssCredProblem | AuthStat::GssCtxProblem) = error
                {
                    context.reject();
                    sent.refused += 1;
                    if sent.refused <= MAX_REFUSED {
                        return Ok(Verdict::again(Event::ContextLost, error.to_string()));
                    }
                }
                return match Event::of_failure(&error, xid.is_some() && is_call, kept_xid.is_some()) {
                    Some(event) => Ok(Verdict::again(event, error.to_string())),
                    None => Err(self.rpc_error(spec.name, error)),
                };
            }
        };
        add(&self.counts.calls, 1);
        stages.set_xid(xid.unwrap_or_default());
        let verdict = exchange.evaluate(&mut sent.slot, reply).await;
        stages.end(Stage::Delivery);
        self.sampler.finish(stages);
        verdict
    }
}

/// A call that only its XID identifies.
pub(crate) struct WithoutSlot<'c, A, V> {
    pub(crate) spec: CallSpec,
    pub(crate) credential: &'c CallCredential,
    /// Encodes the arguments.
    pub(crate) args: A,
    /// Evaluates a reply.
    pub(crate) evaluate: V,
}

impl<R, A, V> Exchange for WithoutSlot<'_, A, V>
where
    R: Send,
    A: Fn(&mut Encoder) + Send,
    V: Fn(Reply) -> Result<Verdict<R>, Error> + Send,
{
    type Result = R;
    type Slot = ();
    const EXACTLY_ONCE: bool = false;

    async fn slot(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn credential(&self, (): &()) -> &CallCredential {
        self.credential
    }

    fn spec(&self, (): &()) -> CallSpec {
        self.spec
    }

    fn encode(&mut self, (): &mut (), e: &mut Encoder) {
        self.spec.put_header(e, self.credential);
        (self.args)(e);
    }

    async fn evaluate(&mut self, (): &mut (), reply: Reply) -> Result<Verdict<R>, Error> {
        (self.evaluate)(reply)
    }
}

impl Pool {
    /// Makes a call outside of sessions, whose reply the caller evaluates.
    pub(crate) async fn call_without_slot<A: Encode + Sync>(
        &self,
        spec: CallSpec,
        credential: &CallCredential,
        args: &A,
        retry: &mut Retry<'_>,
    ) -> Result<Reply, Error> {
        let (args, evaluate) = (|e: &mut Encoder| e.put(args), |reply| Ok(Verdict::done(reply)));
        let mut exchange = WithoutSlot { spec, credential, args, evaluate };
        Ok(self.call(retry, &mut exchange, None).await?.result)
    }
}
