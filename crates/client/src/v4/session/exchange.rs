//! One request in a slot: its transmissions and the evaluation of its reply (RFC 8881 sections 2.10.6 and 18.46).

use std::sync::atomic::Ordering;

use millrace_buffer::Buffer;
use millrace_nfs::v4::{Operation, SequenceOk, Status, sequence_flags};
use millrace_oncrpc::{CallClass, EncodedCredential, Stage};

use super::{STATE_REPLY, Session, spec};
use crate::{
    Error,
    pool::{Answered, Attempt, CallSpec},
    v4::{
        calls::Bind,
        compound::{Compound, Failure, Nothing, Request, Results},
        slots::Held,
    },
};

/// The flags of SEQUENCE about revoked state.
const REVOKED: u32 = sequence_flags::EXPIRED_ALL_STATE_REVOKED
    | sequence_flags::EXPIRED_SOME_STATE_REVOKED
    | sequence_flags::ADMIN_STATE_REVOKED;

/// The outcome of one request in a slot.
pub(super) enum Outcome<O> {
    Done(Result<O, (Operation, Status)>),
    /// The server requests a later retry. `changed`: a part of the operations was executed.
    Later {
        failed: (Operation, Status),
        changed: bool,
    },
    /// The server has executed a request with this number, and has no reply to it.
    NoReply,
    /// The session is lost. `executed`: the server may have executed the request.
    Lost {
        executed: bool,
    },
}

impl Session {
    /// Settles an uncertain slot with a SEQUENCE alone. `false` if the session is lost.
    pub(super) async fn settle(&self, held: &mut Held) -> Result<bool, Error> {
        if !held.is_uncertain() {
            return Ok(true);
        }
        let spec = spec("SEQUENCE", STATE_REPLY, CallClass::Other);
        let probe = self.exchange(held, &self.credential, spec, false, &Nothing, None);
        // Boxed, because it is rare and would enlarge every call.
        Ok(!matches!(Box::pin(probe).await?, Outcome::Lost { .. }))
    }

    /// Sends one request in a slot, and again on other connections until there is a reply.
    pub(super) async fn exchange<C: Compound>(
        &self,
        held: &mut Held,
        credential: &EncodedCredential,
        spec: CallSpec,
        cache_this: bool,
        compound: &C,
        mut payload: Option<Buffer>,
    ) -> Result<Outcome<C::Ok>, Error> {
        let payload_len = payload.as_ref().map(|b| b.len());
        let mut attempt = Attempt::new(&self.pool, spec.name);
        let mut resent = false;
        loop {
            let payload = self.pool.take_payload(&mut payload, payload_len).await?;
            let sequence = Some(held.send(cache_this));
            let (minor_version, proof) = (self.minor_version, self.proof());
            let request = Request { minor_version, sequence, proof, compound };
            let sent = self.delegations.are_used().then(|| self.pool.rt.now());
            let answered = self.pool.call(spec, credential, &request, payload).await?;
            resent |= answered.resent;
            let outcome = self.outcome(held, compound, &answered, resent);
            if let (Some(sent), Ok(Outcome::Done(_) | Outcome::Later { .. })) = (sent, &outcome) {
                self.delegations.confirm(sent);
            }
            answered.stages.end(Stage::Delivery);
            let status = match outcome {
                Ok(outcome) => {
                    self.pool.sampler.finish(answered.stages);
                    return Ok(outcome);
                }
                Err(Failure::Status(_, status)) => status,
                Err(Failure::Invalid(reason)) => return Err(self.pool.bad_reply(spec.name, reason)),
            };
            match status {
                // The server still executes an earlier transmission.
                Status::Delay => attempt.pause("the server executes the call".into()).await?,
                Status::ConnNotBoundToSession => {
                    self.bind(&answered).await?;
                    attempt.pause("the connection was not bound to the session".into()).await?;
                }
                status => return Err(Error::Nfs4 { operation: Operation::Sequence, status }),
            }
        }
    }

    /// Evaluates a reply.
    ///
    /// # Errors
    /// The status of SEQUENCE, after which the same request must be sent again or fails; an invalid reply.
    fn outcome<C: Compound>(
        &self,
        held: &mut Held,
        compound: &C,
        answered: &Answered,
        resent: bool,
    ) -> Result<Outcome<C::Ok>, Failure> {
        let mut results = Results::new(answered.reply.results(), self.proof())?;
        if let Some(status) = results.rejected() {
            return Err(Failure::Status(Operation::Sequence, status));
        }
        let ok: SequenceOk = match results.next(Operation::Sequence) {
            Ok(ok) => ok,
            Err(Failure::Status(_, status)) => return failed_sequence(held, status, resent),
            Err(invalid) => return Err(invalid),
        };
        if let Err(what) = held.check(&ok) {
            // The server repeats an invalid reply: the slot cannot be used any more.
            return match held.is_uncertain() {
                true => Ok(Outcome::Lost { executed: resent }),
                false => Err(Failure::Invalid(format!("SEQUENCE with another {what}"))),
            };
        }
        held.executed();
        self.sequenced(held, &ok);
        match compound.results(&mut results) {
            Ok(value) => results.finish().map(|()| Outcome::Done(Ok(value))),
            Err(Failure::Status(_, Status::RetryUncachedRep)) => Ok(Outcome::NoReply),
            Err(Failure::Status(operation, status @ (Status::Delay | Status::Grace))) => {
                Ok(Outcome::Later { failed: (operation, status), changed: results.changed })
            }
            Err(Failure::Status(operation, status)) => Ok(Outcome::Done(Err((operation, status)))),
            Err(invalid) => Err(invalid),
        }
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

    /// Binds the connection of a reply to the session, for servers that do not bind it implicitly.
    async fn bind(&self, answered: &Answered) -> Result<(), Error> {
        let Some(session) = self.slots.session() else { return Ok(()) };
        let compound = &Bind { session, back_channel: false };
        let request = Request::without_session(self.minor_version, compound);
        let spec = spec("BIND_CONN_TO_SESSION", STATE_REPLY, CallClass::Other);
        // A failure shows in the next reply to the call.
        self.pool.call_on(&answered.transport, spec, &self.credential, &request).await.map(drop)
    }
}

/// The outcome of a request whose SEQUENCE failed.
///
/// # Errors
/// A status that the caller handles, or that ends the call.
fn failed_sequence<O>(held: &mut Held, status: Status, resent: bool) -> Result<Outcome<O>, Failure> {
    match status {
        Status::BadSession
        | Status::DeadSession
        | Status::SeqMisordered
        | Status::BadSlot
        | Status::BadHighSlot => Ok(Outcome::Lost { executed: resent }),
        Status::RetryUncachedRep | Status::SeqFalseRetry => {
            held.executed();
            Ok(Outcome::NoReply)
        }
        status => Err(Failure::Status(Operation::Sequence, status)),
    }
}
