//! Recovery after the server has lost the session or, at its restart, all state: the client creates both again, claims its
//! opens and locks, and ends with RECLAIM_COMPLETE (RFC 8881 sections 8.4.2 and 18.51).

use std::sync::{Arc, atomic::Ordering};

use millrace_nfs::v4::{Operation, Status};
use millrace_runtime::{BoxFuture, Uncancelled};

use super::{ClientRecord, Session};
use crate::{
    Error,
    pool::Retry,
    v4::{calls::ReclaimComplete, locks::Reclaimed},
};

impl Session {
    /// Replaces the session with the number `lost`, unless another call has done so, and claims the state again after a new
    /// client ID. Dropping the future does not stop the recovery, but gives up the wait for that of another call: one
    /// recovery at a time is in progress, with one deadline.
    pub(super) fn recover(self: &Arc<Self>, lost: Option<u64>) -> BoxFuture<'static, Result<(), Error>> {
        let this = Arc::clone(self);
        Box::pin(async move {
            let mut record = Arc::clone(&this.record).lock_owned().await;
            let is_lost = lost == Some(this.slots.generation());
            if !is_lost && record.reclaimed {
                return Ok(());
            }
            let rt = Arc::clone(&this.pool.rt);
            let recovery = async move {
                let mut retry = Retry::new(&this.pool, "CREATE_SESSION");
                if is_lost {
                    this.create_session(&mut record, &mut retry).await?;
                }
                this.complete_reclaims(&mut record, &mut retry).await
            };
            Uncancelled::new(&rt, "recover session", recovery).await
        })
    }

    /// After a new client ID, claims the state again and then ends the reclaims with RECLAIM_COMPLETE.
    async fn complete_reclaims(
        self: &Arc<Self>,
        record: &mut ClientRecord,
        retry: &mut Retry<'_>,
    ) -> Result<(), Error> {
        while !record.reclaimed {
            let complete = match self.reclaim().await? {
                Reclaimed::Done => {
                    let (credential, name) = (&self.credential, "RECLAIM_COMPLETE");
                    self.call_in_recovery(credential, name, &mut ReclaimComplete, retry).await?
                }
                Reclaimed::SessionLost => None,
            };
            match complete {
                Some(Ok(lease)) => {
                    self.lease.store(lease, Ordering::Relaxed);
                    record.reclaimed = true;
                }
                // The root needs another security flavor. The call that finds the export reports which ones.
                Some(Err((Operation::Putrootfh, Status::WrongSec))) => return Ok(()),
                Some(Err((operation, status))) => return Err(Error::Nfs4 { operation, status }),
                None => {
                    retry.pause("the server lost the session during recovery").await?;
                    self.create_session(record, retry).await?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the end of a recovery in progress.
    pub(in crate::v4) async fn recovered(&self) {
        drop(self.record.lock().await);
    }
}
