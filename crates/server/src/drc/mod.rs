//! The duplicate request cache: a call that changes something is executed once, however often it is sent.
//!
//! A client that lost its connection, or waited too long, sends a call again with the same XID. Executing a REMOVE again
//! would answer NOENT to a caller whose file was removed; executing a late WRITE again could undo a newer one. So the
//! results of such calls are kept, and sent again behind a new RPC header. A call is recognised by client address, XID,
//! procedure and a checksum of its first bytes (credential and arguments); the client's port and connection may have changed.
//!
//! The cache is the last step before the file system, as in Linux (`nfsd_dispatch`): the arguments are decoded and the
//! caller is admitted to the export before. A caller that is not admitted neither adds an entry nor reads one.
//!
//! That the connection on which a call came first is still open says nothing: the client may have given it up long before
//! the server is told. Two calls of a client with the same XID and first bytes that are not the same call would be mixed
//! up; XIDs are random for each connection, so the chance is that of equal XIDs within a minute (as with knfsd).

mod cache;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod model;
mod order;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use millrace_nfs::v3::Status;
use millrace_oncrpc::{CallContext, CallHeader, Fault, MaybeReady, Outcome, Payload, Results};
use millrace_xdr::{Encoder, View, pad};
use smallvec::SmallVec;

pub(crate) use self::cache::{GROWTH, ReplyCache};
use self::cache::{Key, Verdict};
use crate::siphash::siphash;

/// What a retransmission repeats follows the XID, the message type and the RPC version (RFC 5531 section 9).
const CHECKED_FROM: usize = 12;
/// The number of bytes of a call, from its program number on, that its checksum covers: the longest AUTH_SYS credential and
/// verifier, and about 256 bytes of arguments.
const CHECKED_BYTES: usize = 640;

/// What is done with a call that must not be executed twice.
pub(crate) enum Begun {
    /// The call is new. It is to be executed, and ended with [`InProgress::finish`].
    Execute(InProgress, Encoder),
    /// The call is a retransmission: it is not executed, and this is its outcome.
    Retransmission(MaybeReady<'static, Outcome>),
    /// The call is new, and its results could not be kept: the client is to send it again later.
    TryLater(Encoder),
}

/// A call that is being executed. If it is dropped, the call was not executed to its end: a retransmission is executed.
pub(crate) struct InProgress {
    cache: Arc<ReplyCache>,
    key: Key,
    /// The length of the RPC header in the reply.
    header: usize,
    finished: bool,
}

impl InProgress {
    /// Ends the call. Its results are kept if it was executed, and are the outcome of the retransmissions that wait for them.
    pub(crate) fn finish(mut self, outcome: Result<Encoder, Fault>) -> Outcome {
        self.finished = true;
        let (outcome, results) = match outcome {
            // There was no memory for the results.
            Ok(reply) if reply.has_failed() => (Ok(reply.into()), Err(Fault::SystemErr)),
            Ok(reply) => match reply.finish() {
                Ok(reply) => {
                    let results = reply.head.iter().next().filter(|_| reply.payloads.is_empty());
                    let results = results.map(|v| v.slice(self.header, v.len().saturating_sub(self.header)));
                    (Ok(Results::Finished(reply)), results.ok_or(Fault::Drop))
                }
                Err(_) => (Err(Fault::SystemErr), Err(Fault::SystemErr)),
            },
            Err(fault) => (Err(fault), Err(fault)),
        };
        self.cache.finish(&self.key, Some(results));
        outcome
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        if !self.finished {
            self.cache.finish(&self.key, None);
        }
    }
}

impl ReplyCache {
    /// Looks up `call`, whose caller was admitted. `reply` has the RPC header of a successful reply.
    pub(crate) fn begin(self: &Arc<Self>, call: &CallContext, reply: Encoder) -> Begun {
        let key = key_of(call);
        match self.look_up(&key, &call.peer) {
            Verdict::Execute => {
                let header = reply.len();
                let cache = Arc::clone(self);
                Begun::Execute(InProgress { cache, key, header, finished: false }, reply)
            }
            Verdict::Replay(results) => Begun::Retransmission(MaybeReady::Ready(Ok(replay(reply, &results)))),
            Verdict::Wait(results) => Begun::Retransmission(MaybeReady::wait(async move {
                let results = results.await.unwrap_or(Err(Fault::Drop));
                results.map(|results| replay(reply, &results))
            })),
            // The connection gets the one reply; RFC 5531 has no second.
            Verdict::Drop => Begun::Retransmission(MaybeReady::Ready(Err(Fault::Drop))),
            Verdict::TryLater => Begun::TryLater(reply),
        }
    }
}

fn replay(mut reply: Encoder, results: &View) -> Results {
    reply.put_raw(results);
    reply.into()
}

fn key_of(call: &CallContext) -> Key {
    let CallHeader { xid, proc, .. } = call.header;
    let message = call.message();
    let head = message.head.iter().next().map_or(&[][..], |view| view);
    let checked = head.get(CHECKED_FROM..).unwrap_or_default();
    let key = [u64::from(xid), u64::from(proc)];
    let checksum = match message.payloads.first().filter(|p| p.position < CHECKED_FROM + CHECKED_BYTES) {
        None => siphash(key, checked.get(..CHECKED_BYTES).unwrap_or(checked)),
        Some(payload) => siphash(key, &with_payload(checked, payload)),
    };
    Key { client: call.peer.addr.ip().to_canonical(), xid, proc, checksum }
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

/// Whether these results say that the call may have changed something. Results of a call that was refused (an invalid handle, no
/// permission) are not kept: refusing the call again is correct.
fn was_executed(results: &[u8]) -> bool {
    let refused =
        [Status::Access, Status::RoFs, Status::Stale, Status::BadHandle, Status::NotSupp, Status::Jukebox];
    let status = results.first_chunk().map(|status| u32::from_be_bytes(*status));
    status.is_some_and(|status| refused.iter().all(|r| *r as u32 != status))
}
