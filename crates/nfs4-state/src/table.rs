//! The state of one client: its stateids, by owner and file.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use millrace_nfs::v4::{ClientId, Stateid, Status};

use crate::{heap::Charge, share::Shares};

/// An owner, or the key of a file. Those that are equal share their memory where possible.
pub(crate) type Name = Arc<[u8]>;

/// Numbers of stateids by owner and file.
#[derive(Debug, Default)]
struct Index {
    numbers: HashMap<Name, BTreeMap<Name, u32>>,
    len: usize,
}

impl Index {
    fn get(&self, owner: &[u8], file: &[u8]) -> Option<u32> {
        self.numbers.get(owner)?.get(file).copied()
    }

    fn insert(&mut self, owner: &Name, file: &Name, number: u32) {
        let files = self.numbers.entry(owner.clone()).or_default();
        self.len += usize::from(files.insert(file.clone(), number).is_none());
    }

    fn remove(&mut self, owner: &[u8], file: &[u8]) {
        let Some(files) = self.numbers.get_mut(owner) else { return };
        self.len -= usize::from(files.remove(file).is_some());
        if files.is_empty() {
            self.numbers.remove(owner);
        }
    }
}

/// The kind of a delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DelegationKind {
    /// OPEN_DELEGATE_READ: no other client changes the file.
    Read,
    /// OPEN_DELEGATE_WRITE: no other client uses the file.
    Write,
}

/// The state that a stateid identifies.
#[derive(Debug)]
pub(crate) enum Kind {
    /// An open file.
    Open {
        /// Its access and denial, by OPEN.
        shares: Shares,
        /// Numbers of the locks that depend on it.
        locks: BTreeSet<u32>,
        /// Number of byte ranges that these have locked.
        ranges: usize,
    },
    /// The byte-range locks of a lock owner, with the number of its open.
    Locks(u32),
    /// A delegation, which has no owner.
    Delegation(DelegationKind),
}

/// A stateid of the client.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) seqid: u32,
    pub(crate) file: Name,
    pub(crate) owner: Name,
    pub(crate) kind: Kind,
    _charge: Charge,
    /// It is revoked, and FREE_STATEID has not freed it yet.
    pub(crate) revoked: bool,
}

impl Entry {
    /// The status of a request with it.
    pub(crate) fn check(&self) -> Result<(), Status> {
        match self.kind {
            _ if !self.revoked => Ok(()),
            Kind::Delegation(_) => Err(Status::DelegRevoked),
            _ => Err(Status::AdminRevoked),
        }
    }

    /// Counts a change of the state. Returns the new `seqid`, which is never 0.
    pub(crate) fn change(&mut self) -> u32 {
        self.seqid = self.seqid.checked_add(1).unwrap_or(1);
        self.seqid
    }
}

/// Numbers of revoked stateids that FREE_STATEID has not freed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Revoked {
    pub(crate) delegations: usize,
    /// The others.
    pub(crate) others: usize,
}

impl Revoked {
    /// The number of revoked stateids.
    pub(crate) fn count(self) -> usize {
        self.delegations + self.others
    }

    fn count_of(&mut self, kind: &Kind) -> &mut usize {
        if matches!(kind, Kind::Delegation(_)) { &mut self.delegations } else { &mut self.others }
    }
}

/// All stateids of a client.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// The client is removed; there are no more stateids.
    removed: bool,
    last: u32,
    entries: BTreeMap<u32, Entry>,
    opens: Index,
    locks: Index,
    revoked: Revoked,
    /// Number of byte ranges that the client has locked.
    pub(crate) ranges: usize,
}

impl Table {
    /// Fails with EXPIRED if the client is removed, which may happen while requests of its sessions are in progress.
    pub(crate) fn existing(&mut self) -> Result<&mut Self, Status> {
        if self.removed { Err(Status::Expired) } else { Ok(self) }
    }

    /// Ends the table, and returns what it contained.
    pub(crate) fn end(&mut self) -> Self {
        std::mem::replace(self, Self { removed: true, ..Self::default() })
    }

    /// The first stateid.
    pub(crate) fn first(&self) -> Option<(u32, &Entry)> {
        self.entries.first_key_value().map(|(number, entry)| (*number, entry))
    }

    /// The locks of an open: numbers of stateids, and number of ranges.
    pub(crate) fn locks_with(&self, open: u32) -> (usize, usize) {
        match self.get(open).map(|entry| &entry.kind) {
            Some(Kind::Open { locks, ranges, .. }) => (locks.len(), *ranges),
            _ => (0, 0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of opens that are not revoked.
    pub(crate) fn opens(&self) -> usize {
        self.opens.len
    }

    /// The stateids with numbers above `after`, in order.
    pub(crate) fn after(&self, after: u32) -> impl Iterator<Item = (u32, &Entry)> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.entries.range(range).map(|(number, entry)| (*number, entry))
    }

    /// The revoked stateids that FREE_STATEID has not freed.
    pub(crate) fn revoked(&self) -> Revoked {
        self.revoked
    }

    pub(crate) fn open_of(&self, owner: &[u8], file: &[u8]) -> Option<u32> {
        self.opens.get(owner, file)
    }

    pub(crate) fn locks_of(&self, owner: &[u8], file: &[u8]) -> Option<u32> {
        self.locks.get(owner, file)
    }

    /// Number of a stateid that is to be added, which is not 0.
    pub(crate) fn next(&self) -> u32 {
        let mut number = self.last;
        loop {
            number = number.checked_add(1).unwrap_or(1);
            if !self.entries.contains_key(&number) {
                return number;
            }
        }
    }

    /// Adds the stateid with the number that [`next`](Self::next) returned.
    pub(crate) fn add(&mut self, number: u32, file: &Name, owner: &Name, kind: Kind, charge: Charge) {
        match kind {
            Kind::Open { .. } => self.opens.insert(owner, file, number),
            Kind::Locks(_) => self.locks.insert(owner, file, number),
            // A delegation is found through its file.
            Kind::Delegation(_) => {}
        }
        self.last = number;
        if let Kind::Locks(open) = kind
            && let Some(Entry { kind: Kind::Open { locks, .. }, .. }) = self.entries.get_mut(&open)
        {
            locks.insert(number);
        }
        let entry = Entry {
            seqid: 1,
            file: file.clone(),
            owner: owner.clone(),
            kind,
            _charge: charge,
            revoked: false,
        };
        self.entries.insert(number, entry);
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Entry> {
        self.entries.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Entry> {
        self.entries.get_mut(&number)
    }

    /// Removes a stateid from the indexes and from its open: its owner has no state for the file any more.
    fn unlink(&mut self, number: u32) {
        let Some(entry) = self.entries.get(&number).filter(|entry| !entry.revoked) else { return };
        let open = match entry.kind {
            Kind::Open { .. } => return self.opens.remove(&entry.owner, &entry.file),
            Kind::Locks(open) => open,
            Kind::Delegation(_) => return,
        };
        self.locks.remove(&entry.owner, &entry.file);
        if let Some(Entry { kind: Kind::Open { locks, .. }, .. }) = self.entries.get_mut(&open) {
            locks.remove(&number);
        }
    }

    /// Removes a stateid.
    pub(crate) fn remove(&mut self, number: u32) {
        self.unlink(number);
        if let Some(entry) = self.entries.remove(&number).filter(|entry| entry.revoked) {
            *self.revoked.count_of(&entry.kind) -= 1;
        }
    }

    /// Revokes a stateid: only FREE_STATEID accepts it.
    pub(crate) fn revoke(&mut self, number: u32) {
        self.unlink(number);
        if let Some(entry) = self.entries.get_mut(&number)
            && !std::mem::replace(&mut entry.revoked, true)
        {
            *self.revoked.count_of(&entry.kind) += 1;
        }
    }

    /// The stateid that a request names, if it is valid for `client` and current. A `seqid` of 0 means the current
    /// one. A `seqid` wraps, so that two are compared by their difference.
    pub(crate) fn resolve(&self, client: ClientId, stateid: &Stateid) -> Result<(u32, &Entry), Status> {
        let number = number_of(client, stateid).ok_or(Status::BadStateid)?;
        let entry = self.get(number).ok_or(Status::BadStateid)?;
        let behind = entry.seqid.wrapping_sub(stateid.seqid);
        if stateid.seqid != 0 && behind != 0 {
            return Err(if behind <= u32::MAX / 2 { Status::OldStateid } else { Status::BadStateid });
        }
        Ok((number, entry))
    }

    /// The number of the open of `file` that a stateid names.
    pub(crate) fn open_number(&self, client: ClientId, id: &Stateid, file: &[u8]) -> Result<u32, Status> {
        let (number, entry) = self.resolve(client, id)?;
        entry.check()?;
        match entry.kind {
            Kind::Open { .. } if *entry.file == *file => Ok(number),
            _ => Err(Status::BadStateid),
        }
    }
}

/// The stateid with a number: `other` has the client ID and the number.
pub(crate) fn stateid(client: ClientId, number: u32, seqid: u32) -> Stateid {
    let mut other = [0; 12];
    other[..8].copy_from_slice(&client.number.to_be_bytes());
    other[8..].copy_from_slice(&number.to_be_bytes());
    Stateid { seqid, other }
}

/// The number of a stateid of `client`.
fn number_of(client: ClientId, stateid: &Stateid) -> Option<u32> {
    let [prefix @ .., a, b, c, d] = stateid.other;
    (prefix == client.number.to_be_bytes()).then_some(u32::from_be_bytes([a, b, c, d]))
}
