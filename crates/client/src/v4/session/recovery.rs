//! Recovery after the server has lost the session or, at its restart, all state: the client creates both again, claims its
//! opens and locks, and ends with RECLAIM_COMPLETE (RFC 8881 sections 8.4.2 and 18.51).

use std::sync::{Arc, atomic::Ordering};

use millrace_nfs::v4::{Operation, Status};
use millrace_oncrpc::{CallClass, EncodedCredential};
use millrace_runtime::Uncancelled;

use super::{ClientRecord, STATE_REPLY, Session, exchange::Outcome, spec};
use crate::{
    Error,
    pool::Attempt,
    v4::{calls::ReclaimComplete, compound::Compound, locks::Reclaimed},
};

impl Session {
    /// Replaces the session with the number `lost`, unless another call has done so. Dropping the future does not
    /// stop the recovery.
    pub(super) async fn recover(self: &Arc<Self>, lost: u64) -> Result<(), Error> {
        let this = Arc::clone(self);
        let recovery = async move {
            let mut record = this.record.lock().await;
            if this.slots.generation() == lost {
                this.create_session(&mut record).await?;
            }
            this.complete_reclaims(&mut record).await
        };
        Uncancelled::new(&self.pool.rt, "recover session", recovery).await
    }

    /// After a new client ID, claims the state again and then ends the reclaims with RECLAIM_COMPLETE.
    pub(super) async fn complete_reclaims(&self, record: &mut ClientRecord) -> Result<(), Error> {
        let mut attempt = Attempt::new(&self.pool, "RECLAIM_COMPLETE");
        while !record.reclaimed {
            if let Reclaimed::SessionLost = self.reclaim().await? {
                attempt.pause("the server lost the session during recovery".into()).await?;
                self.create_session(record).await?;
                continue;
            }
            match self.call_in_recovery(&self.credential, "RECLAIM_COMPLETE", &ReclaimComplete).await? {
                Outcome::Done(Ok(lease)) => {
                    self.lease.store(lease, Ordering::Relaxed);
                    record.reclaimed = true;
                }
                Outcome::Done(Err((operation, status))) => return Err(Error::Nfs4 { operation, status }),
                Outcome::Lost { .. } => {
                    attempt.pause("the server lost the session during recovery".into()).await?;
                    self.create_session(record).await?;
                }
                Outcome::Later { .. } | Outcome::NoReply => {
                    attempt.pause("the server asks to retry later".into()).await?;
                }
            }
        }
        Ok(())
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

    /// As [`Self::call_in_recovery`], and repeats the call while the server returns DELAY. `None` if the session is
    /// lost.
    pub(in crate::v4) async fn call_until_settled<C: Compound>(
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
    pub(in crate::v4) async fn recovered(&self) {
        drop(self.record.lock().await);
    }
}
