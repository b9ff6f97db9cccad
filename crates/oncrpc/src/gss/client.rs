//! The client's side: the context of a user at a server, and the protection of calls with it.
//!
//! Programs submit calls in the clear, with an AUTH_NONE credential, and a [`CallSeal`]. The transport applies it when it
//! sends the call: the signature covers the transaction id, and numbers of calls on one connection are to be in order. Each
//! transmission gets a new number (RFC 2203 section 5.3.3.1). The transport opens the reply too, so that nothing of it is used
//! before it is verified.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::channel::oneshot;
use millrace_krb5::{Context, PLAIN_AT};
use millrace_runtime::{RuntimeRef, sync::Mutex};
use millrace_xdr::{Arena, Decoder, Encoder, Message, OutOfMemory};

use super::{
    body::{self, BodyError},
    seal::{Content, Header, confounder, put_verifier},
    wire::{COMPLETE, GssCredential, InitResults, MAX_SEQUENCE, Purpose},
};
use crate::{
    AuthStat, Credential, MAX_AUTH_BODY, Protection, Reply, ReplySpec, ReplyStatus, Request, RpcError,
    Transport, call_header,
    message::{Accepted, RPCSEC_GSS},
    parse_reply,
};

/// Bytes of the header of a call with an AUTH_NONE credential and verifier.
const PLAIN_HEADER: usize = 40;
/// Bytes of the longest handle: the rest of a credential has 20.
const MAX_HANDLE: usize = MAX_AUTH_BODY - 20;
/// The number from which on a context is replaced, before its last one.
const LAST_SEQUENCE: u32 = MAX_SEQUENCE - (1 << 24);
/// Bytes of the longest reply to a call that establishes a context: with a token of Kerberos or an error of it.
const INIT_REPLY: usize = 16 << 10;

/// Initiates contexts at a client.
pub trait Initiator: Send + Sync + 'static {
    /// Begins a context. May block: it is called on a thread for that.
    ///
    /// # Errors
    /// [`NoContext`].
    fn begin(&self) -> Result<Begun, NoContext>;
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
}

/// RPCSEC_GSS at a client, for one user: the context of the user at a server, which all connections share. It is renewed before
/// it ends, and established again after the server has lost it.
pub struct GssClient {
    initiator: Arc<dyn Initiator>,
    protection: Protection,
    rt: RuntimeRef,
    arena: Arena,
    state: Mutex<State>,
    /// Held while a context is established.
    setup: futures::lock::Mutex<()>,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    /// Number of attempts to establish a context, and why the last one failed.
    attempts: u64,
    failure: Option<GssError>,
}

struct Current {
    context: Arc<ClientContext>,
    /// Time of the wall clock from which on another one is established.
    renewal: Duration,
}

impl fmt::Debug for GssClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GssClient").field("protection", &self.protection).finish_non_exhaustive()
    }
}

impl GssClient {
    /// A user without a context. Messages are allocated in `arena`.
    pub fn new(
        initiator: Arc<dyn Initiator>,
        protection: Protection,
        rt: RuntimeRef,
        arena: Arena,
    ) -> Arc<Self> {
        let (state, setup) = (Mutex::default(), futures::lock::Mutex::new(()));
        Arc::new(Self { initiator, protection, rt, arena, state, setup })
    }

    fn seal_of(&self, context: &Arc<ClientContext>) -> CallSeal {
        CallSeal { context: Arc::clone(context), purpose: Purpose::Data(self.protection) }
    }

    /// What protects the next call, if there is a context that need not be renewed yet.
    pub fn ready(&self) -> Option<CallSeal> {
        let now = self.rt.wall_clock();
        let state = self.state.lock();
        let current = state.current.as_ref().filter(|current| now < current.renewal)?;
        (current.context.sequence.load(Ordering::Relaxed) < LAST_SEQUENCE)
            .then(|| self.seal_of(&current.context))
    }

    /// As [`Self::ready`], with a context that may be due for renewal.
    fn valid(&self) -> Option<CallSeal> {
        let now = self.rt.wall_clock();
        let state = self.state.lock();
        let current = state.current.as_ref().filter(|current| now < current.context.keys.end())?;
        (current.context.sequence.load(Ordering::Relaxed) < LAST_SEQUENCE)
            .then(|| self.seal_of(&current.context))
    }

    /// What protects the next call. Establishes a context with calls of `program`, a number and a version, on `transport`, if
    /// there is none or it ends soon.
    ///
    /// # Errors
    /// [`GssError`].
    pub async fn seal(
        &self,
        transport: &Arc<dyn Transport>,
        program: (u32, u32),
    ) -> Result<CallSeal, GssError> {
        if let Some(seal) = self.ready() {
            return Ok(seal);
        }
        let attempts = self.state.lock().attempts;
        let _setup = match self.setup.try_lock() {
            Some(setup) => setup,
            // Another call renews the context.
            None => match self.valid() {
                Some(seal) => return Ok(seal),
                None => self.setup.lock().await,
            },
        };
        if let Some(seal) = self.ready() {
            return Ok(seal);
        }
        {
            // The attempt for which this call has waited is its own too.
            let state = self.state.lock();
            if let Some(failure) = state.failure.as_ref().filter(|_| state.attempts != attempts) {
                return Err(failure.clone());
            }
        }
        let established = self.establish(transport, program).await;
        let mut state = self.state.lock();
        state.attempts += 1;
        match established {
            Ok(context) => {
                let (now, end) = (self.rt.wall_clock(), context.keys.end());
                // A tenth of the time is left for the attempts to renew it.
                let renewal = end - end.saturating_sub(now) / 10;
                let seal = self.seal_of(&context);
                state.current = Some(Current { context, renewal });
                state.failure = None;
                Ok(seal)
            }
            Err(e) => {
                state.failure = Some(e.clone());
                let now = self.rt.wall_clock();
                let State { current, .. } = &mut *state;
                let Some(current) = current.as_mut().filter(|current| now < current.context.keys.end())
                else {
                    return Err(e);
                };
                tracing::warn!("a security context is not renewed yet: {e}");
                current.renewal = now + (current.context.keys.end() - now) / 4;
                Ok(self.seal_of(&current.context))
            }
        }
    }

    /// Gives up a context that the server has lost.
    pub fn reject(&self, seal: &CallSeal) {
        let mut state = self.state.lock();
        if state.current.as_ref().is_some_and(|current| Arc::ptr_eq(&current.context, &seal.context)) {
            state.current = None;
        }
    }

    /// Gives up the context. Returns the call of `program` that ends it at the server.
    pub fn end(&self, program: (u32, u32)) -> Option<Request> {
        let context = self.state.lock().current.take()?.context;
        let call = self.null_call(program, &Credential::None).finish().ok()?;
        let seal = CallSeal { context, purpose: Purpose::Destroy };
        Some(Request { seal: Some(seal), ..Request::new(call, ReplySpec::default()) })
    }

    /// The header of a call without arguments.
    fn null_call(&self, (program, version): (u32, u32), credential: &impl millrace_xdr::Encode) -> Encoder {
        let mut e = Encoder::new(&self.arena, 256);
        call_header(&mut e, program, version, 0, credential);
        e
    }

    /// Establishes a context.
    async fn establish(
        &self,
        transport: &Arc<dyn Transport>,
        program: (u32, u32),
    ) -> Result<Arc<ClientContext>, GssError> {
        let initiator = Arc::clone(&self.initiator);
        let Begun { token, finish } = self.blocking(move || initiator.begin()).await?;
        let mut e =
            self.null_call(program, &GssCredential { purpose: Purpose::Init, sequence: 0, handle: &[] });
        e.put_opaque(&token);
        let call = e.finish().map_err(no_memory)?;
        let spec = ReplySpec { max_head: INIT_REPLY, ..ReplySpec::default() };
        let reply = transport.submit(Request::new(call, spec)).await.map_err(|e| match e {
            RpcError::Auth(stat) => GssError::Unsupported(stat),
            e => GssError::Call(e),
        })?;
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
        Ok(Arc::new(ClientContext {
            keys,
            handle: handle.into(),
            sequence: AtomicU32::new(1),
            rt: Arc::clone(&self.rt),
            arena: self.arena.clone(),
        }))
    }

    /// Runs work that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, NoContext> + Send + 'static,
    ) -> Result<T, GssError> {
        let (done, result) = oneshot::channel();
        self.rt.spawn_blocking(Box::new(move || drop(done.send(work()))));
        let ended = |_| GssError::Call(RpcError::Local("the runtime of this client has ended".into()));
        Ok(result.await.map_err(ended)??)
    }
}

fn no_memory(e: OutOfMemory) -> RpcError {
    RpcError::Local(e.to_string())
}

/// An established context.
struct ClientContext {
    keys: Box<Context>,
    /// The name of the context at the server.
    handle: Box<[u8]>,
    /// Number of the next call.
    sequence: AtomicU32,
    rt: RuntimeRef,
    arena: Arena,
}

/// What protects a call.
#[derive(Clone)]
pub struct CallSeal {
    context: Arc<ClientContext>,
    purpose: Purpose,
}

impl fmt::Debug for CallSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSeal").field("keys", &self.context.keys).finish_non_exhaustive()
    }
}

impl CallSeal {
    fn protection(&self) -> Protection {
        match self.purpose {
            Purpose::Data(protection) => protection,
            _ => Protection::Authentication,
        }
    }

    /// Whether payloads of the call and its reply are separate items, which RPC-over-RDMA may move apart from the message
    /// (RFC 8166 section 3.4.1). Otherwise they are inside of another item.
    pub fn keeps_items(&self) -> bool {
        self.protection() == Protection::Authentication
    }

    /// The memory for the protected reply, from that for one in the clear.
    pub fn reply_spec(&self, mut spec: ReplySpec) -> ReplySpec {
        let keys = &self.context.keys;
        let verifier = keys.mic_len();
        // What is before the results, and after them.
        let (before, after) = match self.protection() {
            Protection::Authentication => (verifier, 0),
            Protection::Integrity => (verifier + 8, 4 + keys.mic_len()),
            Protection::Privacy => (verifier + 4 + PLAIN_AT + 4, keys.wrap_tail() + 3),
        };
        spec.max_head += before + after;
        if self.protection() == Protection::Privacy {
            spec.payload_offset = 0; // It has a place when it is decrypted.
        } else if spec.payload_offset > 0 {
            spec.payload_offset += before;
        }
        spec
    }

    /// Protects a call with the transaction id `xid`. Returns it with what opens its reply.
    ///
    /// # Errors
    /// [`RpcError::Local`]: there is no memory.
    pub fn apply(&self, call: Message, xid: u32) -> Result<(Message, ReplyCheck), RpcError> {
        let ClientContext { keys, handle, sequence, rt, arena } = &*self.context;
        let invalid = |what: &str| RpcError::Local(format!("the call cannot be protected: {what}"));
        let plain = call.head.iter().next().and_then(|view| view.first_chunk::<PLAIN_HEADER>());
        let plain = plain.ok_or_else(|| invalid("its header is not in one piece"))?;
        let sequence = sequence.fetch_add(1, Ordering::Relaxed);
        if sequence > MAX_SEQUENCE {
            return Err(invalid("the security context has no more numbers"));
        }
        let mut header = Header::from_slice(&xid.to_be_bytes());
        header.extend_from_slice(&plain[4..24]);
        GssCredential { purpose: self.purpose, sequence, handle }.append_to(&mut header);
        let mic = keys.mic([&header[..]]);
        put_verifier(&mut header, &mic);
        let protection = self.protection();
        let confounder = confounder(protection, |bytes| rt.fill_random(bytes));
        let content = Content { keys, sequence, protection, confounder };
        let call = content.protect(call, PLAIN_HEADER, header, arena).map_err(|e| invalid(&e.to_string()))?;
        Ok((call, ReplyCheck { context: Arc::clone(&self.context), sequence, protection }))
    }
}

/// Verifies and opens the reply to one call.
pub struct ReplyCheck {
    context: Arc<ClientContext>,
    sequence: u32,
    protection: Protection,
}

impl fmt::Debug for ReplyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyCheck").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl ReplyCheck {
    /// Checks that `message` from `peer` is a successful reply which the server has protected as the call, and opens it.
    ///
    /// # Errors
    /// The status of the reply, which is verified unless it denies the call; [`RpcError::BadReply`].
    pub fn open(&self, mut message: Message, peer: &dyn fmt::Display) -> Result<Reply, RpcError> {
        let ClientContext { keys, arena, .. } = &*self.context;
        let bad = |what: &str| RpcError::BadReply { peer: peer.to_string(), what: what.to_owned() };
        let at = {
            let mut d = Decoder::new(&message);
            let Ok(accepted) = d.get::<Accepted<'_>>() else {
                // It denies the call, or is malformed.
                return match parse_reply(message, peer) {
                    Ok(_) => Err(bad("it is not accepted")),
                    Err(e) => Err(e),
                };
            };
            if accepted.flavor != RPCSEC_GSS {
                return Err(bad("the server has not signed it, as the security context requires"));
            }
            keys.verify([&self.sequence.to_be_bytes()[..]], accepted.verifier)
                .map_err(|_| bad("its verifier is not the server's for this call"))?;
            (accepted.status == ReplyStatus::Success).then(|| d.position())
        };
        let Some(at) = at else { return parse_reply(message, peer).and(Err(bad("it has no results"))) };
        let opened = body::open(&mut message, at, keys, self.protection, self.sequence, arena);
        let results = opened.map_err(|e| match e {
            BodyError::Invalid(what) => bad(what),
            BodyError::Memory(e) => no_memory(e),
        })?;
        message.head.truncate(results.end);
        Ok(Reply { message, results_at: results.start })
    }
}
