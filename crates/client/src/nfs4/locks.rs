//! The locked files of a client: their opens and byte-range locks, and what the client reclaims after a restart of the
//! server.
//!
//! A file is open at the server while it has locks. The recorded state changes with the replies of the server; one
//! operation of a file at a time is in progress, except during recovery, which replaces the stateids of the state that
//! the server grants again. An operation that used the old ones then repeats.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_nfs::v4::{Operation, Stateid, Status, share_access};
use millrace_oncrpc::{CallClass, EncodedCredential};
use millrace_runtime::{RuntimeExt, Uncancelled, sync::Mutex};

use super::{
    compound::Compound,
    lock_calls::{Close, Conflict, Free, Lock, Locked, Open, Test, TestLock, Unlock, latest},
    ranges::{LockKind, Ranges},
    session::{Session, spec},
};
use crate::Error;

/// Maximum size of the replies in bytes: a denied lock has an owner of up to 1 KiB.
const REPLY: usize = 2048;
/// Maximum number of attempts of an operation whose stateids a recovery replaces meanwhile.
const ATTEMPTS: u32 = 8;
/// First and maximum interval between the attempts of a lock that waits.
const WAIT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The locked files by handle, and those that lost locks.
#[derive(Default)]
pub(crate) struct LockedFiles {
    files: Mutex<HashMap<Vec<u8>, Weak<FileLocks>>>,
    /// Number of owners that lost locks and have not unlocked since.
    lost: AtomicUsize,
    /// Number of files that are open.
    open: AtomicUsize,
}

impl LockedFiles {
    fn all(&self) -> Vec<Arc<FileLocks>> {
        self.files.lock().values().filter_map(Weak::upgrade).collect()
    }

    fn get(&self, file: &[u8]) -> Option<Arc<FileLocks>> {
        self.files.lock().get(file).and_then(Weak::upgrade)
    }

    /// Whether an owner has lost locks of the file and not unlocked since.
    pub(crate) fn is_lost(&self, file: &[u8]) -> bool {
        self.lost.load(Ordering::Relaxed) > 0 && self.get(file).is_some_and(|f| !f.held().lost.is_empty())
    }

    /// The stateid for a READ or WRITE, which needs `access`: that of the open if the file is locked.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(crate) fn stateid(&self, file: &[u8], access: u32) -> Result<Stateid, Error> {
        if self.is_lost(file) {
            return Err(Error::LocksLost);
        }
        if self.open.load(Ordering::Relaxed) == 0 {
            return Ok(Stateid::ANONYMOUS);
        }
        let open = self.get(file).and_then(|f| f.held().open);
        Ok(open
            .filter(|(_, has)| has & access != 0)
            .map_or(Stateid::ANONYMOUS, |(stateid, _)| latest(stateid)))
    }
}

/// The locks of one owner.
#[derive(Default)]
struct OwnerLocks {
    stateid: Option<Stateid>,
    ranges: Ranges,
}

/// The state of a file at the server.
#[derive(Default)]
struct Held {
    /// The open, and its bits of [`share_access`].
    open: Option<(Stateid, u32)>,
    owners: BTreeMap<u64, OwnerLocks>,
    /// The owners that lost locks.
    lost: BTreeSet<u64>,
}

impl Held {
    /// All stateids.
    fn stateids(&self) -> Vec<Stateid> {
        let locks = self.owners.values().filter_map(|o| o.stateid);
        self.open.map(|(stateid, _)| stateid).into_iter().chain(locks).collect()
    }
}

/// The locks of one file.
pub(crate) struct FileLocks {
    session: Arc<Session>,
    file: Vec<u8>,
    /// Credentials of the first lock, which also apply to reclaims.
    credential: Arc<EncodedCredential>,
    /// Owner of the open.
    open_owner: [u8; 8],
    /// Held during an operation.
    turn: futures::lock::Mutex<()>,
    held: Mutex<Held>,
}

/// A request for a lock.
struct Wanted {
    owner: u64,
    range: Range<u64>,
    kind: LockKind,
    waits: bool,
}

impl FileLocks {
    /// Records the open of the file.
    fn set_open(&self, held: &mut Held, open: Option<(Stateid, u32)>) -> Option<(Stateid, u32)> {
        let before = std::mem::replace(&mut held.open, open);
        match (before, open) {
            (None, Some(_)) => self.session.locked.open.fetch_add(1, Ordering::Relaxed),
            (Some(_), None) => self.session.locked.open.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        before
    }

    /// The locks of the file with this handle.
    pub(crate) fn of(session: &Arc<Session>, file: &[u8], credential: &Arc<EncodedCredential>) -> Arc<Self> {
        let mut files = session.locked.files.lock();
        if let Some(known) = files.get(file).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Self {
            session: Arc::clone(session),
            file: file.to_vec(),
            credential: Arc::clone(credential),
            open_owner: session.pool.rt.random_u64().to_be_bytes(),
            turn: Default::default(),
            held: Mutex::default(),
        });
        files.insert(file.to_vec(), Arc::downgrade(&new));
        new
    }

    fn held(&self) -> millrace_runtime::sync::MutexGuard<'_, Held> {
        self.held.lock()
    }

    /// Locks a range for `owner`; waits until no other lock conflicts. Dropping the future gives up the lock,
    /// except parts of the range that the owner had locked before.
    pub(crate) async fn lock(
        self: &Arc<Self>,
        owner: u64,
        range: Range<u64>,
        kind: LockKind,
    ) -> Result<(), Error> {
        let mut pause = WAIT.0;
        while self.attempt(Wanted { owner, range: range.clone(), kind, waits: true }).await?.is_some() {
            self.session.pool.rt.sleep(pause).await;
            pause = (pause * 2).min(WAIT.1);
        }
        Ok(())
    }

    /// As [`Self::lock`], without waiting. Returns the conflicting lock.
    pub(crate) async fn try_lock(
        self: &Arc<Self>,
        owner: u64,
        range: Range<u64>,
        kind: LockKind,
    ) -> Result<Option<Conflict>, Error> {
        self.attempt(Wanted { owner, range, kind, waits: false }).await
    }

    async fn attempt(self: &Arc<Self>, wanted: Wanted) -> Result<Option<Conflict>, Error> {
        let this = Arc::clone(self);
        let abandoned = Abandoned(Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&abandoned.0);
        let attempt = async move {
            let _turn = this.turn.lock().await;
            if flag.load(Ordering::Acquire) {
                return Ok(None);
            }
            let before =
                this.held().owners.get(&wanted.owner).map_or_else(Ranges::default, |o| o.ranges.clone());
            let conflict = this.lock_now(&wanted).await?;
            if conflict.is_none() && flag.load(Ordering::Acquire) {
                for gap in before.gaps(&wanted.range) {
                    this.unlock_now(wanted.owner, &gap).await?;
                }
            }
            Ok(conflict)
        };
        let ended: Result<_, Error> = Uncancelled::new(&self.session.pool.rt, "lock", attempt).await;
        drop(abandoned);
        ended
    }

    async fn call<C: Compound>(
        &self,
        name: &'static str,
        compound: &C,
    ) -> Result<Result<C::Ok, (Operation, Status)>, Error> {
        let spec = spec(name, REPLY, CallClass::Other);
        Ok(self.session.call(&self.credential, spec, true, compound, None).await?.result)
    }

    /// Opens the file for locks of `kind`. Returns the stateid.
    async fn opened(&self, kind: LockKind) -> Result<Result<Stateid, (Operation, Status)>, Error> {
        let needed = match kind {
            LockKind::Shared => share_access::READ,
            LockKind::Exclusive => share_access::WRITE,
        };
        let open = self.held().open;
        if let Some((stateid, access)) = open
            && access & needed != 0
        {
            return Ok(Ok(stateid));
        }
        let mut refused = None;
        // Both, so that an owner can change the kind of its locks.
        for access in [share_access::BOTH, needed] {
            let call = Open { file: &self.file, owner: &self.open_owner, access, reclaim: false };
            match self.call("OPEN", &call).await? {
                Ok(stateid) => {
                    let mut held = self.held();
                    let had = held.open.map_or(0, |(_, access)| access);
                    self.set_open(&mut held, Some((stateid, had | access)));
                    return Ok(Ok(stateid));
                }
                Err(failed @ (_, Status::Access | Status::Perm | Status::RoFs)) => refused = Some(failed),
                Err(failed) => return Ok(Err(failed)),
            }
        }
        Ok(Err(refused.unwrap_or((Operation::Open, Status::Access))))
    }

    /// Locks a range, if no other lock conflicts.
    async fn lock_now(&self, wanted: &Wanted) -> Result<Option<Conflict>, Error> {
        for _ in 0..ATTEMPTS {
            if self.held().lost.contains(&wanted.owner) {
                return Err(Error::LocksLost);
            }
            let before = self.held().stateids();
            let failed = match self.opened(wanted.kind).await? {
                Ok(open) => match self.send_lock(open, wanted, false).await? {
                    Ok(Ok(stateid)) => {
                        let mut held = self.held();
                        let locks = held.owners.entry(wanted.owner).or_default();
                        locks.stateid = Some(stateid);
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
            self.explain(failed, &before).await?;
        }
        Err(Error::LocksLost)
    }

    async fn send_lock(
        &self,
        open: Stateid,
        wanted: &Wanted,
        reclaim: bool,
    ) -> Result<Result<Locked, (Operation, Status)>, Error> {
        let owner = wanted.owner.to_be_bytes();
        let locks = self.held().owners.get(&wanted.owner).and_then(|o| o.stateid);
        let (range, kind, waits) = (wanted.range.clone(), wanted.kind, wanted.waits);
        let call = Lock { file: &self.file, open, owner: &owner, locks, range, kind, waits, reclaim };
        self.call("LOCK", &call).await
    }

    /// Handles a failed operation that used one of the stateids `before`: `Ok` if a recovery has replaced them, or the
    /// locks are lost, so that the operation must be repeated.
    async fn explain(&self, failed: (Operation, Status), before: &[Stateid]) -> Result<(), Error> {
        let (operation, status) = failed;
        if !is_invalid(status) {
            return Err(Error::Nfs4 { operation, status });
        }
        self.session.recovered().await;
        if self.held().stateids() == before {
            self.lose(&format!("{operation}: {status:?}"));
        }
        Ok(())
    }

    /// Unlocks a range of `owner`. Dropping the future does not stop it.
    pub(crate) async fn unlock(self: &Arc<Self>, owner: u64, range: Range<u64>) -> Result<(), Error> {
        let this = Arc::clone(self);
        let unlock = async move {
            let _turn = this.turn.lock().await;
            if this.held().lost.remove(&owner) {
                this.session.locked.lost.fetch_sub(1, Ordering::Relaxed);
            }
            this.unlock_now(owner, &range).await
        };
        Uncancelled::new(&self.session.pool.rt, "unlock", unlock).await
    }

    async fn unlock_now(&self, owner: u64, range: &Range<u64>) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let before = self.held().stateids();
            let Some(locks) = self.held().owners.get(&owner).and_then(|o| o.stateid) else { return Ok(()) };
            match self.call("LOCKU", &Unlock { file: &self.file, locks, range: range.clone() }).await? {
                Ok(stateid) => {
                    if let Some(locks) = self.held().owners.get_mut(&owner) {
                        locks.stateid = Some(stateid);
                        locks.ranges.clear(range);
                    }
                    return self.close_if_unused().await;
                }
                Err(failed) => self.explain(failed, &before).await?,
            }
        }
        Ok(())
    }

    /// Returns a lock that conflicts with a lock of `owner`.
    pub(crate) async fn test(
        &self,
        owner: u64,
        range: Range<u64>,
        kind: LockKind,
    ) -> Result<Option<Conflict>, Error> {
        let owner = owner.to_be_bytes();
        let tested = self.call("LOCKT", &TestLock { file: &self.file, owner: &owner, range, kind }).await?;
        tested.map_err(|(operation, status)| Error::Nfs4 { operation, status })
    }

    /// Closes the file if it has no locks.
    async fn close_if_unused(&self) -> Result<(), Error> {
        let open = {
            let mut held = self.held();
            if held.owners.values().any(|o| !o.ranges.is_empty()) {
                return Ok(());
            }
            held.owners.clear();
            self.set_open(&mut held, None)
        };
        let Some((open, _)) = open else { return Ok(()) };
        // If it fails, the server closes it with the client's lease.
        self.call("CLOSE", &Close { file: &self.file, open }).await.map(drop)
    }

    /// The server does not have the locks any more.
    fn lose(&self, why: &str) {
        let mut held = self.held();
        let owners = std::mem::take(&mut held.owners);
        self.set_open(&mut held, None);
        for (owner, _) in owners.into_iter().filter(|(_, locks)| !locks.ranges.is_empty()) {
            if held.lost.insert(owner) {
                self.session.locked.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        tracing::warn!(server = self.session.pool.server(), why, "the server revoked locks of a file");
    }
}

impl Drop for FileLocks {
    fn drop(&mut self) {
        let mut files = self.session.locked.files.lock();
        if files.get(&self.file).is_some_and(|f| f.strong_count() == 0) {
            files.remove(&self.file);
        }
        drop(files);
        let held = std::mem::take(self.held.get_mut());
        self.session.locked.lost.fetch_sub(held.lost.len(), Ordering::Relaxed);
        let Some((open, _)) = held.open else { return };
        self.session.locked.open.fetch_sub(1, Ordering::Relaxed);
        let (session, file, credential) =
            (Arc::clone(&self.session), std::mem::take(&mut self.file), Arc::clone(&self.credential));
        let release = async move {
            let spec = |name| spec(name, REPLY, CallClass::Other);
            for locks in held.owners.values().filter_map(|o| o.stateid) {
                let unlock = Unlock { file: &file, locks, range: 0..u64::MAX };
                drop(session.call(&credential, spec("LOCKU"), true, &unlock, None).await);
            }
            let close = Close { file: &file, open };
            drop(session.call(&credential, spec("CLOSE"), true, &close, None).await);
        };
        self.session.pool.rt.spawn("release locks", Box::pin(release));
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

/// Marks an attempt as abandoned when it is dropped.
struct Abandoned(Arc<AtomicBool>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How a file's state is claimed again.
pub(super) enum Reclaimed {
    /// The server has granted or rejected it.
    Done,
    /// The session was lost: begin again.
    SessionLost,
}

impl FileLocks {
    /// Claims the open and the locks again from a restarted server.
    async fn reclaim(&self) -> Result<Reclaimed, Error> {
        let (access, wanted) = {
            let mut held = self.held();
            let Some((_, access)) = held.open else { return Ok(Reclaimed::Done) };
            let mut wanted = Vec::new();
            for (owner, locks) in &mut held.owners {
                locks.stateid = None;
                wanted.extend(locks.ranges.iter().map(|(range, kind)| (*owner, range, kind)));
            }
            (access, wanted)
        };
        let call = Open { file: &self.file, owner: &self.open_owner, access, reclaim: true };
        let open = match self.session.call_until_settled(&self.credential, "OPEN", &call).await? {
            None => return Ok(Reclaimed::SessionLost),
            Some(Ok(open)) => open,
            Some(Err((operation, status))) => {
                self.lose(&format!("{operation}: {status:?}"));
                return Ok(Reclaimed::Done);
            }
        };
        self.set_open(&mut self.held(), Some((open, access)));
        for (owner, range, kind) in wanted {
            let name = owner.to_be_bytes();
            let locks = self.held().owners.get(&owner).and_then(|o| o.stateid);
            let call = Lock {
                file: &self.file,
                open,
                owner: &name,
                locks,
                range,
                kind,
                waits: false,
                reclaim: true,
            };
            match self.session.call_until_settled(&self.credential, "LOCK", &call).await? {
                None => return Ok(Reclaimed::SessionLost),
                Some(Ok(Ok(stateid))) => self.held().owners.entry(owner).or_default().stateid = Some(stateid),
                Some(Ok(Err(_))) => return Ok(self.lost("another client has a lock")),
                Some(Err((operation, status))) => return Ok(self.lost(&format!("{operation}: {status:?}"))),
            }
        }
        Ok(Reclaimed::Done)
    }

    fn lost(&self, why: &str) -> Reclaimed {
        self.lose(why);
        Reclaimed::Done
    }

    /// Asks the server which state it has revoked, and frees it.
    async fn check(&self) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let stateids = self.held().stateids();
        let Ok(statuses) = self.call("TEST_STATEID", &Test(stateids.clone())).await? else { return Ok(()) };
        let revoked: Vec<_> = stateids
            .iter()
            .copied()
            .zip(statuses)
            .filter(|(_, s)| is_invalid(*s))
            .map(|(id, _)| id)
            .collect();
        self.session.recovered().await;
        if revoked.is_empty() || self.held().stateids() != stateids {
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
    /// The stateid with which a READ or WRITE must be repeated after `status` for the stateid `rejected`; `None` if
    /// another stateid does not help.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(crate) async fn next_stateid(
        &self,
        status: Status,
        file: &[u8],
        (rejected, access): (Stateid, u32),
    ) -> Result<Option<Stateid>, Error> {
        if !is_invalid(status) || rejected == Stateid::ANONYMOUS {
            return Ok(None);
        }
        self.recovered().await;
        let next = self.locked.stateid(file, access)?;
        if next == rejected
            && let Some(locks) = self.locked.get(file)
        {
            locks.lose(&format!("{status:?}"));
            return Err(Error::LocksLost);
        }
        Ok(Some(next))
    }

    /// Claims the state of all files again, after a new client ID.
    pub(super) async fn reclaim(&self) -> Result<Reclaimed, Error> {
        for file in self.locked.all() {
            if let Reclaimed::SessionLost = file.reclaim().await? {
                return Ok(Reclaimed::SessionLost);
            }
        }
        Ok(Reclaimed::Done)
    }

    /// Looks for revoked state in the background, after the server has said that there is some.
    pub(super) fn check_revoked(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let check = async move {
            for file in this.locked.all() {
                if let Err(e) = file.check().await {
                    tracing::debug!(server = this.pool.server(), "cannot test stateids: {e}");
                }
            }
            this.revoked.store(false, Ordering::Release);
        };
        self.pool.rt.spawn("check locks", Box::pin(check));
    }
}
