//! The byte-range locks of one file, with the rules of POSIX.

use std::collections::BTreeMap;

use super::{
    range::{ByteRange, LockKind},
    tree::{OwnedRange, Tree},
};
use crate::visits::count_visits;

/// A lock that another owner holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) owner: u64,
    pub(crate) kind: LockKind,
    pub(crate) range: ByteRange,
}

/// The ranges of one owner, by their start. They do not overlap, and those of one kind do not touch.
type Ranges = BTreeMap<u64, (u64, LockKind)>;

/// The locks of a file. A number that is not 0 identifies an owner.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    read: Tree,
    write: Tree,
    owners: BTreeMap<u64, Ranges>,
}

impl LockTable {
    /// A lock of another owner that excludes the one described.
    pub(crate) fn conflict(&self, owner: u64, kind: LockKind, range: ByteRange) -> Option<Held> {
        let find = |tree: &Tree, held| {
            let found = tree.find_other(range.start, range.last, owner)?;
            let range = ByteRange { start: found.start, last: found.last };
            Some(Held { owner: found.owner, kind: held, range })
        };
        let write = find(&self.write, LockKind::Write);
        write.or_else(|| find(&self.read, LockKind::Read).filter(|_| kind == LockKind::Write))
    }

    fn tree(&mut self, kind: LockKind) -> &mut Tree {
        match kind {
            LockKind::Read => &mut self.read,
            LockKind::Write => &mut self.write,
        }
    }

    fn add(&mut self, owner: u64, kind: LockKind, start: u64, last: u64) {
        self.tree(kind).insert(OwnedRange { start, last, owner });
        self.owners.entry(owner).or_default().insert(start, (last, kind));
    }

    fn take(&mut self, owner: u64, kind: LockKind, start: u64, last: u64) {
        self.tree(kind).remove(&OwnedRange { start, last, owner });
        let Some(ranges) = self.owners.get_mut(&owner) else { return };
        ranges.remove(&start);
        if ranges.is_empty() {
            self.owners.remove(&owner);
        }
    }

    /// The last range of the owner that starts at `start` or before it.
    fn before(&self, owner: u64, start: u64) -> Option<(u64, u64, LockKind)> {
        let (first, (last, kind)) = self.owners.get(&owner)?.range(..=start).next_back()?;
        Some((*first, *last, *kind))
    }

    /// Locks a range for an owner, in place of what it holds there. The caller has checked that no lock conflicts.
    pub(crate) fn lock(&mut self, owner: u64, kind: LockKind, range: ByteRange) {
        self.unlock(owner, range);
        let ByteRange { mut start, mut last } = range;
        let left = start.checked_sub(1).and_then(|byte| self.before(owner, byte));
        if let Some((first, end, of)) =
            left.filter(|(_, end, of)| end.checked_add(1) == Some(start) && *of == kind)
        {
            self.take(owner, of, first, end);
            start = first;
        }
        let right = last.checked_add(1).and_then(|byte| self.before(owner, byte));
        if let Some((first, end, of)) =
            right.filter(|(first, _, of)| Some(*first) == last.checked_add(1) && *of == kind)
        {
            self.take(owner, of, first, end);
            last = end;
        }
        self.add(owner, kind, start, last);
    }

    /// Unlocks a range of an owner: ranges that it cuts are shortened or divided.
    pub(crate) fn unlock(&mut self, owner: u64, range: ByteRange) {
        while let Some((first, end, kind)) =
            self.before(owner, range.last).filter(|(_, end, _)| *end >= range.start)
        {
            count_visits(1);
            self.take(owner, kind, first, end);
            if end > range.last {
                self.add(owner, kind, range.last + 1, end);
            }
            if first < range.start {
                self.add(owner, kind, first, range.start - 1);
            }
        }
    }

    /// Whether unlocking a range would divide a lock into two.
    pub(crate) fn divides(&self, owner: u64, range: ByteRange) -> bool {
        self.before(owner, range.start).is_some_and(|(first, end, _)| first < range.start && end > range.last)
    }

    /// Number of ranges of an owner.
    pub(crate) fn count(&self, owner: u64) -> usize {
        self.owners.get(&owner).map_or(0, BTreeMap::len)
    }

    /// Unlocks everything that an owner holds.
    pub(crate) fn remove_owner(&mut self, owner: u64) {
        for (start, (last, kind)) in self.owners.remove(&owner).unwrap_or_default() {
            self.tree(kind).remove(&OwnedRange { start, last, owner });
        }
    }
}

#[cfg(test)]
impl LockTable {
    /// The ranges of an owner.
    pub(crate) fn ranges(&self, owner: u64) -> Vec<(LockKind, ByteRange)> {
        let ranges = self.owners.get(&owner).into_iter().flatten();
        ranges.map(|(start, (last, kind))| (*kind, ByteRange { start: *start, last: *last })).collect()
    }

    /// Checks the invariants of the trees.
    pub(crate) fn check(&self) {
        self.read.check();
        self.write.check();
    }
}
