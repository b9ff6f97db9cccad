//! Requests in slots of the session, and the evaluation of their replies (RFC 8881 sections 2.10.6 and 18.46).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_buffer::Buffer;
use millrace_nfs::v4::{Operation, SequenceOk, Status, sequence_flags};
use millrace_oncrpc::{CallClass, Reply, Transport};
use millrace_runtime::Instant;
use millrace_xdr::{Encode, Encoder};

use super::{STATE_REPLY, Session, spec};
use crate::{
    Error,
    credential::CallCredential,
    exchange::{Answer, Exchange, Verdict},
    pool::{CallSpec, Retry},
    retry::{Event, Recovery},
    v4::{
        calls::Bind,
        compound::{Compound, Failure, Nothing, Request, Results},
        locks::{is_invalid, uses_state},
        owners::{OwnerNames, Unknown},
        slots::Held,
    },
};

/// The flags of SEQUENCE about revoked state.
const REVOKED: u32 = sequence_flags::EXPIRED_ALL_STATE_REVOKED
    | sequence_flags::EXPIRED_SOME_STATE_REVOKED
    | sequence_flags::ADMIN_STATE_REVOKED;

/// Minimum time for which a call waits for the end of the grace period. It is usually as long as a lease, but Linux
/// configures both separately (90 s by default).
const GRACE: Duration = Duration::from_secs(120);

type VerdictOf<C> = Verdict<Result<<C as Compound>::Ok, (Operation, Status)>>;

/// A call in the session. The server executes a request in a slot once, with any number of transmissions.
struct InSlot<'c, C> {
    session: &'c Arc<Session>,
    credential: &'c CallCredential,
    spec: CallSpec,
    /// Whether the server must keep the reply, because the operations cannot be repeated.
    cache_this: bool,
    compound: &'c mut C,
    /// Whether the call recovers what the server has lost. If not, it is a part of the recovery, and the loss of the
    /// session is a failure of SEQUENCE.
    recovers: bool,
    /// The number of the session of the last slot.
    generation: u64,
    /// The names of the owners that the call sets, for a server that has not accepted the numbers.
    names: OwnerNames,
    /// When the last request was sent, if the client has delegations.
    sent: Option<Instant>,
}

impl<C: Compound> Exchange for InSlot<'_, C> {
    type Result = Result<C::Ok, (Operation, Status)>;
    type Slot = Held;
    const EXACTLY_ONCE: bool = true;

    async fn slot(&mut self) -> Result<Held, Error> {
        let held = self.session.slots.take().await.ok_or(Error::Closed)?;
        self.generation = held.generation();
        Ok(held)
    }

    /// A slot whose last call was abandoned is settled by SEQUENCE alone.
    fn settles(&self, held: &Held) -> bool {
        held.is_uncertain()
    }

    fn credential(&self, held: &Held) -> &CallCredential {
        if held.is_uncertain() { &self.session.credential } else { self.credential }
    }

    fn spec(&self, held: &Held) -> CallSpec {
        match held.is_uncertain() {
            true => spec("SEQUENCE", STATE_REPLY, CallClass::Other),
            false => self.spec,
        }
    }

    fn encode(&mut self, held: &mut Held, e: &mut Encoder) {
        let session = self.session;
        self.sent = session.delegations.are_used().then(|| session.pool.rt.now());
        let (minor_version, proof) = (session.minor_version, session.proof());
        if held.is_uncertain() {
            self.spec.put_header(e, &session.credential);
            let sequence = Some(held.send(false));
            Request { minor_version, sequence, proof, names: None, compound: &Nothing }.encode(e);
        } else {
            self.spec.put_header(e, self.credential);
            let sequence = Some(held.send(self.cache_this));
            let (names, compound) = (Some(&self.names), &*self.compound);
            Request { minor_version, sequence, proof, names, compound }.encode(e);
        }
    }

    async fn evaluate(&mut self, held: &mut Held, reply: Reply) -> Result<Verdict<Self::Result>, Error> {
        let mut unknown = Vec::new();
        let mut verdict = self.outcome(held, &reply, &mut unknown);
        if !unknown.is_empty() {
            // Boxed, because it is rare and would enlarge every call.
            Box::pin(self.session.owners.wait(unknown)).await;
            verdict = self.outcome_after(&reply);
        }
        if self.recovers {
            self.session.check_if_reported(self.generation);
        }
        verdict.map_err(|failure| match failure {
            Failure::Status(operation, status) => Error::Nfs4 { operation, status },
            Failure::Invalid(reason) => self.session.pool.bad_reply(self.spec.name, reason),
        })
    }

    /// Binds a connection to the session, for servers that do not bind it implicitly. A failure shows in the next reply.
    async fn bind(&self, transport: &Arc<dyn Transport>) -> Result<(), Error> {
        let Some(session) = self.session.slots.session() else { return Ok(()) };
        let compound = &Bind { session, back_channel: false };
        let request = Request::without_session(self.session.minor_version, compound);
        let spec = spec(Operation::BindConnToSession.name(), STATE_REPLY, CallClass::Other);
        self.session.pool.call_on(transport, spec, &self.session.credential, &request).await.map(drop)
    }

    async fn recover(&mut self, lost: Recovery) -> Result<bool, Error> {
        match lost {
            Recovery::Session => self.session.recover(Some(self.generation)).await.map(|()| true),
            // If they fail, the result of the call is still the status of its reply.
            Recovery::Reclaims => Ok(self.session.recover(None).await.is_ok()),
            Recovery::State => self.session.renew_state(self.compound).await,
        }
    }
}

impl<'c, C: Compound> InSlot<'c, C> {
    fn new(
        session: &'c Arc<Session>,
        credential: &'c CallCredential,
        spec: CallSpec,
        cache_this: bool,
        compound: &'c mut C,
        recovers: bool,
    ) -> Self {
        let (generation, names, sent) = (0, OwnerNames::default(), None);
        Self { session, credential, spec, cache_this, compound, recovers, generation, names, sent }
    }

    /// Evaluates a reply. The names of owners that are looked up are added to `unknown`.
    ///
    /// # Errors
    /// The status of SEQUENCE that ends the call; an invalid reply.
    fn outcome(
        &mut self,
        held: &mut Held,
        reply: &Reply,
        unknown: &mut Vec<Unknown>,
    ) -> Result<VerdictOf<C>, Failure> {
        let settles = held.is_uncertain();
        let session = self.session;
        let mut results = Results::with_owners(reply.results(), session.proof(), &session.owners)?;
        if let Some(status) = results.rejected() {
            return self.failed_sequence(held, status);
        }
        let ok: SequenceOk = match results.next(Operation::Sequence) {
            Ok(ok) => ok,
            Err(Failure::Status(_, status)) => return self.failed_sequence(held, status),
            Err(invalid) => return Err(invalid),
        };
        if let Err(what) = held.check(&ok) {
            // The server repeats an invalid reply: the slot cannot be used any more.
            return match settles {
                true => Ok(self.session_lost(Status::BadSession)),
                false => Err(Failure::Invalid(format!("SEQUENCE with another {what}"))),
            };
        }
        held.executed();
        self.session.sequenced(held, &ok);
        if let Some(sent) = self.sent {
            self.session.delegations.confirm(sent);
        }
        if settles {
            return Ok(Verdict::again(Event::Settled, ""));
        }
        let outcome = self.outcome_of(&mut results);
        *unknown = results.unknown;
        outcome
    }

    /// Evaluates the results after that of SEQUENCE again, with the names that have been looked up.
    fn outcome_after(&mut self, reply: &Reply) -> Result<VerdictOf<C>, Failure> {
        let session = self.session;
        let mut results = Results::with_owners(reply.results(), session.proof(), &session.owners)?;
        results.next::<SequenceOk>(Operation::Sequence)?;
        self.outcome_of(&mut results)
    }

    /// Evaluates the results after that of SEQUENCE.
    fn outcome_of(&mut self, results: &mut Results<'_>) -> Result<VerdictOf<C>, Failure> {
        match self.compound.results(results) {
            Ok(value) => results.finish().map(|()| Verdict::done(Ok(value))),
            Err(Failure::Status(operation, status)) => Ok(self.failed(operation, status, results.changed)),
            Err(invalid) => Err(invalid),
        }
    }

    /// A failed SEQUENCE.
    ///
    /// # Errors
    /// A status that ends the call.
    fn failed_sequence(&self, held: &mut Held, status: Status) -> Result<VerdictOf<C>, Failure> {
        Ok(match status {
            Status::Delay => Verdict::again(Event::InProgress, "the server executes the call"),
            Status::ConnNotBoundToSession => {
                Verdict::again(Event::Unbound, "the connection was not bound to the session")
            }
            Status::BadSession
            | Status::DeadSession
            | Status::SeqMisordered
            | Status::BadSlot
            | Status::BadHighSlot => self.session_lost(status),
            Status::RetryUncachedRep | Status::SeqFalseRetry => {
                let settles = held.is_uncertain();
                held.executed();
                if settles { Verdict::again(Event::Settled, "") } else { not_kept() }
            }
            status => return Err(Failure::Status(Operation::Sequence, status)),
        })
    }

    fn session_lost(&self, status: Status) -> VerdictOf<C> {
        match self.recovers {
            true => Verdict::again(Event::SessionLost, "the server lost the session again"),
            false => Verdict::done(Err((Operation::Sequence, status))),
        }
    }

    /// A failed operation. `changed`: one before it has changed something.
    fn failed(&mut self, operation: Operation, status: Status, changed: bool) -> VerdictOf<C> {
        let failed = Err((operation, status));
        let again = match status {
            Status::RetryUncachedRep => return not_kept(),
            Status::Grace if self.recovers => {
                let limit = GRACE.max(2 * self.session.lease());
                Verdict::again(Event::Grace { changed, limit }, "the server is in its grace period")
            }
            Status::Delay | Status::Grace => {
                Verdict::again(Event::Delayed { changed }, "the server asks to retry later")
            }
            status if self.recovers && is_invalid(status) && uses_state(self.compound) => {
                Verdict::again(Event::StateLost, "the server rejects the stateid")
            }
            _ => return Verdict::done(failed),
        };
        // A part of a recovery has no result but the server's decision.
        if self.recovers { again.or(failed) } else { again }
    }
}

fn not_kept<R>() -> Verdict<R> {
    Verdict::again(Event::NotKept, "the server has no reply to a retransmission")
}

impl Session {
    /// Makes a call. Waits for a slot, repeats the call while the server returns DELAY or is in its grace period, and
    /// recovers the session and stateids that the server has lost. `cache_this`: the server must keep the reply, because
    /// the operations cannot be repeated. `payload` is the buffer for the data at the end of the reply.
    pub(crate) async fn call<C: Compound>(
        self: &Arc<Self>,
        credential: &CallCredential,
        spec: CallSpec,
        cache_this: bool,
        compound: &mut C,
        payload: Option<Buffer>,
    ) -> Result<Answer<Result<C::Ok, (Operation, Status)>>, Error> {
        let mut exchange = InSlot::new(self, credential, spec, cache_this, compound, true);
        let mut retry = Retry::new(&self.pool, spec.name);
        let answer = self.pool.call(&mut retry, &mut exchange, payload).await?;
        if let Err((_, Status::BadOwner)) = answer.result {
            // A server with Kerberos may accept names only.
            exchange.names = Box::pin(self.owners.names(exchange.compound.owners())).await;
            if !exchange.names.is_empty() {
                return Box::pin(self.pool.call(&mut retry, &mut exchange, None)).await;
            }
        }
        Ok(answer)
    }

    /// Makes a call of a recovery, whose deadline it has. `None` if the session is lost.
    pub(in crate::v4) async fn call_in_recovery<C: Compound>(
        self: &Arc<Self>,
        credential: &CallCredential,
        name: &'static str,
        compound: &mut C,
        retry: &mut Retry<'_>,
    ) -> Result<Option<Result<C::Ok, (Operation, Status)>>, Error> {
        let spec = spec(name, STATE_REPLY, CallClass::Other);
        let mut exchange = InSlot::new(self, credential, spec, true, compound, false);
        let result = self.pool.call(retry, &mut exchange, None).await?.result;
        Ok(Some(result).filter(|result| !matches!(result, Err((Operation::Sequence, _)))))
    }

    /// Handles the data of a successful SEQUENCE.
    fn sequenced(&self, held: &Held, ok: &SequenceOk) {
        if !self.renewed.load(Ordering::Relaxed) {
            self.renewed.store(true, Ordering::Relaxed);
        }
        if ok.status_flags != 0 {
            self.note_flags(ok.status_flags);
        }
        let target = ok.target_highest_slot.saturating_add(1);
        if target != self.target.load(Ordering::Relaxed) {
            self.target.store(target, Ordering::Relaxed);
            self.slots.set_limit(held.generation(), target);
        }
    }

    fn note_flags(&self, flags: u32) {
        if flags & REVOKED != 0 {
            self.reports_revoked.store(true, Ordering::Release);
        }
        self.back_channel.note_flags(flags);
        self.delegations.note_flags(flags);
    }

    /// Looks for revoked state if the server has reported some, and replaces the session with the number `generation` if
    /// the server has reported that it cannot use its back channel.
    fn check_if_reported(self: &Arc<Self>, generation: u64) {
        if self.back_channel.take_fault() {
            let this = Arc::clone(self);
            let replace = async move {
                if let Err(e) = this.recover(Some(generation)).await {
                    tracing::debug!(server = this.pool.server(), "cannot replace the session: {e}");
                }
            };
            self.pool.rt.spawn("replace session", Box::pin(replace));
        }
        if self.reports_revoked.load(Ordering::Relaxed) {
            self.reports_revoked.store(false, Ordering::Relaxed);
            if !self.checks_revoked.swap(true, Ordering::AcqRel) {
                self.check_revoked();
            }
        }
    }
}
