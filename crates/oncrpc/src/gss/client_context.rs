//! A context at a client, and the protection of calls with it.
//!
//! Programs submit calls in the clear, with an AUTH_NONE credential, and a [`CallSeal`]. The transport applies it when it
//! sends the call: the signature covers the transaction id, and numbers of calls on one connection are to be in order. Each
//! transmission gets a new number (RFC 2203 section 5.3.3.1). The transport opens the reply too, so that nothing of it is used
//! before it is verified.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::channel::oneshot;
use millrace_krb5::{Context, PLAIN_AT};
use millrace_runtime::{RuntimeRef, sync::Mutex};
use millrace_xdr::{Arena, Decoder, Encoder, Message, OutOfMemory};

use super::{
    body::{self, BodyError},
    numbers::Numbers,
    seal::{Content, Header, confounder, put_verifier},
    wire::{GssCredential, Purpose},
};
use crate::{
    Credential, Protection, Reply, ReplySpec, ReplyStatus, Request, RpcError, Transport, call_header,
    message::{Accepted, RPCSEC_GSS},
    parse_reply,
};

/// Bytes of the header of a call with an AUTH_NONE credential and verifier.
const PLAIN_HEADER: usize = 40;
/// Numbers that are left when a context is replaced.
const LAST_NUMBERS: u32 = 1 << 24;

pub(super) fn no_memory(e: OutOfMemory) -> RpcError {
    RpcError::Local(e.to_string())
}

/// The header of a call without arguments.
pub(super) fn null_call(
    arena: &Arena,
    (program, version): (u32, u32),
    credential: &impl millrace_xdr::Encode,
) -> Encoder {
    let mut e = Encoder::new(arena, 256);
    call_header(&mut e, program, version, 0, credential);
    e
}

/// The connection on which a context ends at the server, and the program of the call.
struct EndAt {
    transport: Weak<dyn Transport>,
    program: (u32, u32),
}

/// What the calls of a context wait for.
struct Calls {
    numbers: Numbers,
    /// Calls that wait until the server has received others.
    waiting: VecDeque<oneshot::Sender<CallSeal>>,
}

/// An established context. When it is dropped, after its last call, it ends at the server.
pub(super) struct ClientContext {
    keys: Arc<Context>,
    /// The name of the context at the server.
    handle: Arc<[u8]>,
    protection: Protection,
    calls: Mutex<Calls>,
    /// Whether the server has lost the context.
    lost: AtomicBool,
    /// `None`: the server is not notified.
    end_at: Mutex<Option<EndAt>>,
    rt: RuntimeRef,
    arena: Arena,
}

impl ClientContext {
    /// A context with the name `handle` at the server, which announced `window`.
    pub(super) fn new(
        keys: Box<Context>,
        (handle, window): (&[u8], u32),
        protection: Protection,
        rt: RuntimeRef,
        arena: Arena,
    ) -> Self {
        Self {
            keys: keys.into(),
            handle: handle.into(),
            protection,
            calls: Mutex::new(Calls { numbers: Numbers::new(window), waiting: VecDeque::new() }),
            lost: AtomicBool::new(false),
            end_at: Mutex::new(None),
            rt,
            arena,
        }
    }

    /// The time of the wall clock at which it ends.
    pub(super) fn end(&self) -> Duration {
        self.keys.end()
    }

    /// Whether it protects further calls at this time of the wall clock.
    pub(super) fn is_valid(&self, now: Duration) -> bool {
        now < self.end() && !self.lost.load(Ordering::Relaxed) && self.calls.lock().numbers.left() > 0
    }

    /// Whether there are few numbers left.
    pub(super) fn is_used_up(&self) -> bool {
        self.calls.lock().numbers.left() < LAST_NUMBERS
    }

    /// The context ends with a call of `program` on `transport`.
    pub(super) fn end_at(&self, transport: &Arc<dyn Transport>, program: (u32, u32)) {
        *self.end_at.lock() = Some(EndAt { transport: Arc::downgrade(transport), program });
    }

    fn seal(self: &Arc<Self>, purpose: Purpose) -> CallSeal {
        CallSeal { context: Arc::clone(self), purpose, applied: false }
    }

    /// What protects the next call; until the window of the server has room for it, what receives that then.
    pub(super) fn admit(self: &Arc<Self>) -> Result<CallSeal, oneshot::Receiver<CallSeal>> {
        let mut calls = self.calls.lock();
        if calls.numbers.has_room() {
            calls.numbers.admit();
            drop(calls);
            return Ok(self.seal(Purpose::Data(self.protection)));
        }
        let (send, admitted) = oneshot::channel();
        calls.waiting.push_back(send);
        Err(admitted)
    }

    /// What protects a call for which no other one is waited for.
    pub(super) fn admit_last(self: &Arc<Self>) -> CallSeal {
        self.calls.lock().numbers.admit();
        self.seal(Purpose::Data(self.protection))
    }

    /// The call of `program` that ends the context at the server.
    pub(super) fn destroy(self: &Arc<Self>, program: (u32, u32)) -> Option<Request> {
        *self.end_at.lock() = None;
        let call = null_call(&self.arena, program, &Credential::None).finish().ok()?;
        self.calls.lock().numbers.admit();
        let seal = Some(self.seal(Purpose::Destroy));
        Some(Request { seal, ..Request::new(call, ReplySpec::default()) })
    }

    /// Changes the numbers, and admits calls that wait, if that has made room.
    fn release(self: &Arc<Self>, change: impl FnOnce(&mut Numbers)) {
        let mut calls = self.calls.lock();
        change(&mut calls.numbers);
        while calls.numbers.has_room() {
            let Calls { numbers, waiting } = &mut *calls;
            let Some(next) = std::iter::from_fn(|| waiting.pop_front()).find(|next| !next.is_canceled())
            else {
                return;
            };
            numbers.admit();
            drop(calls);
            // If the call has just ended, what returns is dropped, and admits the one after it.
            drop(next.send(self.seal(Purpose::Data(self.protection))));
            calls = self.calls.lock();
        }
    }
}

impl Drop for ClientContext {
    fn drop(&mut self) {
        let Some(EndAt { transport, program }) = self.end_at.get_mut().take() else { return };
        let Some(transport) = transport.upgrade().filter(|_| self.is_valid(self.rt.wall_clock())) else {
            return;
        };
        let calls = self.calls.get_mut();
        let numbers = std::mem::replace(&mut calls.numbers, Numbers::new(1));
        let last = Arc::new(Self {
            keys: Arc::clone(&self.keys),
            handle: Arc::clone(&self.handle),
            protection: self.protection,
            calls: Mutex::new(Calls { numbers, waiting: VecDeque::new() }),
            lost: AtomicBool::new(false),
            end_at: Mutex::new(None),
            rt: Arc::clone(&self.rt),
            arena: self.arena.clone(),
        });
        let Some(request) = last.destroy(program) else { return };
        let end = async move { drop(transport.submit(request).await) };
        self.rt.spawn("end a security context", Box::pin(end));
    }
}

/// The context of a call, which may have ended.
#[derive(Clone)]
pub struct ContextRef(Weak<ClientContext>);

impl ContextRef {
    /// The server has lost the context: no further call is protected with it.
    pub fn reject(&self) {
        if let Some(context) = self.0.upgrade() {
            context.lost.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for ContextRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContextRef")
    }
}

/// What protects a call, which may be sent now.
pub struct CallSeal {
    context: Arc<ClientContext>,
    purpose: Purpose,
    applied: bool,
}

impl fmt::Debug for CallSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSeal").field("keys", &self.context.keys).finish_non_exhaustive()
    }
}

impl Drop for CallSeal {
    fn drop(&mut self) {
        if !self.applied {
            self.context.release(Numbers::forget);
        }
    }
}

impl CallSeal {
    /// The context of the call.
    pub fn context(&self) -> ContextRef {
        ContextRef(Arc::downgrade(&self.context))
    }

    /// Whether the server has lost the context.
    pub(super) fn is_lost(&self) -> bool {
        self.context.lost.load(Ordering::Relaxed)
    }

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

    /// Protects a call with the transaction id `xid`, which is sent on `connection` at once: this identifies one of those of
    /// the process. Returns the call with what opens its reply.
    ///
    /// # Errors
    /// [`RpcError::Local`]: there is no memory.
    pub fn apply(
        mut self,
        call: Message,
        xid: u32,
        connection: usize,
    ) -> Result<(Message, ReplyCheck), RpcError> {
        let context = Arc::clone(&self.context);
        let invalid = |what: &str| RpcError::Local(format!("the call cannot be protected: {what}"));
        let plain = call.head.iter().next().and_then(|view| view.first_chunk::<PLAIN_HEADER>());
        let plain = plain.ok_or_else(|| invalid("its header is not in one piece"))?;
        self.applied = true;
        let sequence = context.calls.lock().numbers.take(connection);
        let sequence = sequence.ok_or_else(|| invalid("the security context has no more numbers"))?;
        let protection = self.protection();
        let check = ReplyCheck { context, sequence, protection };
        let ClientContext { keys, handle, rt, arena, .. } = &*check.context;
        let mut header = Header::from_slice(&xid.to_be_bytes());
        header.extend_from_slice(&plain[4..24]);
        GssCredential { purpose: self.purpose, sequence, handle }.append_to(&mut header);
        let mic = keys.mic([&header[..]]);
        put_verifier(&mut header, &mic);
        let confounder = confounder(protection, |bytes| rt.fill_random(bytes));
        let content = Content { keys, sequence, protection, confounder };
        let call = content.protect(call, PLAIN_HEADER, header, arena).map_err(|e| invalid(&e.to_string()))?;
        Ok((call, check))
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

impl Drop for ReplyCheck {
    fn drop(&mut self) {
        self.context.release(|numbers| numbers.ended(self.sequence));
    }
}

impl ReplyCheck {
    /// Checks that `message` from `peer` is a successful reply which the server has protected as the call, and opens it.
    ///
    /// # Errors
    /// The status of the reply, which is verified unless it denies the call; [`RpcError::BadReply`].
    pub fn open(&self, mut message: Message, peer: &dyn fmt::Display) -> Result<Reply, RpcError> {
        let ClientContext { keys, arena, .. } = &*self.context;
        self.context.release(|numbers| numbers.answered(self.sequence));
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
