//! The duplicate request cache: a call that changes something is executed once, however often it is sent.
//!
//! A client that lost its connection, or its patience, sends a call again with the same XID. Executing a REMOVE again
//! would answer NOENT to a caller whose file was removed; executing a late WRITE again could undo a newer one. So the
//! replies to such calls are kept and sent again. A call is recognised by client address, XID, procedure and a
//! checksum of its first bytes (credential and arguments); the client's port and connection may have changed.
//!
//! That the connection on which a call came first is still open says nothing: the client may have given it up long before
//! the server is told. Two calls of a client with the same XID and first bytes that are not the same call would be mixed
//! up; XIDs are random for each connection, so the chance is that of equal XIDs within a minute (as with knfsd).

mod cache;
#[cfg(test)]
mod model;
mod order;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use millrace_nfs::v3::Status;
use millrace_oncrpc::{
    CallContext, CallHeader, MaybeReady, Message, Payload, ReplyHeader, ReplyStatus, Service,
};
use millrace_xdr::{Decoder, Encoder, pad};
use smallvec::SmallVec;

pub(crate) use self::cache::{GROWTH, ReplyCache};
use self::cache::{Key, Verdict};
use crate::siphash::siphash;

/// How many bytes of a call, from its program number on, its checksum covers: the longest AUTH_SYS credential and
/// verifier, and about 256 bytes of arguments.
const CHECKED_BYTES: usize = 640;

/// Removes an entry in progress whose call will never be answered.
struct Unfinished {
    cache: Arc<ReplyCache>,
    key: Option<Key>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.cache.finish(&key, None, false);
        }
    }
}

/// What a retransmission repeats follows the XID, the message type and the RPC version (RFC 5531 section 9).
const CHECKED_FROM: usize = 12;

/// The key of a call whose reply must be kept; `None` for other calls.
fn key_of(call: &CallContext) -> Option<Key> {
    let CallHeader { xid, prog, proc, .. } = call.header;
    if prog != millrace_nfs::v3::PROGRAM || !changes_something(proc) {
        return None;
    }
    let message = call.message();
    let checked = message.head.iter().next()?.get(CHECKED_FROM..)?;
    let key = [u64::from(xid), u64::from(proc)];
    let checksum = match message.payloads.first().filter(|p| p.position < CHECKED_FROM + CHECKED_BYTES) {
        None => siphash(key, checked.get(..CHECKED_BYTES).unwrap_or(checked)),
        Some(payload) => siphash(key, &with_payload(checked, payload)),
    };
    Some(Key { client: call.peer.addr.ip().to_canonical(), xid, proc, checksum })
}

/// The first bytes of a call as its stream has them, with the payload in its place: the same whether data came in a chunk or
/// not.
fn with_payload(head: &[u8], payload: &Payload) -> SmallVec<[u8; CHECKED_BYTES]> {
    let mut out: SmallVec<[u8; CHECKED_BYTES]> = SmallVec::new();
    let cut = payload.position.saturating_sub(CHECKED_FROM).min(head.len());
    let (before, after) = head.split_at(cut);
    let views = payload.data.iter().map(|v| &v[..]);
    for bytes in std::iter::once(before).chain(views).chain([&[0; 3][..pad(payload.data.len())], after]) {
        let room = CHECKED_BYTES - out.len();
        out.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }
    out
}

/// Whether `reply` says that its call may have changed something. Of a call that was refused (a bad handle, no right, wrong
/// arguments) nothing is kept: to refuse it again is right, and callers that no export admits take no room.
fn was_executed(reply: &Message) -> bool {
    let mut d = Decoder::new(reply);
    let accepted = d.get::<ReplyHeader>().is_ok_and(|h| h.status == ReplyStatus::Success);
    let refused =
        [Status::Access, Status::RoFs, Status::Stale, Status::BadHandle, Status::NotSupp, Status::Jukebox];
    accepted && d.u32().is_ok_and(|status| refused.iter().all(|r| *r as u32 != status))
}

/// The answer to a call that is to be sent again later: NFS3ERR_JUKEBOX, without attributes.
fn later(xid: u32, proc: u32, mut reply: Encoder) -> Option<Message> {
    const RENAME: u32 = 14;
    const LINK: u32 = 15;
    reply.put(&ReplyHeader { xid, status: ReplyStatus::Success });
    reply.put_u32(Status::Jukebox as u32);
    // Each is an attribute that is not there: two of a changed directory (RFC 1813 section 2.6).
    let attributes = match proc {
        RENAME => 4,
        LINK => 3,
        _ => 2,
    };
    (0..attributes).for_each(|_| reply.put_bool(false));
    reply.finish().ok()
}

/// The procedures that must not be executed twice: SETATTR, and WRITE to LINK.
const fn changes_something(proc: u32) -> bool {
    matches!(proc, 2 | 7..=15)
}

/// A service in front of another one that answers retransmissions from the cache.
pub(crate) struct AnswerOnce<S> {
    inner: S,
    cache: Arc<ReplyCache>,
    replayed: Box<dyn Fn() + Send + Sync>,
}

impl<S: Service> AnswerOnce<S> {
    /// Puts `cache` in front of `inner`; `replayed` is called for each call that is answered from it.
    pub(crate) fn new(inner: S, cache: Arc<ReplyCache>, replayed: impl Fn() + Send + Sync + 'static) -> Self {
        Self { inner, cache, replayed: Box::new(replayed) }
    }

    fn execute(&self, key: Key, call: CallContext, reply: Encoder) -> MaybeReady<'static, Option<Message>> {
        let mut guard = Unfinished { cache: Arc::clone(&self.cache), key: Some(key) };
        let mut done = move |reply: Option<Message>| {
            if let Some(key) = guard.key.take() {
                guard.cache.finish(&key, reply.as_ref(), reply.as_ref().is_some_and(was_executed));
            }
            reply
        };
        match self.inner.call(call, reply) {
            MaybeReady::Ready(reply) => MaybeReady::Ready(done(reply)),
            // Transports see a call through to its end even if its connection goes, so that a retransmission finds the
            // answer and not half an operation.
            MaybeReady::Pending(call) => MaybeReady::wait(async move { done(call.await) }),
            MaybeReady::Taken => MaybeReady::Taken,
        }
    }
}

impl<S: Service> Service for AnswerOnce<S> {
    fn reply_bytes(&self, call: &CallContext) -> Option<usize> {
        self.inner.reply_bytes(call)
    }

    fn call(&self, call: CallContext, reply: Encoder) -> MaybeReady<'static, Option<Message>> {
        let Some(key) = key_of(&call) else {
            return self.inner.call(call, reply);
        };
        match self.cache.look_up(&key, &call.peer) {
            Verdict::Execute => self.execute(key, call, reply),
            Verdict::Later => MaybeReady::Ready(later(key.xid, key.proc, reply)),
            Verdict::Answer(reply) => {
                (self.replayed)();
                MaybeReady::Ready(reply)
            }
            Verdict::Wait(rx) => {
                (self.replayed)();
                MaybeReady::wait(async move { rx.await.unwrap_or(None) })
            }
        }
    }
}
