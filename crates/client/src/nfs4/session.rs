//! The client ID and the session with a server: calls in slots, recovery, and the lease (RFC 8881 sections 2.10 and
//! 8.3 to 8.4).

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use millrace_buffer::Buffer;
use millrace_nfs::v4::{
    self, ChannelAttrs, ClientId, CreateSessionOk, Operation, SequenceOk, Status, Verifier, sequence_flags,
};
use millrace_oncrpc::{CallClass, EncodedCredential, Stage};
use millrace_runtime::{RuntimeExt, RuntimeRef, Uncancelled, sync::Mutex};
use millrace_xdr::Encode;

use super::{
    calls::{Bind, CreateSession, DestroyClientid, DestroySession, ExchangeId, ReclaimComplete},
    compound::{Compound, Failure, Nothing, Request, Results},
    locks::{LockedFiles, Reclaimed},
    slots::{Held, MAX_SLOTS, Slots},
};
use crate::{
    Connection, Error,
    pool::{Answered, Attempt, CallSpec, Pool},
};

/// Maximum number of operations of a COMPOUND of this client, SEQUENCE included.
const MAX_OPERATIONS: u32 = 16;
/// Bytes of a request or reply beside the data of a WRITE or READ: the headers, and the other operations.
pub(crate) const OVERHEAD: u32 = 4096;
/// Maximum size of the replies that the server keeps for retransmissions, in bytes.
const CACHED_REPLY: u32 = 4096;
/// Maximum size of the reply to an operation on client IDs or sessions in bytes: that of EXCHANGE_ID has two opaques
/// of up to 1 KiB each, and the name of the implementation.
const STATE_REPLY: usize = 4096;

/// Minimum time for which a call waits for the end of the grace period. It is usually as long as a lease, but Linux
/// configures both separately (90 s by default).
const GRACE: Duration = Duration::from_secs(120);

/// The flags of SEQUENCE about revoked state.
const REVOKED: u32 = sequence_flags::EXPIRED_ALL_STATE_REVOKED
    | sequence_flags::EXPIRED_SOME_STATE_REVOKED
    | sequence_flags::ADMIN_STATE_REVOKED;

/// Timeout of each of the last calls of a client.
const GOODBYE: Duration = Duration::from_secs(1);

/// The properties of the calls of one procedure.
pub(crate) fn spec(name: &'static str, max_head: usize, class: CallClass) -> CallSpec {
    // The slot's sequence number identifies a retransmission, not the XID.
    CallSpec {
        program: v4::PROGRAM,
        version: v4::VERSION,
        procedure: 1,
        name,
        max_head,
        keep_xid: false,
        class,
    }
}

/// The reply to a call.
pub(crate) struct Answer<O> {
    /// The results, or the first failed operation with its status.
    pub(crate) result: Result<O, (Operation, Status)>,
    /// Whether the server may have executed the call before, in a session that was lost.
    pub(crate) resent: bool,
}

/// The outcome of one request in a slot.
enum Outcome<O> {
    Done(Result<O, (Operation, Status)>),
    /// The server asks to retry later. `changed`: a part of the operations was executed.
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

/// What the client knows of its record at the server. Locked during recovery.
#[derive(Default)]
struct Known {
    /// The client ID, and the sequence number of the next CREATE_SESSION.
    client: Option<(ClientId, u32)>,
    /// Whether the client has reclaimed its state (RECLAIM_COMPLETE).
    complete: bool,
}

/// The sizes that the server has granted, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Granted {
    /// Maximum size of a request.
    pub(crate) request: u32,
    /// Maximum size of a reply.
    pub(crate) reply: u32,
}

/// A client of an NFSv4 server, with its current session. The connections of the pool share it.
pub(crate) struct Session {
    pub(crate) pool: Arc<Pool>,
    minor_version: u32,
    /// `co_ownerid`.
    owner: String,
    verifier: Verifier,
    /// Credentials of the operations on client ID and session.
    credential: EncodedCredential,
    /// Requested limits of sessions.
    fore: ChannelAttrs,
    slots: Arc<Slots>,
    granted: Mutex<Granted>,
    known: futures::lock::Mutex<Known>,
    /// Duration of a lease in seconds.
    lease: AtomicU32,
    /// Whether a call has renewed the lease since the last period of the renewal.
    renewed: AtomicBool,
    /// Number of slots that the server wants the client to use.
    target: AtomicU32,
    /// The files with locks.
    pub(crate) locked: LockedFiles,
    /// Whether the search for revoked state is in progress.
    pub(super) revoked: AtomicBool,
    /// Whether the server reports revoked state.
    reports_revoked: AtomicBool,
}

impl Session {
    /// Creates a client ID and a session over `pool`. `machine` is the host's name. `slots` is the wanted number of
    /// calls in flight, `payload` the maximum size of the data of a call in bytes.
    ///
    /// # Errors
    /// [`Error::Nfs4`] and the errors of a call; [`is_unsupported`] tells whether the server lacks the minor version.
    pub(crate) async fn start(
        pool: Arc<Pool>,
        minor_version: u32,
        machine: &str,
        credential: EncodedCredential,
        slots: u32,
        payload: u32,
    ) -> Result<Arc<Self>, Error> {
        let rt = Arc::clone(&pool.rt);
        let size = payload.saturating_add(OVERHEAD);
        let session = Arc::new(Self {
            pool,
            minor_version,
            owner: format!("millrace {machine} {} {:016x}", std::process::id(), rt.random_u64()),
            verifier: rt.random_u64().to_be_bytes(),
            credential,
            fore: ChannelAttrs {
                header_pad_size: 0,
                max_request_size: size,
                max_response_size: size,
                max_response_size_cached: CACHED_REPLY,
                max_operations: MAX_OPERATIONS,
                max_requests: slots.clamp(1, MAX_SLOTS),
                rdma_ird: None,
            },
            slots: Arc::default(),
            granted: Mutex::default(),
            known: Default::default(),
            lease: AtomicU32::new(0),
            renewed: AtomicBool::new(false),
            target: AtomicU32::new(0),
            locked: LockedFiles::default(),
            revoked: AtomicBool::new(false),
            reports_revoked: AtomicBool::new(false),
        });
        session.recover(0).await?;
        rt.spawn("renew lease", Box::pin(renew_lease(Arc::clone(&rt), Arc::downgrade(&session))));
        Ok(session)
    }

    /// The limits of the current session.
    pub(crate) fn granted(&self) -> Granted {
        *self.granted.lock()
    }

    /// Duration of a lease.
    fn lease(&self) -> Duration {
        Duration::from_secs(self.lease.load(Ordering::Relaxed).clamp(1, 3600).into())
    }

    /// Makes a call. Waits for a slot, retries after a delay while the server asks for it or is in its grace period,
    /// and recovers a lost session. `cache_this`: the server must keep the reply, because the operations cannot be
    /// repeated. `payload` is the buffer for the data at the end of the reply.
    pub(crate) async fn call<C: Compound>(
        self: &Arc<Self>,
        credential: &EncodedCredential,
        spec: CallSpec,
        cache_this: bool,
        compound: &C,
        mut payload: Option<Buffer>,
    ) -> Result<Answer<C::Ok>, Error> {
        let payload_len = payload.as_ref().map(|b| b.len());
        let mut attempt = Attempt::new(&self.pool, spec.name);
        let (mut resent, mut losses) = (false, 0_u32);
        loop {
            let payload = match (payload.take(), payload_len) {
                (None, Some(len)) => Some(self.pool.arena.alloc(len)?),
                (given, _) => given,
            };
            let mut held = self.slots.take().await.ok_or(Error::Closed)?;
            let generation = held.generation();
            let outcome = match self.settle(&mut held).await? {
                true => self.exchange(&mut held, credential, spec, cache_this, compound, payload).await?,
                false => Outcome::Lost { executed: false },
            };
            drop(held);
            if self.reports_revoked.load(Ordering::Relaxed) {
                self.reports_revoked.store(false, Ordering::Relaxed);
                if !self.revoked.swap(true, Ordering::AcqRel) {
                    self.check_revoked();
                }
            }
            match outcome {
                Outcome::Done(result) => return Ok(Answer { result, resent }),
                Outcome::Later { failed, changed } => {
                    resent |= changed;
                    if self.wait(&mut attempt, failed.1).await.is_err() {
                        return Ok(Answer { result: Err(failed), resent });
                    }
                }
                Outcome::NoReply => {
                    resent = true;
                    attempt.pause("the server has no reply to a retransmission".into()).await?;
                }
                Outcome::Lost { executed } => {
                    resent |= executed;
                    losses += 1;
                    if losses > 1 {
                        attempt.pause("the server lost the session again".into()).await?;
                    }
                    self.recover(generation).await?;
                }
            }
        }
    }

    /// Waits after a status that asks for it.
    async fn wait(self: &Arc<Self>, attempt: &mut Attempt<'_>, status: Status) -> Result<(), Error> {
        if status == Status::Grace {
            // Without RECLAIM_COMPLETE the grace period does not end for this client.
            let this = Arc::clone(self);
            let complete = async move { this.complete(&mut *this.known.lock().await).await };
            Uncancelled::new(&self.pool.rt, "complete recovery", complete).await?;
            let limit = GRACE.max(2 * self.lease());
            return attempt.pause_at_least(limit, "the server is in its grace period").await;
        }
        attempt.pause("the server asks to retry later".into()).await
    }

    /// Settles an uncertain slot with a SEQUENCE alone. `false` if the session is lost.
    async fn settle(&self, held: &mut Held) -> Result<bool, Error> {
        if !held.is_uncertain() {
            return Ok(true);
        }
        let spec = spec("SEQUENCE", STATE_REPLY, CallClass::Other);
        let probe = self.exchange(held, &self.credential, spec, false, &Nothing, None);
        // Boxed, because it is rare and would enlarge every call.
        Ok(!matches!(Box::pin(probe).await?, Outcome::Lost { .. }))
    }

    /// Sends one request in a slot, and again on other connections until there is a reply.
    async fn exchange<C: Compound>(
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
            let payload = match (payload.take(), payload_len) {
                (None, Some(len)) => Some(self.pool.arena.alloc(len)?),
                (given, _) => given,
            };
            let sequence = Some(held.send(cache_this));
            let request = Request { minor_version: self.minor_version, sequence, compound };
            let answered = self.pool.call(spec, credential, &request, payload).await?;
            resent |= answered.resent;
            let outcome = self.outcome(held, compound, &answered, resent);
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
        let mut results = Results::new(answered.reply.results())?;
        if let Some(status) = results.rejected() {
            return Err(Failure::Status(Operation::Sequence, status));
        }
        let ok: SequenceOk = match results.next(Operation::Sequence) {
            Ok(ok) => ok,
            Err(Failure::Status(operation, status)) => match status {
                Status::BadSession
                | Status::DeadSession
                | Status::SeqMisordered
                | Status::BadSlot
                | Status::BadHighSlot => return Ok(Outcome::Lost { executed: resent }),
                Status::RetryUncachedRep | Status::SeqFalseRetry => {
                    held.executed();
                    return Ok(Outcome::NoReply);
                }
                status => return Err(Failure::Status(operation, status)),
            },
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
        let decoded = compound.results(&mut results);
        match decoded {
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
        if ok.status_flags & REVOKED != 0 {
            self.reports_revoked.store(true, Ordering::Release);
        }
        let target = ok.target_highest_slot.saturating_add(1);
        if target != self.target.load(Ordering::Relaxed) {
            self.target.store(target, Ordering::Relaxed);
            self.slots.set_limit(held.generation(), target);
        }
    }

    /// Binds the connection of a reply to the session, for servers that do not bind it implicitly.
    async fn bind(&self, answered: &Answered) -> Result<(), Error> {
        let Some(session) = self.slots.session() else { return Ok(()) };
        let request = Request { minor_version: self.minor_version, sequence: None, compound: &Bind(session) };
        let spec = spec("BIND_CONN_TO_SESSION", STATE_REPLY, CallClass::Other);
        // A failure shows in the next reply to the call.
        self.pool.call_on(&answered.transport, spec, &self.credential, &request).await.map(drop)
    }

    /// Makes a call outside of sessions.
    async fn call_without_session<C: Compound>(
        &self,
        name: &'static str,
        compound: &C,
    ) -> Result<Result<C::Ok, (Operation, Status)>, Error> {
        let request = Request { minor_version: self.minor_version, sequence: None, compound };
        let spec = spec(name, STATE_REPLY, CallClass::Other);
        let answered = self.pool.call(spec, &self.credential, &request, None).await?;
        let bad = |reason: String| self.pool.bad_reply(name, reason);
        let mut results = Results::new(answered.reply.results()).map_err(|e| bad(e.to_string()))?;
        if let Some(status) = results.rejected() {
            return Ok(Err((Operation::ExchangeId, status)));
        }
        match compound.results(&mut results) {
            Ok(value) => Ok(Ok(value)),
            Err(Failure::Status(operation, status)) => Ok(Err((operation, status))),
            Err(Failure::Invalid(reason)) => Err(bad(reason)),
        }
    }

    /// Replaces the session with the number `lost`, unless another call has done so. Dropping the future does not
    /// stop the recovery.
    async fn recover(self: &Arc<Self>, lost: u64) -> Result<(), Error> {
        let this = Arc::clone(self);
        let recovery = async move {
            let mut known = this.known.lock().await;
            if this.slots.generation() == lost {
                this.establish(&mut known).await?;
            }
            this.complete(&mut known).await
        };
        Uncancelled::new(&self.pool.rt, "recover session", recovery).await
    }

    /// Creates a session, with a new client ID if the server does not know the current one.
    async fn establish(&self, known: &mut Known) -> Result<(), Error> {
        if let Some(old) = self.slots.session() {
            // The server has probably lost it.
            self.call_without_session("DESTROY_SESSION", &DestroySession(old)).await?.ok();
        }
        let mut attempt = Attempt::new(&self.pool, "CREATE_SESSION");
        let mut forgotten = false;
        loop {
            let (client_id, sequence) = match known.client {
                Some(client) => client,
                None => self.identify(known).await?,
            };
            let create = CreateSession { client_id, sequence, fore: self.fore };
            match self.call_without_session("CREATE_SESSION", &create).await? {
                Ok(ok) => {
                    known.client = Some((client_id, sequence.wrapping_add(1)));
                    return self.begin(&ok);
                }
                Err((_, Status::StaleClientid | Status::SeqMisordered)) => {
                    known.client = None;
                    if std::mem::replace(&mut forgotten, true) {
                        attempt.pause("the server forgot the client ID again".into()).await?;
                    }
                }
                Err((_, Status::Delay)) => attempt.pause("the server asks to retry later".into()).await?,
                Err((operation, status)) => return Err(Error::Nfs4 { operation, status }),
            }
        }
    }

    /// EXCHANGE_ID: gets a client ID.
    async fn identify(&self, known: &mut Known) -> Result<(ClientId, u32), Error> {
        let mut attempt = Attempt::new(&self.pool, "EXCHANGE_ID");
        let exchange = ExchangeId { verifier: self.verifier, owner: self.owner.as_bytes() };
        loop {
            match self.call_without_session("EXCHANGE_ID", &exchange).await? {
                Ok(ok) => {
                    // The state of an unconfirmed client ID is empty.
                    known.complete &= ok.confirmed;
                    let client = (ok.client_id, ok.sequence);
                    known.client = Some(client);
                    return Ok(client);
                }
                Err((_, Status::Delay)) => attempt.pause("the server asks to retry later".into()).await?,
                Err((operation, status)) => return Err(Error::Nfs4 { operation, status }),
            }
        }
    }

    /// Starts to use a new session.
    fn begin(&self, ok: &CreateSessionOk) -> Result<(), Error> {
        let granted = Granted {
            request: ok.fore.max_request_size.min(self.fore.max_request_size),
            reply: ok.fore.max_response_size.min(self.fore.max_response_size),
        };
        if granted.request < 2 * OVERHEAD || granted.reply < 2 * OVERHEAD {
            return Err(self.pool.bad_reply("CREATE_SESSION", "a session for messages of less than 8 KiB"));
        }
        *self.granted.lock() = granted;
        let slots = ok.fore.max_requests.min(self.fore.max_requests);
        self.target.store(slots, Ordering::Relaxed);
        self.slots.begin(ok.session, slots);
        tracing::debug!(server = self.pool.server(), slots, ?granted, "new NFSv4 session");
        Ok(())
    }

    /// Tells a server with a new client ID that the client has no state to reclaim any more.
    async fn complete(&self, known: &mut Known) -> Result<(), Error> {
        let mut attempt = Attempt::new(&self.pool, "RECLAIM_COMPLETE");
        while !known.complete {
            if let Reclaimed::SessionLost = self.reclaim().await? {
                attempt.pause("the server lost the session during recovery".into()).await?;
                self.establish(known).await?;
                continue;
            }
            match self.call_in_recovery(&self.credential, "RECLAIM_COMPLETE", &ReclaimComplete).await? {
                Outcome::Done(Ok(lease)) => {
                    self.lease.store(lease, Ordering::Relaxed);
                    known.complete = true;
                }
                Outcome::Done(Err((operation, status))) => return Err(Error::Nfs4 { operation, status }),
                Outcome::Lost { .. } => {
                    attempt.pause("the server lost the session during recovery".into()).await?;
                    self.establish(known).await?;
                }
                Outcome::Later { .. } | Outcome::NoReply => {
                    attempt.pause("the server asks to retry later".into()).await?;
                }
            }
        }
        Ok(())
    }

    /// Ends the client at the server without waiting, and closes the connections. Calls in progress fail.
    pub(crate) fn end(&self) {
        let connections = Closing(self.pool.take());
        let client = self.known.try_lock().and_then(|known| known.client);
        let (Some(session), Some((client_id, _)), Some(transport)) =
            (self.slots.session(), client, connections.0.first().map(|c| Arc::clone(&c.transport)))
        else {
            return;
        };
        let minor_version = self.minor_version;
        let destroy = Request { minor_version, sequence: None, compound: &DestroySession(session) };
        let forget = Request { minor_version, sequence: None, compound: &DestroyClientid(client_id) };
        let requests = [self.state_request(&destroy), self.state_request(&forget)];
        let rt = Arc::clone(&self.pool.rt);
        let task = async move {
            let _closed = connections;
            for request in requests.into_iter().flatten() {
                // The server ends a client that does not say so when its lease expires.
                drop(millrace_runtime::timeout(&*rt, GOODBYE, transport.submit(request)).await);
            }
        };
        self.pool.rt.spawn("end session", Box::pin(task));
    }

    fn state_request(&self, args: &impl Encode) -> Option<millrace_oncrpc::Request> {
        let spec = spec("DESTROY_SESSION", STATE_REPLY, CallClass::Other);
        self.pool.request(spec, &self.credential, args).ok()
    }

    /// Makes a call during recovery: the caller handles the loss of the session.
    async fn call_in_recovery<C: Compound>(
        &self,
        credential: &EncodedCredential,
        name: &'static str,
        compound: &C,
    ) -> Result<Outcome<C::Ok>, Error> {
        let mut held = self.slots.take().await.ok_or(Error::Closed)?;
        if !self.settle(&mut held).await? {
            return Ok(Outcome::Lost { executed: false });
        }
        let spec = spec(name, STATE_REPLY, CallClass::Other);
        self.exchange(&mut held, credential, spec, true, compound, None).await
    }

    /// As [`Self::call_in_recovery`], and repeats the call while the server asks for it. `None` if the session is lost.
    pub(super) async fn call_until_settled<C: Compound>(
        &self,
        credential: &EncodedCredential,
        name: &'static str,
        compound: &C,
    ) -> Result<Option<Result<C::Ok, (Operation, Status)>>, Error> {
        let mut attempt = Attempt::new(&self.pool, name);
        loop {
            match self.call_in_recovery(credential, name, compound).await? {
                Outcome::Done(result) => return Ok(Some(result)),
                Outcome::Lost { .. } => return Ok(None),
                Outcome::Later { .. } | Outcome::NoReply => {
                    attempt.pause("the server asks to retry later".into()).await?;
                }
            }
        }
    }

    /// Waits for the end of a recovery in progress.
    pub(super) async fn recovered(&self) {
        drop(self.known.lock().await);
    }
}

/// Connections that are closed when the value is dropped.
struct Closing(Vec<Connection>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.iter().for_each(|c| c.transport.close());
    }
}

/// Whether the server lacks NFS version 4 or the minor version.
pub(crate) fn is_unsupported(error: &Error) -> bool {
    use millrace_oncrpc::{AcceptError, RpcError};
    match error {
        Error::Nfs4 { status, .. } => *status == Status::MinorVersMismatch,
        Error::Rpc { error: RpcError::Accept(e), .. } => {
            matches!(e, AcceptError::ProgUnavail | AcceptError::ProgMismatch { .. })
        }
        _ => false,
    }
}

/// Renews the lease while the client exists and makes no other calls.
async fn renew_lease(rt: RuntimeRef, session: Weak<Session>) {
    loop {
        let Some(lease) = session.upgrade().map(|s| s.lease()) else { return };
        // At most two thirds of a lease pass between the last call and the renewal.
        rt.sleep(lease / 3).await;
        let Some(session) = session.upgrade().filter(|s| !s.pool.is_closed()) else { return };
        if session.renewed.swap(false, Ordering::Relaxed) {
            continue;
        }
        let spec = spec("SEQUENCE", STATE_REPLY, CallClass::Other);
        if let Err(e) = session.call(&session.credential, spec, false, &Nothing, None).await {
            tracing::debug!(server = session.pool.server(), "cannot renew the lease: {e}");
        }
    }
}
