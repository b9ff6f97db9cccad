//! The duplicate request cache (DRC): non-idempotent calls are executed once, even if they are retransmitted.
//!
//! A client that lost its connection or timed out retransmits a call with the same XID. A second execution of
//! REMOVE would return NOENT for a removed file; a late second execution of WRITE could overwrite newer data.
//! The results of such calls are therefore cached, and returned with a new RPC header. A call is identified
//! by client address, XID, procedure and a checksum of its length and of up to 1 KiB of it: of the whole call
//! (credential and arguments), or of the first and last bytes of a call with more data. With RPCSEC_GSS, whose
//! retransmissions have another header, it is that of program, principal and open arguments. The client's port and
//! connection may differ.
//!
//! The cache is the last step before the file system, as in Linux (`nfsd_dispatch`): the arguments are
//! decoded and the caller is admitted to the export first. A caller that is not admitted neither adds nor
//! reads an entry.
//!
//! An open connection does not prove that the client still waits on it: the client may have abandoned it long
//! before the server is notified. Two different calls of a client with the same XID, length and covered bytes
//! are not distinguished: WRITEs to the same range whose data differs in the middle. XIDs are random for each
//! connection, so the probability is that of equal XIDs within a minute (as with knfsd).

mod cache;
mod checksum;
#[cfg(test)]
mod harness;
mod key;
#[cfg(test)]
mod model;
mod order;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use millrace_nfs::v3::Status;
use millrace_oncrpc::{CallContext, Fault, MaybeReady, Outcome, Results};
use millrace_xdr::{Encoder, View};

pub(crate) use self::cache::{DuplicateRequestCache, GROWTH};
use self::{cache::LookupResult, key::Key};

/// The treatment of a non-idempotent call.
pub(crate) enum Disposition {
    /// The call is new. It is executed and then ended with [`InProgress::finish`].
    Execute(InProgress, Encoder),
    /// The call is a retransmission with this outcome.
    Retransmission(MaybeReady<'static, Outcome>),
    /// The call is new, and its results could not be cached: the client is to retransmit it later.
    TryLater(Encoder),
}

/// A call in progress. If it is dropped, a retransmission is executed.
pub(crate) struct InProgress {
    cache: Arc<DuplicateRequestCache>,
    key: Key,
    /// Length of the RPC header in the reply.
    header: usize,
    finished: bool,
}

impl InProgress {
    /// Ends the call. If it was executed, its results are cached and returned to waiting retransmissions.
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

impl DuplicateRequestCache {
    /// Looks up `call`, whose caller was admitted. `reply` contains the RPC header of a successful reply.
    pub(crate) fn look_up_or_start(self: &Arc<Self>, call: &CallContext, reply: Encoder) -> Disposition {
        let key = Key::of(call, self.secret);
        match self.look_up(&key, &call.sender.peer) {
            LookupResult::Execute => {
                let header = reply.len();
                let cache = Arc::clone(self);
                Disposition::Execute(InProgress { cache, key, header, finished: false }, reply)
            }
            LookupResult::Replay(results) => {
                Disposition::Retransmission(MaybeReady::Ready(Ok(replay(reply, &results))))
            }
            LookupResult::Wait(results) => Disposition::Retransmission(MaybeReady::wait(async move {
                let results = results.await.unwrap_or(Err(Fault::Drop));
                results.map(|results| replay(reply, &results))
            })),
            // The connection gets one reply; RFC 5531 permits no second.
            LookupResult::Drop => Disposition::Retransmission(MaybeReady::Ready(Err(Fault::Drop))),
            LookupResult::TryLater => Disposition::TryLater(reply),
        }
    }
}

fn replay(mut reply: Encoder, results: &View) -> Results {
    reply.put_raw(results);
    reply.into()
}

/// Whether the results show that the call may have had an effect. Results of rejected calls (an invalid
/// handle, no permission) are not cached, because rejecting the call again is correct.
fn was_executed(results: &[u8]) -> bool {
    let rejections =
        [Status::Access, Status::RoFs, Status::Stale, Status::BadHandle, Status::NotSupp, Status::Jukebox];
    let status = results.first_chunk().map(|status| u32::from_be_bytes(*status));
    status.is_some_and(|status| rejections.iter().all(|r| *r as u32 != status))
}
