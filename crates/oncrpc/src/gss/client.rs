//! The client's side: the context of a user at a server. [`super::client_context`] protects calls with it.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, channel::oneshot, future::Shared};
use millrace_krb5::Context;
use millrace_runtime::{Instant, RuntimeRef, sync::Mutex, timeout};
use millrace_xdr::{Arena, Decoder};

use super::{
    client_context::{CallSeal, ClientContext, no_memory, null_call},
    queue::Queue,
    wire::{COMPLETE, GssCredential, InitResults, Purpose},
};
use crate::{
    AuthStat, MAX_AUTH_BODY, Protection, ReplySpec, Request, RpcError, Transport,
    message::{Accepted, RPCSEC_GSS},
};

/// Bytes of the longest handle: the rest of a credential has 20.
const MAX_HANDLE: usize = MAX_AUTH_BODY - 20;
/// Bytes of the longest reply to a call that establishes a context: with a token of Kerberos or an error of it.
const INIT_REPLY: usize = 16 << 10;

/// The threads on which contexts are initiated. One that waits for a key distribution center or for the lock of a credential
/// cache, which any program of the user can hold, is occupied until then.
#[derive(Clone)]
pub struct InitiatorThreads(Arc<Queue<()>>);

impl InitiatorThreads {
    /// At most `most` threads at a time.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Queue::new(most)))
    }
}

/// Initiates contexts at a client.
pub trait Initiator: Send + Sync + 'static {
    /// Begins a context. May block: it is called on a thread for that.
    ///
    /// # Errors
    /// [`NoContext`].
    fn begin(&self) -> Result<Begun, NoContext>;

    /// Why there is no context if [`Self::begin`] or [`Begun::finish`] has not returned within the time `after`.
    fn late(&self, after: Duration) -> NoContext;
}

/// A context that was begun. In Kerberos 5, each side sends one token (RFC 4121 section 4.1).
pub struct Begun {
    /// For the server.
    pub token: Vec<u8>,
    /// Takes the token of the server. May block.
    pub finish: Finish,
}

/// The end of a negotiation. Returns the context in the role of the initiator, and the principal of the latter.
pub type Finish = Box<dyn FnOnce(&[u8]) -> Result<(Box<Context>, String), NoContext> + Send>;

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun").finish_non_exhaustive()
    }
}

/// Why a client has no context, according to its own side: no ticket, an expired one, an unknown service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NoContext {
    /// What failed, for which principal and service, and what to do.
    pub reason: String,
    /// Whether the ticket has expired.
    pub expired: bool,
}

/// Why a client has no context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GssError {
    /// The client cannot initiate one.
    #[error(transparent)]
    Initiate(#[from] NoContext),
    /// The server has refused it, and not said why in a form of Kerberos.
    #[error(
        "the server has refused the security context (major status {major:#x}, minor {minor}); its log has the cause"
    )]
    Refused {
        /// `major_status` (RFC 2744 section 3.9.1).
        major: u32,
        /// `minor_status`.
        minor: u32,
    },
    /// The server has no RPCSEC_GSS.
    #[error("the server accepts no security contexts: it is not set up for Kerberos ({0:?})")]
    Unsupported(AuthStat),
    /// The reply to the call that establishes it is not one of the service.
    #[error("the server has not proved that it is the service: {0}")]
    Unproved(&'static str),
    /// The call that establishes it failed.
    #[error(transparent)]
    Call(#[from] RpcError),
    /// The server has not answered in time.
    #[error("the server has not answered {calls} within {after:?}")]
    NoAnswer {
        /// The calls.
        calls: &'static str,
        /// The time limit.
        after: Duration,
    },
}

/// RPCSEC_GSS at a client, for one user: the context of the user at a server, which all connections share. It is renewed before
/// it ends, while calls use the old one, and established again after the server has lost it.
pub struct GssClient {
    initiator: Arc<dyn Initiator>,
    threads: InitiatorThreads,
    protection: Protection,
    rt: RuntimeRef,
    arena: Arena,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    /// The attempt in progress to establish a context. It continues without the calls that wait for it, so that a user never
    /// occupies more than one thread.
    attempt: Option<Attempt>,
}

struct Current {
    context: Arc<ClientContext>,
    /// Time of the wall clock from which on another one is established.
    renewal: Duration,
}

/// An attempt to establish a context.
#[derive(Clone)]
struct Attempt {
    transport: Arc<dyn Transport>,
    /// Whether it waits for the server, and not for the initiator.
    asks_server: Arc<AtomicBool>,
    outcome: Shared<oneshot::Receiver<Result<(), GssError>>>,
}

/// What a call waits for.
enum Wait {
    Attempt(Attempt),
    Room(oneshot::Receiver<CallSeal>),
}

impl fmt::Debug for GssClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GssClient").field("protection", &self.protection).finish_non_exhaustive()
    }
}

impl GssClient {
    /// A user without a context, which is initiated on one of `threads`. Messages are allocated in `arena`.
    pub fn new(
        initiator: Arc<dyn Initiator>,
        threads: InitiatorThreads,
        protection: Protection,
        rt: RuntimeRef,
        arena: Arena,
    ) -> Arc<Self> {
        Arc::new(Self { initiator, threads, protection, rt, arena, state: Mutex::default() })
    }

    /// What protects the next call, if it need not wait. A context that ends soon is renewed meanwhile, with calls of
    /// `program`, a number and a version, on `transport`.
    pub fn ready(self: &Arc<Self>, transport: &Arc<dyn Transport>, program: (u32, u32)) -> Option<CallSeal> {
        self.next(transport, program).ok()
    }

    /// What protects the next call. Establishes a context with calls of `program` on `transport`, if there is none, and waits
    /// until the window of the server has room for the call, for at most `limit` in all.
    ///
    /// # Errors
    /// [`GssError`].
    pub async fn seal(
        self: &Arc<Self>,
        transport: &Arc<dyn Transport>,
        program: (u32, u32),
        limit: Duration,
    ) -> Result<CallSeal, GssError> {
        let until = self.rt.now() + limit;
        loop {
            match self.next(transport, program) {
                Ok(seal) => return Ok(seal),
                Err(Wait::Room(room)) => match self.until(until, room).await {
                    Some(Ok(seal)) if !seal.is_lost() => return Ok(seal),
                    Some(_) => {}
                    None => {
                        return Err(GssError::NoAnswer { calls: "enough calls of the user", after: limit });
                    }
                },
                Err(Wait::Attempt(attempt)) => match self.until(until, attempt.outcome.clone()).await {
                    Some(Ok(Ok(()))) => {}
                    // The failure of another connection.
                    Some(Ok(Err(GssError::Call(_)))) if !Arc::ptr_eq(&attempt.transport, transport) => {}
                    Some(Ok(Err(e))) => return Err(e),
                    Some(Err(_)) => return Err(runtime_has_ended()),
                    None if attempt.asks_server.load(Ordering::Relaxed) => {
                        let calls = "the call that establishes a security context";
                        return Err(GssError::NoAnswer { calls, after: limit });
                    }
                    None => return Err(self.initiator.late(limit).into()),
                },
            }
        }
    }

    /// What protects one of the last calls, which waits for no other: the context, if it is valid.
    pub fn seal_last(&self) -> Option<CallSeal> {
        let state = self.state.lock();
        let current =
            state.current.as_ref().filter(|current| current.context.is_valid(self.rt.wall_clock()))?;
        Some(current.context.admit_last())
    }

    /// Gives up the context. Returns the call of `program` that ends it at the server, if it is valid.
    pub fn end(&self, program: (u32, u32)) -> Option<Request> {
        let context = self.state.lock().current.take()?.context;
        context.destroy(program).filter(|_| context.is_valid(self.rt.wall_clock()))
    }

    /// What protects the next call, or what it waits for.
    fn next(self: &Arc<Self>, transport: &Arc<dyn Transport>, program: (u32, u32)) -> Result<CallSeal, Wait> {
        let now = self.rt.wall_clock();
        let mut state = self.state.lock();
        let Some(current) = state.current.as_ref().filter(|current| current.context.is_valid(now)) else {
            return Err(Wait::Attempt(self.attempt(&mut state, transport, program)));
        };
        let context = Arc::clone(&current.context);
        if now >= current.renewal || context.is_used_up() {
            self.attempt(&mut state, transport, program);
        }
        drop(state);
        context.admit().map_err(Wait::Room)
    }

    /// The attempt in progress, or another one.
    fn attempt(
        self: &Arc<Self>,
        state: &mut State,
        transport: &Arc<dyn Transport>,
        program: (u32, u32),
    ) -> Attempt {
        let new = || {
            let (done, outcome) = oneshot::channel();
            let (transport, asks_server) = (Arc::clone(transport), Arc::new(AtomicBool::new(false)));
            let attempt = Attempt { transport, asks_server, outcome: outcome.shared() };
            let (this, this_one) = (Arc::clone(self), attempt.clone());
            let run = async move {
                let established = this.establish(&this_one, program).await;
                drop(done.send(this.complete(established, &this_one.transport, program)));
            };
            self.rt.spawn("establish a security context", Box::pin(run));
            attempt
        };
        state.attempt.get_or_insert_with(new).clone()
    }

    /// Ends the attempt in progress.
    fn complete(
        &self,
        established: Result<ClientContext, GssError>,
        transport: &Arc<dyn Transport>,
        program: (u32, u32),
    ) -> Result<(), GssError> {
        let now = self.rt.wall_clock();
        let mut state = self.state.lock();
        state.attempt = None;
        match established {
            Ok(context) => {
                context.end_at(transport, program);
                // A tenth of the time is left for the attempts to renew it.
                let renewal = context.end() - context.end().saturating_sub(now) / 10;
                let replaced = state.current.replace(Current { context: Arc::new(context), renewal });
                drop(state);
                if let Some(replaced) = replaced {
                    // Its connection may not exist any more. It ends after its last call.
                    replaced.context.end_at(transport, program);
                }
                Ok(())
            }
            Err(e) => {
                if let Some(current) = state.current.as_mut().filter(|current| current.context.is_valid(now))
                {
                    tracing::warn!("a security context is not renewed yet: {e}");
                    current.renewal = now + (current.context.end() - now) / 4;
                }
                Err(e)
            }
        }
    }

    /// Establishes a context.
    async fn establish(&self, attempt: &Attempt, program: (u32, u32)) -> Result<ClientContext, GssError> {
        let initiator = Arc::clone(&self.initiator);
        let Begun { token, finish } = self.blocking(move || initiator.begin()).await?;
        let init = GssCredential { purpose: Purpose::Init, sequence: 0, handle: &[] };
        let mut e = null_call(&self.arena, program, &init);
        e.put_opaque(&token);
        let call = e.finish().map_err(no_memory)?;
        let spec = ReplySpec { max_head: INIT_REPLY, ..ReplySpec::default() };
        attempt.asks_server.store(true, Ordering::Relaxed);
        let reply = attempt.transport.submit(Request::new(call, spec)).await.map_err(|e| match e {
            RpcError::Auth(stat) => GssError::Unsupported(stat),
            e => GssError::Call(e),
        })?;
        attempt.asks_server.store(false, Ordering::Relaxed);
        let bytes = reply.message.head.to_vec();
        let malformed = |_| GssError::Unproved("its reply is malformed");
        let mut d = Decoder::from_bytes(&bytes);
        let accepted: Accepted<'_> = d.get().map_err(malformed)?;
        let results: InitResults<'_> = d.get().map_err(malformed)?;
        let InitResults { handle, major, minor, window, token } = results;
        let refused = GssError::Refused { major, minor };
        if major != COMPLETE && token.is_empty() {
            return Err(refused);
        }
        let answer = token.to_vec();
        let (keys, principal) = self.blocking(move || finish(&answer)).await?;
        if major != COMPLETE {
            return Err(refused);
        }
        let proof = (accepted.flavor == RPCSEC_GSS).then_some(accepted.verifier);
        proof.and_then(|mic| keys.verify([&window.to_be_bytes()[..]], mic).ok()).ok_or(
            GssError::Unproved("the verifier of its reply is not signed with the key of the context"),
        )?;
        if keys.end() <= self.rt.wall_clock() {
            let reason = format!("the ticket of {principal} has expired (get a new ticket: kinit)");
            return Err(NoContext { reason, expired: true }.into());
        }
        if !(1..=MAX_HANDLE).contains(&handle.len()) {
            return Err(GssError::Unproved("its handle has an invalid length"));
        }
        tracing::debug!(principal, enctype = %keys.enctype(), window, "security context established");
        let (rt, arena) = (Arc::clone(&self.rt), self.arena.clone());
        Ok(ClientContext::new(keys, (handle, window), self.protection, rt, arena))
    }

    /// Runs work that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, NoContext> + Send + 'static,
    ) -> Result<T, GssError> {
        let admitted = self.threads.0.admit(()).await.ok_or_else(runtime_has_ended)?;
        let (done, result) = oneshot::channel();
        self.rt.spawn_blocking(Box::new(move || {
            drop(done.send(work()));
            drop(admitted);
        }));
        Ok(result.await.map_err(|_| runtime_has_ended())??)
    }

    async fn until<F: Future>(&self, at: Instant, future: F) -> Option<F::Output> {
        timeout(&*self.rt, at.duration_since(self.rt.now()), future).await
    }
}

fn runtime_has_ended() -> GssError {
    GssError::Call(RpcError::Local("the runtime of this client has ended".into()))
}
