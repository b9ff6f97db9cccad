//! The lock table compared with the lock of each byte.

use proptest::prelude::*;

use super::{
    range::{ByteRange, LockKind},
    table::LockTable,
};

const BYTES: usize = 24;
const OWNERS: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Step {
    Lock(usize, LockKind, usize, usize),
    Unlock(usize, usize, usize),
    Remove(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (owner, byte) = (0..OWNERS, 0..BYTES);
    // Read locks are more frequent, because those of different owners may overlap.
    let kind = prop_oneof![3 => Just(LockKind::Read), 1 => Just(LockKind::Write)];
    let length = prop_oneof![3 => 0..3_usize, 1 => 0..BYTES];
    let step = prop_oneof![
        6 => (owner.clone(), kind, byte.clone(), length.clone()).prop_map(|(o, k, b, n)| Step::Lock(o, k, b, n)),
        3 => (owner.clone(), byte, length).prop_map(|(o, b, n)| Step::Unlock(o, b, n)),
        1 => owner.prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 1..120)
}

type Bytes = [Option<LockKind>; BYTES];

struct Model {
    table: LockTable,
    /// Offset of the first byte.
    base: u64,
    owners: [Bytes; OWNERS],
}

impl Model {
    fn range(&self, byte: usize, more: usize) -> ByteRange {
        let last = (byte + more).min(BYTES - 1);
        ByteRange { start: self.base + byte as u64, last: self.base + last as u64 }
    }

    fn bytes(&self, range: ByteRange) -> std::ops::RangeInclusive<usize> {
        (range.start - self.base) as usize..=(range.last - self.base) as usize
    }

    fn excluded(&self, owner: usize, kind: LockKind, range: ByteRange) -> bool {
        let others = self.owners.iter().enumerate().filter(|(other, _)| *other != owner);
        let held = others.flat_map(|(_, bytes)| bytes[self.bytes(range)].iter().flatten());
        held.into_iter().any(|held| kind == LockKind::Write || *held == LockKind::Write)
    }

    /// The ranges of an owner: runs of bytes of one kind.
    fn runs(&self, owner: usize) -> Vec<(LockKind, ByteRange)> {
        let mut runs: Vec<(LockKind, ByteRange)> = Vec::new();
        for (n, kind) in self.owners[owner].iter().enumerate() {
            let Some(kind) = kind else { continue };
            let at = self.base + n as u64;
            match runs.last_mut() {
                Some((of, range)) if of == kind && range.last + 1 == at => range.last = at,
                _ => runs.push((*kind, ByteRange { start: at, last: at })),
            }
        }
        runs
    }

    fn lock(&mut self, owner: usize, kind: LockKind, range: ByteRange) {
        let held = self.table.conflict(owner as u64 + 1, kind, range);
        assert_eq!(held.is_some(), self.excluded(owner, kind, range), "{owner} {kind:?} {range:?}");
        let Some(held) = held else {
            self.table.lock(owner as u64 + 1, kind, range);
            let bytes = self.bytes(range);
            self.owners[owner][bytes].fill(Some(kind));
            return;
        };
        let other = held.owner as usize - 1;
        assert!(other != owner && self.runs(other).contains(&(held.kind, held.range)), "{held:?}");
        assert!(held.range.start <= range.last && held.range.last >= range.start);
        assert!(kind == LockKind::Write || held.kind == LockKind::Write);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Lock(owner, kind, byte, more) => self.lock(owner, kind, self.range(byte, more)),
            Step::Unlock(owner, byte, more) => {
                let range = self.range(byte, more);
                let (divides, before) = (self.table.divides(owner as u64 + 1, range), self.runs(owner).len());
                self.table.unlock(owner as u64 + 1, range);
                let bytes = self.bytes(range);
                self.owners[owner][bytes].fill(None);
                assert_eq!(divides, self.runs(owner).len() > before);
            }
            Step::Remove(owner) => {
                self.table.remove_owner(owner as u64 + 1);
                self.owners[owner] = [None; BYTES];
            }
        }
        for owner in 0..OWNERS {
            let runs = self.runs(owner);
            assert_eq!(self.table.count(owner as u64 + 1), runs.len());
            assert_eq!(self.table.ranges(owner as u64 + 1), runs, "owner {owner}");
        }
        self.table.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_table_holds_the_lock_of_each_byte(steps in steps(), at_end in any::<bool>()) {
        let base = if at_end { u64::MAX - BYTES as u64 + 1 } else { 0 };
        let mut model = Model { table: LockTable::default(), base, owners: [[None; BYTES]; OWNERS] };
        for step in steps {
            model.run(step);
        }
    }
}
