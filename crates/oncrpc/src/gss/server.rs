//! The server's side: contexts, and the calls that use them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::channel::oneshot;
use millrace_admission::ClientAddr;
use millrace_runtime::{MaybeReady, RuntimeRef, sync::Mutex};
use millrace_xdr::{Arena, Encoder, Message};

use super::{
    Accepted, Acceptor, Refused,
    body::{self, BodyError},
    contexts::{ContextHandle, Contexts, ServerContext},
    queue::Queue,
    seal::{self, Seal},
    window::ANNOUNCED,
    wire::{COMPLETE, GssCredential, InitResults, MAX_SEQUENCE, MAX_TOKEN, Purpose},
};
use crate::{
    AcceptError, AuthStat, CallContext, Credential, GssIdentity, MAX_AUTH_BODY, Peer, Protection,
    ReplyStatus, Sender, Service,
    message::{AUTH_NONE, RPCSEC_GSS, bare_reply, success_header},
};

/// Contexts that are established at a time. Each takes milliseconds of a thread, and may read files.
const MAX_ESTABLISHED_AT_ONCE: usize = 4;

/// RPCSEC_GSS at a server: its acceptor, which may be replaced, and the contexts of its clients. All connections share it.
pub struct GssServer {
    acceptor: Mutex<Option<Arc<dyn Acceptor>>>,
    contexts: Contexts,
    queue: Arc<Queue<ClientAddr>>,
    refused: AtomicU64,
    discarded: AtomicU64,
}

impl Default for GssServer {
    fn default() -> Self {
        let queue = Arc::new(Queue::new(MAX_ESTABLISHED_AT_ONCE));
        let (refused, discarded) = Default::default();
        Self { acceptor: Mutex::default(), contexts: Contexts::default(), queue, refused, discarded }
    }
}

/// Counts of contexts and calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GssStats {
    /// Present contexts.
    pub contexts: usize,
    /// Contexts that were refused.
    pub refused: u64,
    /// Calls that were discarded because they are not in the window of sequence numbers, such as replayed ones.
    pub discarded: u64,
}

/// The context of the last call of a connection. Most connections have one user.
#[derive(Default)]
pub(crate) struct LastContext(Option<(Arc<ServerContext>, Arc<Sender>)>);

/// A call with a credential of RPCSEC_GSS, and what its answer needs.
pub(crate) enum GssCall {
    /// A call of a program, and the protection of its reply.
    Data(Seal),
    /// A call that is answered with this status.
    Failed(Seal, AcceptError),
    /// A call that establishes a context with the token in its arguments.
    Init(Arc<GssServer>, RuntimeRef),
    /// A call that has ended its context.
    Destroyed(Seal),
    /// A call that gets no answer, and ends its connection: the client calls again on another one, with another number.
    Discarded,
}

impl std::fmt::Debug for GssServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GssServer").field(&self.stats()).finish()
    }
}

impl GssServer {
    /// Replaces the acceptor; `None`: no contexts are established. Contexts of the previous one end, and their clients
    /// establish others.
    pub fn set(&self, acceptor: Option<Arc<dyn Acceptor>>) {
        *self.acceptor.lock() = acceptor;
        self.contexts.clear();
    }

    /// Counts.
    pub fn stats(&self) -> GssStats {
        GssStats {
            contexts: self.contexts.len(),
            refused: self.refused.load(Ordering::Relaxed),
            discarded: self.discarded.load(Ordering::Relaxed),
        }
    }

    /// Verifies a call with a credential of RPCSEC_GSS (RFC 2203 section 5.3.3), and makes it one of the user of its context
    /// with open arguments. `last` is the context of the connection's last call, and becomes that of this one.
    ///
    /// # Errors
    /// The status with which the call is denied.
    pub(crate) fn receive(
        self: &Arc<Self>,
        call: &mut CallContext,
        last: &mut LastContext,
        rt: &RuntimeRef,
        arena: &Arena,
    ) -> Result<GssCall, AuthStat> {
        let header = Header::of(call).ok_or(AuthStat::BadCred)?;
        let credential = GssCredential::decode(header.credential, call.header.proc)?;
        let protection = match credential.purpose {
            Purpose::Init | Purpose::ContinueInit if header.verifier != (0, &[]) => {
                return Err(AuthStat::BadVerf);
            }
            Purpose::Init => return Ok(GssCall::Init(Arc::clone(self), Arc::clone(rt))),
            // Kerberos 5 needs one token: no context is incomplete.
            Purpose::ContinueInit => return Err(AuthStat::GssCredProblem),
            Purpose::Destroy => Protection::Authentication,
            Purpose::Data(protection) => protection,
        };
        let (RPCSEC_GSS, mic) = header.verifier else { return Err(AuthStat::BadVerf) };
        let now = rt.wall_clock();
        let (context, sender) = self.context(credential.handle, protection, last, &call.sender)?;
        if !context.is_valid(now) {
            self.contexts.remove(&context);
            *last = LastContext::default();
            return Err(AuthStat::GssCredProblem);
        }
        context.keys.verify([header.signed], mic).map_err(|e| {
            tracing::debug!(peer = %call.sender.peer.addr, principal = context.caller.principal, "call refused: {e}");
            AuthStat::GssCredProblem
        })?;
        let sequence = credential.sequence;
        if sequence > MAX_SEQUENCE {
            return Err(AuthStat::GssCtxProblem);
        }
        if !context.window.lock().accept(sequence) {
            let principal = &context.caller.principal;
            tracing::debug!(peer = %call.sender.peer.addr, principal, sequence, "discarded a call that is not in the window");
            self.discarded.fetch_add(1, Ordering::Relaxed);
            return Ok(GssCall::Discarded);
        }
        context.touch(now);
        let seal = |context| Seal::new(context, sequence, protection, |bytes| rt.fill_random(bytes));
        if credential.purpose == Purpose::Destroy {
            self.contexts.remove(&context);
            *last = LastContext::default();
            return Ok(GssCall::Destroyed(seal(context)));
        }
        let at = header.end;
        let opened = call.open(|message| body::open(message, at, &context.keys, protection, sequence, arena));
        call.sender = sender;
        Ok(match opened {
            Ok(()) => GssCall::Data(seal(context)),
            Err(e) => {
                let principal = &context.caller.principal;
                tracing::debug!(peer = %call.sender.peer.addr, principal, "arguments refused: {e}");
                let status = match e {
                    BodyError::Invalid(_) => AcceptError::GarbageArgs,
                    BodyError::Memory(_) => AcceptError::SystemErr,
                };
                GssCall::Failed(seal(context), status)
            }
        })
    }

    /// The context with this handle, and the sender of its calls.
    fn context(
        &self,
        handle: &[u8],
        protection: Protection,
        last: &mut LastContext,
        sender: &Sender,
    ) -> Result<(Arc<ServerContext>, Arc<Sender>), AuthStat> {
        let is_of = |sender: &Sender| matches!(&sender.credential, Credential::Gss(gss) if gss.protection == protection);
        if let Some((context, sender)) = &last.0
            && context.handle == handle
            && is_of(sender)
        {
            return Ok((Arc::clone(context), Arc::clone(sender)));
        }
        let handle = handle.try_into().map_err(|_| AuthStat::GssCredProblem)?;
        let context = self.contexts.find(&handle).ok_or(AuthStat::GssCredProblem)?;
        let reply_overhead = seal::overhead(&context.keys, protection);
        let identity = GssIdentity { caller: Arc::clone(&context.caller), protection, reply_overhead };
        let sender = Arc::new(Sender { credential: Credential::Gss(identity), ..sender.clone() });
        last.0 = Some((Arc::clone(&context), Arc::clone(&sender)));
        Ok((context, sender))
    }

    /// Whether contexts can be established.
    pub(crate) fn is_enabled(&self) -> bool {
        self.acceptor.lock().is_some()
    }

    /// Establishes a context with the token in the arguments of `call`. Returns the reply.
    async fn establish(
        self: Arc<Self>,
        call: CallContext,
        rt: RuntimeRef,
        reply: Encoder,
    ) -> Option<Message> {
        let xid = call.header.xid;
        let Ok(token) = token(&call) else {
            return bare_reply(xid, ReplyStatus::Accept(AcceptError::GarbageArgs), reply);
        };
        let peer = call.sender.peer;
        drop(call);
        let acceptor = self.acceptor.lock().clone();
        let Some(acceptor) = acceptor else {
            return bare_reply(xid, ReplyStatus::Auth(AuthStat::BadCred), reply);
        };
        let client = ClientAddr::from(peer.addr.ip());
        let admitted = self.queue.admit(client).await?;
        let (done, accepted) = oneshot::channel();
        rt.spawn_blocking(Box::new(move || {
            drop(done.send(acceptor.accept(&token)));
            drop(admitted);
        }));
        match accepted.await.ok()? {
            Ok(accepted) => self.established(xid, accepted, client, &peer, &rt, reply),
            Err(refused) => {
                let Refused { token, major, minor, reason } = refused;
                self.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(peer = %peer.addr, "security context refused: {reason}");
                init_reply(
                    xid,
                    None,
                    &InitResults { handle: &[], major, minor, window: ANNOUNCED, token: &token },
                    reply,
                )
            }
        }
    }

    /// Adds a context. Its client may use it as soon as it has the reply.
    fn established(
        &self,
        xid: u32,
        accepted: Accepted,
        client: ClientAddr,
        peer: &Peer,
        rt: &RuntimeRef,
        reply: Encoder,
    ) -> Option<Message> {
        let Accepted { token, context: keys, caller } = accepted;
        let user = caller.user.as_ref().map(|user| user.uid);
        tracing::debug!(peer = %peer.addr, principal = caller.principal, ?user, enctype = %keys.enctype(), "security context established");
        let mut handle = ContextHandle::default();
        rt.fill_random(&mut handle);
        let now = rt.wall_clock();
        let context = ServerContext::new(handle, keys, caller, client, now);
        let mic = context.keys.mic([&ANNOUNCED.to_be_bytes()[..]]);
        self.contexts.add(&context, now);
        let results =
            InitResults { handle: &handle, major: COMPLETE, minor: 0, window: ANNOUNCED, token: &token };
        init_reply(xid, Some(&mic), &results, reply)
    }
}

/// The token in the arguments of `call`.
fn token(call: &CallContext) -> Result<Vec<u8>, millrace_xdr::XdrError> {
    let mut d = call.args();
    // The arguments may be in several buffers.
    let rest: Vec<u8> = {
        let bytes: usize = d.rest().map(<[u8]>::len).sum();
        if bytes > MAX_TOKEN + 8 {
            return Err(millrace_xdr::XdrError::TooLong { at: d.position(), len: bytes, max: MAX_TOKEN });
        }
        d.rest().flatten().copied().collect()
    };
    d = millrace_xdr::Decoder::from_bytes(&rest);
    d.opaque(MAX_TOKEN).map(<[u8]>::to_vec)
}

/// The reply to a call that establishes a context, with this verifier or none.
fn init_reply(
    xid: u32,
    verifier: Option<&[u8]>,
    results: &InitResults<'_>,
    mut reply: Encoder,
) -> Option<Message> {
    reply.truncate(0);
    let flavor = if verifier.is_some() { RPCSEC_GSS } else { AUTH_NONE };
    success_header(&mut reply, xid, flavor, verifier.unwrap_or_default());
    reply.put(results);
    reply.finish().ok()
}

/// The parts of the header of a call that RPCSEC_GSS looks at.
struct Header<'m> {
    /// From the transaction id to the end of the credential.
    signed: &'m [u8],
    /// The body of the credential.
    credential: &'m [u8],
    /// Flavor and body.
    verifier: (u32, &'m [u8]),
    /// Position of the arguments.
    end: usize,
}

impl<'m> Header<'m> {
    /// `None`: the header is not in one piece.
    fn of(call: &'m CallContext) -> Option<Self> {
        /// Transaction id, message type, RPC version, program, version, procedure and flavor.
        const FLAVOR_END: usize = 28;
        let bytes: &[u8] = call.message().head.iter().next()?;
        let mut d = millrace_xdr::Decoder::from_bytes(bytes);
        d.raw(FLAVOR_END).ok()?;
        let credential = d.opaque(MAX_AUTH_BODY).ok()?;
        let signed = bytes.get(..d.position())?;
        let verifier = (d.u32().ok()?, d.opaque(MAX_AUTH_BODY).ok()?);
        Some(Self { signed, credential, verifier, end: d.position() })
    }
}

impl GssCall {
    /// Executes a call with valid arguments (`runs`), or answers it.
    pub(crate) fn execute(
        self,
        call: CallContext,
        runs: bool,
        service: &dyn Service,
        reply: Encoder,
    ) -> MaybeReady<'static, Option<Message>> {
        let (xid, arena) = (call.header.xid, reply.arena().clone());
        let (seal, status) = match self {
            Self::Data(seal) if runs => {
                let reply = service.call(call, reply);
                return reply.map(move |reply| seal.apply(reply?, &arena));
            }
            Self::Data(seal) => (seal, ReplyStatus::Accept(AcceptError::GarbageArgs)),
            Self::Failed(seal, error) => (seal, ReplyStatus::Accept(error)),
            Self::Destroyed(seal) => (seal, ReplyStatus::Success),
            Self::Init(server, rt) => return MaybeReady::wait(server.establish(call, rt, reply)),
            Self::Discarded => return MaybeReady::Ready(None),
        };
        MaybeReady::Ready(bare_reply(xid, status, reply).and_then(|reply| seal.apply(reply, &arena)))
    }

    /// Whether a program executes the call.
    pub(crate) fn is_for_program(&self) -> bool {
        matches!(self, Self::Data(_))
    }

    /// Bytes of memory that the reply to a call needs, if one without protection needs `bytes`.
    pub(crate) fn reply_bytes(&self, bytes: u32) -> u32 {
        match self {
            Self::Data(seal) => bytes.saturating_add(seal.extra_bytes(bytes)),
            _ => bytes,
        }
    }
}
