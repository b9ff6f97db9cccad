//! LOCK, LOCKT and LOCKU (RFC 8881, 18.10 to 18.12).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_nfs::v4::{ClientId, Stateid, Status};

use crate::{
    client::Client,
    files::File,
    heap::{Charge, RANGE},
    locks::{ByteRange, LockKind, LockNotice},
    reservation::{FULL, stateid_bytes},
    share::{READ, WRITE},
    state::State,
    table::{Entry, Kind, Name, Table, stateid},
};

/// Number of notices that the caller has not taken, after which new ones are dropped.
const NOTICES: usize = 4096;

/// `locker4`: the owner that requests a lock.
#[derive(Debug, Clone, Copy)]
pub enum Locker<'a> {
    /// `open_to_lock_owner4`: a lock owner that may have no stateid for the file yet.
    Open {
        /// The stateid of the open.
        open: &'a Stateid,
        /// The lock owner, without the client ID.
        owner: &'a [u8],
    },
    /// `exist_lock_owner4`: the stateid of an earlier LOCK.
    Existing(&'a Stateid),
}

impl Locker<'_> {
    /// Heap that a stateid of the locks may need.
    fn bytes(&self) -> usize {
        match self {
            Self::Open { owner, .. } => stateid_bytes(owner),
            Self::Existing(_) => 0,
        }
    }
}

/// Arguments of LOCK.
#[derive(Debug, Clone, Copy)]
pub struct LockRequest<'a> {
    /// Who locks.
    pub locker: Locker<'a>,
    /// Key of the file.
    pub file: &'a [u8],
    /// The kind.
    pub kind: LockKind,
    /// READW_LT or WRITEW_LT: the client waits for the lock if it is denied.
    pub blocking: bool,
    /// `reclaim`: the client had the lock with an earlier server instance.
    pub reclaim: bool,
    /// `offset`.
    pub offset: u64,
    /// `length`.
    pub length: u64,
}

/// `LOCK4denied`: a lock that excludes the one that was requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockDenied {
    /// The range of the conflicting lock.
    pub range: ByteRange,
    /// The kind of the conflicting lock.
    pub kind: LockKind,
    /// The client that holds it: its ID, or for another client than the caller's a number, because the ID would permit to
    /// create sessions of it.
    pub client: ClientId,
    /// The lock owner that holds it.
    pub owner: Arc<[u8]>,
}

/// Why LOCK or LOCKT failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockError {
    /// DENIED.
    Denied(LockDenied),
    /// Another status.
    Status(Status),
}

impl From<Status> for LockError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// A request with the stateid that it uses or adds.
struct Attempt<'a> {
    request: &'a LockRequest<'a>,
    range: ByteRange,
    owner: Name,
    /// Number of the stateid of the locks, if there is one.
    own: Option<u32>,
    open: u32,
}

impl<R: Clone> State<R> {
    /// LOCK. Returns the stateid of the lock owner for the file. A conflict with a client whose lease has expired removes
    /// that client. A blocking request that is denied waits for a [`LockNotice`], if the server has a back channel.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit); DENIED, or RECLAIM_CONFLICT for a reclaim; INVAL for an invalid range; OPENMODE if
    /// the open does not permit the kind; SERVERFAULT if the client or the open has too many locks or stateids, which
    /// only their owner can end; DELAY if the server has too many, or while a client with which the request conflicts is
    /// removed; those of a stateid, and BAD_STATEID if it is of the wrong type or file.
    pub fn lock(
        &self,
        client: &Arc<Client>,
        request: &LockRequest<'_>,
        now: Duration,
    ) -> Result<Stateid, LockError> {
        let range = ByteRange::new(request.offset, request.length)?;
        self.grace.admit(client, request.reclaim, now)?;
        self.make_room_for_state(client, RANGE + request.locker.bytes(), now);
        loop {
            let mut table = client.table.lock();
            let attempt = attempt(client, table.existing()?, request, range)?;
            let (holder, denied) = match self.try_lock(client, &mut table, &attempt)? {
                Ok(stateid) => return Ok(stateid),
                Err(conflict) => conflict,
            };
            drop(table);
            if !self.remove_expired(&holder, now)? {
                let reclaim = LockError::Status(Status::ReclaimConflict);
                return Err(if request.reclaim { reclaim } else { LockError::Denied(denied) });
            }
        }
    }

    /// Locks the range, unless the lock that is returned excludes it.
    fn try_lock(
        &self,
        client: &Arc<Client>,
        table: &mut Table,
        attempt: &Attempt<'_>,
    ) -> Result<Result<Stateid, (Arc<Client>, LockDenied)>, Status> {
        let Attempt { request, range, owner, own, open } = attempt;
        self.files.update(request.file, |file, key| {
            if let Some(conflict) = conflict(file, client, *own, request.kind, *range) {
                if request.blocking && !request.reclaim && self.limits.back_channel {
                    let limit = self.limits.waiting_per_client;
                    file.locks.wait(client, (*open, *own, owner), request.kind, *range, limit);
                }
                return Ok(Err(conflict));
            }
            self.admit_range(client, table, *open)?;
            let charge = own.is_none().then(|| self.admit_locks(client, table, owner, *open)).transpose()?;
            let number = own.unwrap_or_else(|| table.next());
            let change = file.locks.lock(client, (number, owner), request.kind, *range);
            count_ranges(client, table, *open, change);
            self.notify(file.locks.available(key));
            let seqid = match (charge, table.get_mut(number)) {
                (None, Some(entry)) => entry.change(),
                (None, None) => return Err(Status::ServerFault),
                (Some(charge), _) => {
                    table.add(number, key, owner, Kind::Locks(*open), charge);
                    1
                }
            };
            Ok(Ok(stateid(client.id(), number, seqid)))
        })
    }

    /// LOCKT: whether a lock owner could lock a range.
    ///
    /// # Errors
    /// GRACE in the grace period, because another client may still reclaim a conflicting lock; DENIED; INVAL for an invalid range; DELAY while a client with which the request conflicts is removed; EXPIRED if the
    /// client is removed.
    pub fn test_lock(
        &self,
        client: &Client,
        owner: &[u8],
        file: &[u8],
        kind: LockKind,
        (offset, length): (u64, u64),
        now: Duration,
    ) -> Result<(), LockError> {
        let range = ByteRange::new(offset, length)?;
        let own = client.table.lock().existing()?.locks_of(owner, file);
        if self.in_grace() {
            return Err(Status::Grace.into());
        }
        loop {
            let found = self.files.read(file, |file| conflict(file, client, own, kind, range));
            let Some((holder, denied)) = found.flatten() else { return Ok(()) };
            if !self.remove_expired(&holder, now)? {
                return Err(LockError::Denied(denied));
            }
        }
    }

    /// LOCKU. Unlocking bytes that are not locked succeeds.
    ///
    /// # Errors
    /// INVAL for an invalid range; SERVERFAULT if the range divides another and the client or the open has too many, and
    /// DELAY if the server has; those of a stateid.
    pub fn unlock(
        &self,
        client: &Client,
        id: &Stateid,
        file: &[u8],
        (offset, length): (u64, u64),
        now: Duration,
    ) -> Result<Stateid, Status> {
        let range = ByteRange::new(offset, length)?;
        self.make_room_for_state(client, RANGE, now);
        let mut table = client.table.lock();
        let (number, open) = locks_number(client, table.existing()?, id, file)?;
        self.files.update(file, |file, key| {
            if file.locks.divides(client, number, range) {
                self.admit_range(client, &table, open)?;
            }
            let change = file.locks.unlock(client, number, range);
            count_ranges(client, &mut table, open, change);
            self.notify(file.locks.available(key));
            let entry = table.get_mut(number).ok_or(Status::BadStateid)?;
            Ok(stateid(client.id(), number, entry.change()))
        })
    }

    /// Takes the notices of locks that clients wait for and that have become available, in the order in which the clients
    /// asked. The server calls this after operations if it has a back channel.
    pub fn take_lock_notices(&self) -> Vec<LockNotice> {
        if !self.noticed.load(Ordering::Acquire) {
            return Vec::new(); // The common case, without a lock.
        }
        let mut notices = self.notices.lock();
        self.noticed.store(false, Ordering::Release);
        std::mem::take(&mut *notices)
    }

    pub(crate) fn notify(&self, notices: Vec<LockNotice>) {
        if !notices.is_empty() {
            let mut all = self.notices.lock();
            let room = NOTICES.saturating_sub(all.len());
            all.extend(notices.into_iter().take(room));
            self.noticed.store(true, Ordering::Release);
        }
    }

    /// Whether the client may have one more locked range.
    fn admit_range(&self, client: &Client, table: &Table, open: u32) -> Result<(), Status> {
        let (_, ranges) = table.locks_with(open);
        if table.ranges >= self.limits.ranges_per_client || ranges >= self.limits.ranges_per_open {
            return Err(FULL);
        }
        if client.heap.permits(RANGE) { Ok(()) } else { Err(Status::Delay) }
    }

    /// Admits the stateid of one more lock owner of an open.
    fn admit_locks(&self, client: &Client, table: &Table, owner: &[u8], open: u32) -> Result<Charge, Status> {
        let (owners, _) = table.locks_with(open);
        if owners >= self.limits.lock_owners_per_open {
            return Err(FULL);
        }
        self.admit_stateid(client, table, owner)
    }
}

/// Counts ranges of a client that it has locked with an open, or those that it has unlocked.
pub(crate) fn count_ranges(client: &Client, table: &mut Table, open: u32, change: isize) {
    if let Some(Entry { kind: Kind::Open { ranges, .. }, .. }) = table.get_mut(open) {
        *ranges = ranges.saturating_add_signed(change);
    }
    table.ranges = table.ranges.saturating_add_signed(change);
    let bytes = change.unsigned_abs() * RANGE;
    if change > 0 { client.heap.add(bytes) } else { client.heap.give_back(bytes) }
}

/// A lock that excludes the one described, with its client.
fn conflict(
    file: &File,
    client: &Client,
    own: Option<u32>,
    kind: LockKind,
    range: ByteRange,
) -> Option<(Arc<Client>, LockDenied)> {
    let (held, holder, owner) = file.locks.conflict(client, own, kind, range)?;
    let other = ClientId { number: holder.serial().into() };
    let named = if holder.id() == client.id() { holder.id() } else { other };
    let denied = LockDenied { range: held.range, kind: held.kind, client: named, owner: owner.clone() };
    Some((holder.clone(), denied))
}

/// Checks the stateid of a LOCK.
fn attempt<'a>(
    client: &Client,
    table: &Table,
    request: &'a LockRequest<'a>,
    range: ByteRange,
) -> Result<Attempt<'a>, Status> {
    let (open, owner, own) = match request.locker {
        Locker::Existing(id) => {
            let (number, open) = locks_number(client, table, id, request.file)?;
            let owner = table.get(number).ok_or(Status::BadStateid)?.owner.clone();
            (open, owner, Some(number))
        }
        Locker::Open { open, owner } => {
            let number = table.open_number(client.id(), open, request.file)?;
            (number, Name::from(owner), table.locks_of(owner, request.file))
        }
    };
    let needed = if request.kind == LockKind::Read { READ } else { WRITE };
    let entry = table.get(open).ok_or(Status::BadStateid)?;
    let Kind::Open { shares, .. } = &entry.kind else { return Err(Status::BadStateid) };
    if shares.union().access & needed == 0 {
        return Err(Status::OpenMode);
    }
    Ok(Attempt { request, range, owner, own, open })
}

/// The numbers of the locks of `file` that a stateid names, and of their open.
fn locks_number(client: &Client, table: &Table, id: &Stateid, file: &[u8]) -> Result<(u32, u32), Status> {
    let (number, entry) = table.resolve(client.id(), id)?;
    match entry.kind {
        _ if entry.revoked => Err(Status::AdminRevoked),
        Kind::Locks(open) if *entry.file == *file => Ok((number, open)),
        _ => Err(Status::BadStateid),
    }
}
