//! Calls in the session: they wait while the server returns DELAY, and survive the loss of the session.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_buffer::Buffer;
use millrace_nfs::v4::{Operation, Status};
use millrace_oncrpc::EncodedCredential;
use millrace_runtime::Uncancelled;

use super::{Session, exchange::Outcome};
use crate::{
    Error,
    pool::{Attempt, CallSpec},
    v4::compound::Compound,
};

/// Minimum time for which a call waits for the end of the grace period. It is usually as long as a lease, but Linux
/// configures both separately (90 s by default).
const GRACE: Duration = Duration::from_secs(120);

/// The reply to a call.
pub(crate) struct Answer<O> {
    /// The results, or the first failed operation with its status.
    pub(crate) result: Result<O, (Operation, Status)>,
    /// Whether the server may have executed the call before, in a session that was lost.
    pub(crate) resent: bool,
}

impl Session {
    /// Makes a call. Waits for a slot, retries after a delay while the server returns DELAY or is in its grace period,
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
            let payload = self.pool.take_payload(&mut payload, payload_len).await?;
            let mut held = self.slots.take().await.ok_or(Error::Closed)?;
            let generation = held.generation();
            let outcome = match self.settle(&mut held).await? {
                true => self.exchange(&mut held, credential, spec, cache_this, compound, payload).await?,
                false => Outcome::Lost { executed: false },
            };
            drop(held);
            self.check_if_reported(generation);
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

    /// Looks for revoked state if the server has reported some, and replaces the session with the number `generation` if
    /// the server has reported that it cannot use its back channel.
    fn check_if_reported(self: &Arc<Self>, generation: u64) {
        if self.back_channel.take_fault() {
            let this = Arc::clone(self);
            let replace = async move {
                if let Err(e) = this.recover(generation).await {
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

    /// Waits after a status that requests a later retry.
    async fn wait(self: &Arc<Self>, attempt: &mut Attempt<'_>, status: Status) -> Result<(), Error> {
        if status == Status::Grace {
            // Without RECLAIM_COMPLETE the grace period does not end for this client.
            let this = Arc::clone(self);
            let complete = async move { this.complete_reclaims(&mut *this.record.lock().await).await };
            Uncancelled::new(&self.pool.rt, "complete recovery", complete).await?;
            let limit = GRACE.max(2 * self.lease());
            return attempt.pause_at_least(limit, "the server is in its grace period").await;
        }
        attempt.pause("the server asks to retry later".into()).await
    }
}
