//! Opens and byte-range locks, as COMPOUNDs (RFC 8881 sections 18.2, 18.10 to 18.12, 18.16, 18.38 and 18.48).

use std::ops::Range;

use millrace_nfs::v4::{
    Attributes, Claim, ClientId, CloseArgs, DelegationType, FreeStateidArgs, List, LockArgs, LockDenied,
    LockType, Locker, LocktArgs, LockuArgs, Opaque, OpenArgs, OpenOk, Operation, StateOwner, Stateid,
    StateidOk, Status, TestStateidArgs, TestStateidOk, share_access, share_deny,
};

use super::{
    compound::{Compound, Failure, Operations, Results},
    ranges::LockKind,
};

/// A lock of another owner that conflicts with a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The range of the lock; an end of [`u64::MAX`] is the end of the file.
    pub range: Range<u64>,
    /// The kind of the lock.
    pub kind: LockKind,
}

/// The length of a range in the protocol.
fn length(range: &Range<u64>) -> u64 {
    if range.end == u64::MAX { u64::MAX } else { range.end.saturating_sub(range.start) }
}

fn owner(owner: &[u8]) -> StateOwner<'_> {
    StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(owner) }
}

fn conflict(denied: &LockDenied<'_>) -> Conflict {
    let kind = match denied.lock_type {
        LockType::Read | LockType::ReadWaiting => LockKind::Shared,
        LockType::Write | LockType::WriteWaiting => LockKind::Exclusive,
    };
    Conflict { range: denied.offset..denied.offset.saturating_add(denied.length), kind }
}

fn lock_type(kind: LockKind, waits: bool) -> LockType {
    match (kind, waits) {
        (LockKind::Shared, false) => LockType::Read,
        (LockKind::Shared, true) => LockType::ReadWaiting,
        (LockKind::Exclusive, false) => LockType::Write,
        (LockKind::Exclusive, true) => LockType::WriteWaiting,
    }
}

/// OPEN of a file by its handle.
pub(super) struct Open<'a> {
    pub(super) file: &'a [u8],
    pub(super) owner: &'a [u8],
    /// Bits of [`share_access`].
    pub(super) access: u32,
    /// Whether it was open before the server restarted.
    pub(super) reclaim: bool,
}

impl Compound for Open<'_> {
    type Ok = Stateid;

    fn operations(&self, ops: &mut Operations<'_>) {
        let claim = if self.reclaim { Claim::Previous(DelegationType::None) } else { Claim::Fh };
        ops.putfh(self.file).put(
            Operation::Open,
            &OpenArgs::<Attributes<'_>> {
                seqid: 0,
                share_access: self.access | share_access::WANT_NO_DELEG,
                share_deny: share_deny::NONE,
                owner: owner(self.owner),
                create: None,
                claim,
            },
        );
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Stateid, Failure> {
        r.done(Operation::Putfh)?;
        Ok(r.next::<OpenOk<'_>>(Operation::Open)?.stateid)
    }
}

/// CLOSE.
pub(super) struct Close<'a> {
    pub(super) file: &'a [u8],
    pub(super) open: Stateid,
}

impl Compound for Close<'_> {
    type Ok = ();

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.file).put(Operation::Close, &CloseArgs { seqid: 0, stateid: latest(self.open) });
    }

    fn results(&self, r: &mut Results<'_>) -> Result<(), Failure> {
        r.done(Operation::Putfh)?;
        r.next::<StateidOk>(Operation::Close).map(drop)
    }
}

/// The stateid in its most recent version.
pub(super) fn latest(stateid: Stateid) -> Stateid {
    Stateid { seqid: 0, ..stateid }
}

/// LOCK.
pub(super) struct Lock<'a> {
    pub(super) file: &'a [u8],
    pub(super) open: Stateid,
    pub(super) owner: &'a [u8],
    /// The stateid of the owner's locks in the file, if it has locked it before.
    pub(super) locks: Option<Stateid>,
    pub(super) range: Range<u64>,
    pub(super) kind: LockKind,
    /// Whether the caller will try again.
    pub(super) waits: bool,
    pub(super) reclaim: bool,
}

/// The result of LOCK: the stateid of the owner's locks, or the conflicting lock.
pub(super) type Locked = Result<Stateid, Conflict>;

impl Compound for Lock<'_> {
    type Ok = Locked;

    fn operations(&self, ops: &mut Operations<'_>) {
        let locker = match self.locks {
            Some(stateid) => Locker::Existing { lock_stateid: latest(stateid), lock_seqid: 0 },
            None => Locker::New {
                open_seqid: 0,
                open_stateid: latest(self.open),
                lock_seqid: 0,
                owner: owner(self.owner),
            },
        };
        ops.putfh(self.file).put(
            Operation::Lock,
            &LockArgs {
                lock_type: lock_type(self.kind, self.waits),
                reclaim: self.reclaim,
                offset: self.range.start,
                length: length(&self.range),
                locker,
            },
        );
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Locked, Failure> {
        r.done(Operation::Putfh)?;
        match r.next::<StateidOk>(Operation::Lock) {
            Ok(ok) => Ok(Ok(ok.stateid)),
            Err(Failure::Status(_, Status::Denied)) => Ok(Err(conflict(&r.of_failure()?))),
            Err(failure) => Err(failure),
        }
    }
}

/// LOCKT.
pub(super) struct TestLock<'a> {
    pub(super) file: &'a [u8],
    pub(super) owner: &'a [u8],
    pub(super) range: Range<u64>,
    pub(super) kind: LockKind,
}

impl Compound for TestLock<'_> {
    type Ok = Option<Conflict>;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.file).put(
            Operation::Lockt,
            &LocktArgs {
                lock_type: lock_type(self.kind, false),
                offset: self.range.start,
                length: length(&self.range),
                owner: owner(self.owner),
            },
        );
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Option<Conflict>, Failure> {
        r.done(Operation::Putfh)?;
        match r.done(Operation::Lockt) {
            Ok(()) => Ok(None),
            Err(Failure::Status(_, Status::Denied)) => Ok(Some(conflict(&r.of_failure()?))),
            Err(failure) => Err(failure),
        }
    }
}

/// LOCKU.
pub(super) struct Unlock<'a> {
    pub(super) file: &'a [u8],
    pub(super) locks: Stateid,
    pub(super) range: Range<u64>,
}

impl Compound for Unlock<'_> {
    type Ok = Stateid;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.file).put(
            Operation::Locku,
            &LockuArgs {
                lock_type: LockType::Write,
                seqid: 0,
                stateid: latest(self.locks),
                offset: self.range.start,
                length: length(&self.range),
            },
        );
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Stateid, Failure> {
        r.done(Operation::Putfh)?;
        Ok(r.next::<StateidOk>(Operation::Locku)?.stateid)
    }
}

/// TEST_STATEID of all stateids of a file. Its results are in order.
pub(super) struct Test(pub(super) Vec<Stateid>);

impl Compound for Test {
    type Ok = Vec<Status>;

    fn operations(&self, ops: &mut Operations<'_>) {
        let stateids = self.0.iter().copied().map(latest).collect();
        ops.put(Operation::TestStateid, &TestStateidArgs { stateids: List(stateids) });
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Vec<Status>, Failure> {
        let ok: TestStateidOk = r.next(Operation::TestStateid)?;
        match ok.statuses.len() == self.0.len() {
            true => Ok(ok.statuses.0),
            false => Err(Failure::Invalid("another number of statuses than of stateids".into())),
        }
    }
}

/// FREE_STATEID.
pub(super) struct Free(pub(super) Stateid);

impl Compound for Free {
    type Ok = ();

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.put(Operation::FreeStateid, &FreeStateidArgs { stateid: latest(self.0) });
    }

    fn results(&self, r: &mut Results<'_>) -> Result<(), Failure> {
        r.done(Operation::FreeStateid)
    }
}
