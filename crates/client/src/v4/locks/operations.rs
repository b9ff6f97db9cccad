//! Locks, unlocks and tests ranges of a file (LOCK, LOCKU and LOCKT), which opens and closes it.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_nfs::v4::{Operation, Stateid, Status, share_access};
use millrace_runtime::{RuntimeExt, Uncancelled, timeout};

use super::FileLocks;
use crate::{
    Error,
    v4::{
        lock_calls::{Close, Conflict, Lock, Locked, Open, TestLock, Unlock},
        ranges::{LockKind, Ranges},
    },
};

/// Maximum number of attempts of an operation whose stateids a recovery replaces meanwhile.
const ATTEMPTS: u32 = 8;

/// First and maximum interval between the attempts of a lock that waits, without a notification of the server.
const WAIT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Interval between the attempts of a lock that waits, with a notification of the server: many of them cost at most these
/// attempts.
const NOTIFIED_WAIT: Duration = Duration::from_millis(1);

/// A request for a lock.
struct LockRequest {
    owner: u64,
    range: Range<u64>,
    kind: LockKind,
    /// Whether the owner waits for the lock: the server may prefer it when the range is unlocked.
    waits: bool,
}

impl FileLocks {
    /// Locks a range for `owner`; waits until no other lock conflicts. Dropping the future gives up the lock,
    /// except parts of the range that the owner had locked before.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        owner: u64,
        range: Range<u64>,
        kind: LockKind,
    ) -> Result<(), Error> {
        let rt = &self.session.pool.rt;
        let mut pause = WAIT.0;
        let mut open = KeptOpen(Some(Arc::clone(self)));
        loop {
            let mut waits = self.waiting.begin(owner);
            if self.attempt(LockRequest { owner, range: range.clone(), kind, waits: true }).await?.is_none() {
                open.0 = None;
                return Ok(());
            }
            self.session.bind_back_channel().await?;
            rt.sleep(NOTIFIED_WAIT).await;
            timeout(&**rt, pause, &mut waits.notified).await;
            pause = (pause * 2).min(WAIT.1);
        }
    }

    /// As [`Self::lock`], without waiting. Returns the conflicting lock.
    pub(crate) async fn try_lock(
        self: &Arc<Self>,
        owner: u64,
        range: Range<u64>,
        kind: LockKind,
    ) -> Result<Option<Conflict>, Error> {
        self.attempt(LockRequest { owner, range, kind, waits: false }).await
    }

    /// Locks a range once. Dropping the future unlocks what it locks.
    async fn attempt(self: &Arc<Self>, wanted: LockRequest) -> Result<Option<Conflict>, Error> {
        let this = Arc::clone(self);
        let abandoned = Abandoned(Arc::default());
        let flag = Arc::clone(&abandoned.0);
        let attempt = async move {
            let _turn = this.turn.lock().await;
            if flag.load(Ordering::Acquire) {
                return Ok(None);
            }
            let before =
                this.state().owners.get(&wanted.owner).map_or_else(Ranges::default, |o| o.ranges.clone());
            let conflict = this.lock_now(&wanted).await?;
            if conflict.is_none() && flag.load(Ordering::Acquire) {
                for gap in before.gaps(&wanted.range) {
                    this.unlock_now(wanted.owner, &gap).await?;
                }
                if before.is_empty() {
                    this.forget_loss(wanted.owner); // No later unlock of this owner follows.
                }
            }
            Ok(conflict)
        };
        let mut attempt = Uncancelled::new(&self.session.pool.rt, "lock", attempt);
        // Dropped before the attempt, whose task may end at once: it must find the mark.
        let _abandoned = abandoned;
        (&mut attempt).await
    }

    /// Locks a range, if no other lock conflicts.
    async fn lock_now(&self, wanted: &LockRequest) -> Result<Option<Conflict>, Error> {
        for _ in 0..ATTEMPTS {
            if self.state().lost.contains(&wanted.owner) {
                return Err(Error::LocksLost);
            }
            let before = self.state().stateids();
            let failed = match self.open_for(wanted.kind).await? {
                Ok(open) => match self.send_lock(open, wanted).await? {
                    Ok(Ok(stateid)) => {
                        let mut state = self.state();
                        let locks = state.owners.entry(wanted.owner).or_default();
                        locks.stateid = Some(stateid);
                        locks.releasing = None;
                        locks.ranges.set(&wanted.range, wanted.kind);
                        return Ok(None);
                    }
                    Ok(Err(conflict)) => {
                        self.close_if_unused().await?;
                        return Ok(Some(conflict));
                    }
                    Err(failed) => failed,
                },
                Err(failed) => failed,
            };
            self.check_stateids(failed, &before).await?;
        }
        Err(Error::LocksLost)
    }

    /// Opens the file for locks of `kind`, unless it is open. Returns the stateid.
    async fn open_for(&self, kind: LockKind) -> Result<Result<Stateid, (Operation, Status)>, Error> {
        let needed = match kind {
            LockKind::Shared => share_access::READ,
            LockKind::Exclusive => share_access::WRITE,
        };
        let open = self.state().open;
        if let Some((stateid, access)) = open
            && access & needed != 0
        {
            return Ok(Ok(stateid));
        }
        let mut refused = None;
        // Both, so that an owner can change the kind of its locks.
        for access in [share_access::BOTH, needed] {
            let mut call = Open { file: &self.file, owner: &self.open_owner, access, reclaim: false };
            match self.call("OPEN", &mut call).await? {
                Ok(stateid) => {
                    let mut state = self.state();
                    let had = state.open.map_or(0, |(_, access)| access);
                    state.open = Some((stateid, had | access));
                    return Ok(Ok(stateid));
                }
                Err(failed @ (_, Status::Access | Status::Perm | Status::RoFs)) => refused = Some(failed),
                Err(failed) => return Ok(Err(failed)),
            }
        }
        Ok(Err(refused.unwrap_or((Operation::Open, Status::Access))))
    }

    /// Sends LOCK.
    async fn send_lock(
        &self,
        open: Stateid,
        wanted: &LockRequest,
    ) -> Result<Result<Locked, (Operation, Status)>, Error> {
        let owner = wanted.owner.to_be_bytes();
        let locks = self.state().owners.get(&wanted.owner).and_then(|o| o.stateid);
        let (range, kind, waits) = (wanted.range.clone(), wanted.kind, wanted.waits);
        let mut call =
            Lock { file: &self.file, open, owner: &owner, locks, range, kind, waits, reclaim: false };
        self.call("LOCK", &mut call).await
    }

    /// Unlocks a range of `owner`. Dropping the future does not stop it.
    pub(crate) async fn unlock(self: &Arc<Self>, owner: u64, range: Range<u64>) -> Result<(), Error> {
        let this = Arc::clone(self);
        let unlock = async move {
            let _turn = this.turn.lock().await;
            let unlocked = this.unlock_now(owner, &range).await;
            this.forget_loss(owner); // Also one that the unlock has found.
            unlocked
        };
        Uncancelled::new(&self.session.pool.rt, "unlock", unlock).await
    }

    /// Permits operations again after a loss, if `owner` was the last one that had not unlocked.
    fn forget_loss(&self, owner: u64) {
        let mut state = self.state();
        if state.lost.remove(&owner) {
            self.begin_epoch(&mut state);
        }
    }

    /// Unlocks a range, and closes the file if it has no other locks.
    async fn unlock_now(&self, owner: u64, range: &Range<u64>) -> Result<(), Error> {
        if let Some(owner) = self.state().owners.get_mut(&owner) {
            owner.releasing = Some(range.clone());
        }
        // A recovery in progress may claim the range: it has taken the locks to claim before.
        self.session.recovered().await;
        for _ in 0..ATTEMPTS {
            let (before, locks) = {
                let state = self.state();
                let Some(locks) = state.owners.get(&owner).and_then(|o| o.stateid) else { break };
                (state.stateids(), locks)
            };
            match self.call("LOCKU", &mut Unlock { file: &self.file, locks, range: range.clone() }).await? {
                Ok(stateid) => {
                    if let Some(owner) = self.state().owners.get_mut(&owner) {
                        owner.stateid = Some(stateid);
                    }
                    break;
                }
                Err(failed) => {
                    if let Err(refused) = self.check_stateids(failed, &before).await {
                        if let Some(owner) = self.state().owners.get_mut(&owner) {
                            owner.releasing = None;
                        }
                        return Err(refused);
                    }
                }
            }
        }
        if let Some(owner) = self.state().owners.get_mut(&owner) {
            owner.releasing = None;
            owner.ranges.clear(range);
        }
        self.close_if_unused().await
    }

    /// Returns a lock that conflicts with a lock of `owner`.
    pub(crate) async fn test(
        &self,
        owner: u64,
        range: Range<u64>,
        kind: LockKind,
    ) -> Result<Option<Conflict>, Error> {
        let owner = owner.to_be_bytes();
        let tested =
            self.call("LOCKT", &mut TestLock { file: &self.file, owner: &owner, range, kind }).await?;
        tested.map_err(|(operation, status)| Error::Nfs4 { operation, status })
    }

    /// Closes the file if it has no locks and no owner waits for one: CLOSE would also end its request at the server, and
    /// with it the notification.
    async fn close_if_unused(&self) -> Result<(), Error> {
        if !self.waiting.is_empty() {
            return Ok(());
        }
        let open = {
            let mut state = self.state();
            if state.owners.values().any(|o| !o.ranges.is_empty()) {
                return Ok(());
            }
            state.owners.clear();
            state.open.take()
        };
        let Some((open, _)) = open else { return Ok(()) };
        // If it fails, the server closes it with the client's lease.
        self.call("CLOSE", &mut Close { file: &self.file, open }).await.map(drop)
    }
}

/// Closes the file, if it is unused, when an owner has given up its wait for a lock.
struct KeptOpen(Option<Arc<FileLocks>>);

impl Drop for KeptOpen {
    fn drop(&mut self) {
        let Some(locks) = self.0.take() else { return };
        let rt = locks.session.pool.rt.clone();
        let close = async move {
            let _turn = locks.turn.lock().await;
            // If it fails, the server closes the file with the client's lease.
            let _ = locks.close_if_unused().await;
        };
        rt.spawn("close a file without locks", Box::pin(close));
    }
}

/// Marks an attempt as abandoned when it is dropped.
struct Abandoned(Arc<AtomicBool>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
