//! Locks that the server has revoked: it reports them in the flags of SEQUENCE, or rejects their stateids (RFC 8881
//! section 8.5).

use std::sync::{Arc, atomic::Ordering};

use millrace_nfs::v4::{Operation, Stateid, Status};
use millrace_runtime::BoxFuture;

use super::FileLocks;
use crate::{
    Error,
    v4::{
        compound::{Compound, UsedState},
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
    fn check_revoked(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let _turn = self.turn.lock().await;
            let stateids = self.state().stateids();
            let Ok(statuses) = self.call("TEST_STATEID", &mut Test(stateids.clone())).await? else {
                return Ok(());
            };
            let tested = stateids.iter().copied().zip(statuses);
            let revoked: Vec<_> = tested.filter(|(_, s)| is_invalid(*s)).map(|(id, _)| id).collect();
            self.session.recovered().await;
            if revoked.is_empty() || self.state().stateids() != stateids {
                return Ok(());
            }
            for stateid in revoked {
                self.call("FREE_STATEID", &mut Free(stateid)).await?.ok();
            }
            self.lose("TEST_STATEID");
            Ok(())
        })
    }
}

impl Session {
    /// Replaces the stateids of a request, one of which the server rejects, by those of a recovery. `false` if the
    /// request has the current ones.
    ///
    /// # Errors
    /// [`Error::LocksLost`]; the errors of a call.
    pub(in crate::v4) async fn renew_state(&self, compound: &mut impl Compound) -> Result<bool, Error> {
        self.recovered().await;
        if self.replace_state(compound)? {
            return Ok(true);
        }
        let mut files = Vec::new();
        compound.state(&mut |used| files.push(self.locked.get(used.file)));
        if let [Some(locks)] = &files[..] {
            locks.lose("the server rejects the stateid");
            return Err(Error::LocksLost);
        }
        // The status does not show which of the stateids is not valid.
        for locks in files.iter().flatten() {
            locks.check_revoked().await?;
        }
        self.replace_state(compound)
    }

    /// Sets the current stateids of a request. Returns whether one differs.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    fn replace_state(&self, compound: &mut impl Compound) -> Result<bool, Error> {
        let mut replaced = Ok(false);
        compound.state(&mut |UsedState { file, access, state }| {
            let Ok(is_replaced) = &mut replaced else { return };
            match self.locked.open_state(file, access, Some(state.since)) {
                Ok(now) => *is_replaced |= std::mem::replace(state, now) != now,
                Err(e) => replaced = Err(e),
            }
        });
        replaced
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

/// Whether a request has a stateid of an open.
pub(in crate::v4) fn uses_state(compound: &mut impl Compound) -> bool {
    let mut uses = false;
    compound.state(&mut |used| uses |= used.state.stateid != Stateid::ANONYMOUS);
    uses
}

/// Whether the stateid of the request is not valid any more.
pub(in crate::v4) fn is_invalid(status: Status) -> bool {
    use Status as S;
    matches!(
        status,
        S::BadStateid | S::StaleStateid | S::OldStateid | S::Expired | S::AdminRevoked | S::DelegRevoked
    )
}
