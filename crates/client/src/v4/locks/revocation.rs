//! Locks that the server has revoked: it reports them in the flags of SEQUENCE, or rejects their stateids (RFC 8881
//! section 8.5).

use std::sync::{Arc, atomic::Ordering};

use millrace_nfs::v4::{Operation, Stateid, Status};

use super::{FileLocks, LockEpoch};
use crate::{
    Error,
    ops::FileHandle,
    v4::{
        lock_calls::{Free, Test},
        session::Session,
    },
};

impl FileLocks {
    /// Handles a failed operation that used one of the stateids `before`: `Ok` if a recovery has replaced them, or the
    /// locks are recorded as lost, so that the operation must be repeated.
    pub(super) async fn check_stateids(
        &self,
        failed: (Operation, Status),
        before: &[Stateid],
    ) -> Result<(), Error> {
        let (operation, status) = failed;
        if !is_invalid(status) {
            return Err(Error::Nfs4 { operation, status });
        }
        self.session.recovered().await;
        if self.state().stateids() == before {
            self.lose(&format!("{operation}: {status:?}"));
        }
        Ok(())
    }

    /// Records that the server does not have the locks any more. Others may have locked and changed the file since: the
    /// next epoch begins, so that no data of the earlier one is written again, and the file's retained data is discarded.
    pub(super) fn lose(&self, why: &str) {
        let mut state = self.state();
        let owners = std::mem::take(&mut state.owners);
        state.open = None;
        let holders: Vec<_> =
            owners.into_iter().filter(|(_, o)| !o.ranges.is_empty()).map(|(o, _)| o).collect();
        if holders.is_empty() {
            return; // The file was only open.
        }
        state.lost.extend(holders);
        self.begin_epoch(&mut state);
        if let Some(watcher) = &mut state.watcher {
            let _ = watcher.try_send(());
        }
        tracing::warn!(server = self.session.pool.server(), why, "the server revoked locks of a file");
    }

    /// Asks the server which state it has revoked, and frees it.
    async fn check_revoked(&self) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let stateids = self.state().stateids();
        let Ok(statuses) = self.call("TEST_STATEID", &Test(stateids.clone())).await? else { return Ok(()) };
        let revoked: Vec<_> = stateids
            .iter()
            .copied()
            .zip(statuses)
            .filter(|(_, s)| is_invalid(*s))
            .map(|(id, _)| id)
            .collect();
        self.session.recovered().await;
        if revoked.is_empty() || self.state().stateids() != stateids {
            return Ok(());
        }
        for stateid in revoked {
            self.call("FREE_STATEID", &Free(stateid)).await?.ok();
        }
        self.lose("TEST_STATEID");
        Ok(())
    }
}

impl Session {
    /// The stateid with which a request of an operation that began in the epoch `since` must be repeated after `status` for
    /// the stateid `rejected`; `None` if another stateid does not help.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(crate) async fn next_stateid(
        &self,
        status: Status,
        file: &[u8],
        (rejected, access): (Stateid, u32),
        since: LockEpoch,
    ) -> Result<Option<Stateid>, Error> {
        if !is_invalid(status) || rejected == Stateid::ANONYMOUS {
            return Ok(None);
        }
        self.recovered().await;
        let (next, _) = self.locked.stateid(file, access, Some(since))?;
        if next == rejected
            && let Some(locks) = self.locked.get(file)
        {
            locks.lose(&format!("{status:?}"));
            return Err(Error::LocksLost);
        }
        Ok(Some(next))
    }

    /// As [`Self::next_stateid`] for COPY, whose status does not show which of the stateids `rejected` is not valid.
    ///
    /// # Errors
    /// [`Error::LocksLost`]; the errors of a call.
    pub(crate) async fn next_stateids(
        &self,
        status: Status,
        files: [(FileHandle, u32, LockEpoch); 2],
        rejected: [Stateid; 2],
    ) -> Result<Option<[Stateid; 2]>, Error> {
        if !is_invalid(status) || rejected == [Stateid::ANONYMOUS; 2] {
            return Ok(None);
        }
        self.recovered().await;
        let next = || -> Result<_, Error> {
            let [source, destination] = files;
            let of = |(file, access, since): (FileHandle, u32, LockEpoch)| {
                self.locked.stateid(file.as_bytes(), access, Some(since)).map(|(stateid, _)| stateid)
            };
            Ok([of(source)?, of(destination)?])
        };
        if next()? == rejected {
            for (file, ..) in files {
                if let Some(locks) = self.locked.get(file.as_bytes()) {
                    locks.check_revoked().await?;
                }
            }
        }
        Ok(Some(next()?).filter(|next| *next != rejected))
    }

    /// Looks for revoked state in the background, after the server has reported some.
    pub(in crate::v4) fn check_revoked(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let check = async move {
            for file in this.locked.all() {
                if let Err(e) = file.check_revoked().await {
                    tracing::debug!(server = this.pool.server(), "cannot test stateids: {e}");
                }
            }
            this.checks_revoked.store(false, Ordering::Release);
        };
        self.pool.rt.spawn("check locks", Box::pin(check));
    }
}

/// Whether the stateid of the request is not valid any more.
fn is_invalid(status: Status) -> bool {
    use Status as S;
    matches!(
        status,
        S::BadStateid | S::StaleStateid | S::OldStateid | S::Expired | S::AdminRevoked | S::DelegRevoked
    )
}
