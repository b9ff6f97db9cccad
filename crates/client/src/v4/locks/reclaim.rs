//! Claims opens and locks again from a restarted server (RFC 8881 section 8.4.2.1).

use std::ops::Range;

use millrace_nfs::v4::{Operation, Stateid, Status};

use super::FileLocks;
use crate::{
    Error,
    pool::Retry,
    v4::{
        lock_calls::{Lock, Locked, Open},
        ranges::LockKind,
        session::Session,
    },
};

/// How a claim of state ended.
pub(in crate::v4) enum Reclaimed {
    /// The server has granted or rejected it.
    Done,
    /// The session is lost: the reclaims must begin again in a new one.
    SessionLost,
}

/// A lock that the server granted before it restarted.
struct EarlierLock {
    owner: u64,
    range: Range<u64>,
    kind: LockKind,
}

impl FileLocks {
    /// Claims the open and the locks again from a restarted server.
    async fn reclaim(&self) -> Result<Reclaimed, Error> {
        let Some((access, locks)) = self.discard_stateids() else { return Ok(Reclaimed::Done) };
        let mut call = Open { file: &self.file, owner: &self.open_owner, access, reclaim: true };
        // The claims of a file have a separate deadline: the more files, the longer the recovery takes.
        let retry = &mut Retry::new(&self.session.pool, "OPEN");
        let open = match self.session.call_in_recovery(&self.credential, "OPEN", &mut call, retry).await? {
            None => return Ok(Reclaimed::SessionLost),
            Some(Ok(open)) => open,
            Some(Err(failed)) => return Ok(self.rejected(failed)),
        };
        self.state().open = Some((open, access));
        for lock in locks {
            let owner = lock.owner;
            match self.reclaim_lock(open, lock, retry).await? {
                None => return Ok(Reclaimed::SessionLost),
                Some(Ok(Ok(stateid))) => {
                    self.state().owners.entry(owner).or_default().stateid = Some(stateid)
                }
                Some(Ok(Err(_))) => {
                    self.lose("another client has a lock");
                    return Ok(Reclaimed::Done);
                }
                Some(Err(failed)) => return Ok(self.rejected(failed)),
            }
        }
        Ok(Reclaimed::Done)
    }

    /// Discards the stateids of the locks. Returns the access of the open and the locks, which are to be claimed;
    /// `None` if the file is not open.
    fn discard_stateids(&self) -> Option<(u32, Vec<EarlierLock>)> {
        let mut state = self.state();
        let (_, access) = state.open?;
        let mut earlier = Vec::new();
        for (&owner, locks) in &mut state.owners {
            locks.stateid = None;
            let mut held = locks.ranges.clone();
            if let Some(released) = &locks.releasing {
                held.clear(released);
            }
            earlier.extend(held.iter().map(|(range, kind)| EarlierLock { owner, range, kind }));
        }
        Some((access, earlier))
    }

    /// Claims a lock again; `None` if the session is lost.
    async fn reclaim_lock(
        &self,
        open: Stateid,
        lock: EarlierLock,
        retry: &mut Retry<'_>,
    ) -> Result<Option<Result<Locked, (Operation, Status)>>, Error> {
        let EarlierLock { owner, range, kind } = lock;
        let locks = self.state().owners.get(&owner).and_then(|o| o.stateid);
        let owner = owner.to_be_bytes();
        let (file, owner) = (&self.file, &owner);
        let mut call = Lock { file, open, owner, locks, range, kind, waits: false, reclaim: true };
        self.session.call_in_recovery(&self.credential, "LOCK", &mut call, retry).await
    }

    /// Records the loss of the locks after the server has rejected a claim.
    fn rejected(&self, (operation, status): (Operation, Status)) -> Reclaimed {
        self.lose(&format!("{operation}: {status:?}"));
        Reclaimed::Done
    }
}

impl Session {
    /// Claims the state of all files again, after a new client ID.
    pub(in crate::v4) async fn reclaim(&self) -> Result<Reclaimed, Error> {
        for file in self.locked.all() {
            if let Reclaimed::SessionLost = file.reclaim().await? {
                return Ok(Reclaimed::SessionLost);
            }
        }
        Ok(Reclaimed::Done)
    }
}
