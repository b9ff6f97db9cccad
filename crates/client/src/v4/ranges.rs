//! The byte ranges that an owner has locked in a file, with the rules of POSIX: a lock replaces the owner's earlier
//! locks in its range.

use std::{collections::BTreeMap, ops::Range};

/// A kind of lock on a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Others may have shared locks.
    Shared,
    /// Others may have none.
    Exclusive,
}

/// Disjoint locked ranges; neighbours have different kinds. An end of [`u64::MAX`] is the end of the file, however long
/// it becomes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, (u64, LockKind)>);

impl Ranges {
    /// Whether nothing is locked.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The locked ranges in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Range<u64>, LockKind)> + '_ {
        self.0.iter().map(|(start, (end, kind))| (*start..*end, *kind))
    }

    /// Unlocks a range.
    pub(crate) fn clear(&mut self, range: &Range<u64>) {
        let overlapping: Vec<_> =
            self.iter().filter(|(r, _)| r.start < range.end && range.start < r.end).collect();
        for (old, kind) in overlapping {
            self.0.remove(&old.start);
            for rest in [old.start..range.start.min(old.end), range.end.max(old.start)..old.end] {
                if rest.start < rest.end {
                    self.0.insert(rest.start, (rest.end, kind));
                }
            }
        }
    }

    /// Locks a range.
    pub(crate) fn set(&mut self, range: &Range<u64>, kind: LockKind) {
        self.clear(range);
        let mut merged = range.clone();
        let near: Vec<_> = self
            .iter()
            .filter(|(r, k)| *k == kind && (r.end == range.start || r.start == range.end))
            .collect();
        for (r, _) in near {
            self.0.remove(&r.start);
            merged = merged.start.min(r.start)..merged.end.max(r.end);
        }
        self.0.insert(merged.start, (merged.end, kind));
    }

    /// The parts of `range` that are not locked.
    pub(crate) fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut all = Self::default();
        all.set(range, LockKind::Shared);
        for (locked, _) in self.iter() {
            all.clear(&locked);
        }
        all.iter().map(|(r, _)| r).collect()
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::{
        SplitMix64,
        rand_core::{Rng, SeedableRng},
    };

    use super::*;

    const BYTES: usize = 24;

    fn bytes(ranges: &Ranges) -> [Option<LockKind>; BYTES] {
        let mut bytes = [None; BYTES];
        for (range, kind) in ranges.iter() {
            bytes[range.start as usize..range.end as usize].fill(Some(kind));
        }
        bytes
    }

    /// Random changes, compared with a table of bytes.
    #[test]
    fn ranges_match_a_table_of_bytes() {
        let mut random = SplitMix64::seed_from_u64(1);
        let mut next = |n: u64| random.next_u64() % n;
        let (mut ranges, mut model) = (Ranges::default(), [None; BYTES]);
        for _ in 0..20_000 {
            let start = next(BYTES as u64);
            let end = start + 1 + next(BYTES as u64 - start);
            let slice = &mut model[start as usize..end as usize];
            match next(3) {
                0 => {
                    ranges.clear(&(start..end));
                    slice.fill(None);
                }
                n => {
                    let kind = if n == 1 { LockKind::Shared } else { LockKind::Exclusive };
                    ranges.set(&(start..end), kind);
                    slice.fill(Some(kind));
                }
            }
            assert_eq!(bytes(&ranges), model);
            let all: Vec<_> = ranges.iter().collect();
            assert!(all.windows(2).all(|w| w[0].0.end < w[1].0.start || w[0].1 != w[1].1), "{all:?}");
            let (from, to) = (next(12), 12 + next(12));
            let gaps = ranges.gaps(&(from..to));
            let expected = (from..to).filter(|b| model[*b as usize].is_none());
            assert!(gaps.into_iter().flatten().eq(expected));
        }
    }
}
