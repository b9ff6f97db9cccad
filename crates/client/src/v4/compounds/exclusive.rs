//! The exclusive creation of a file: OPEN with EXCLUSIVE4_1.

use millrace_nfs::v4::{Attribute, Attributes, Bitmap, CreateHow, share_access};

use super::names::{opened, put_open};
use crate::{
    ops::{CreateExclusive, CreatedExclusive, LeftToSet},
    v4::compound::{Compound, Failure, Operations, Results},
};

/// The times, read or set. A server that stores the verifier in them names either.
const TIMES: Bitmap = Bitmap::of(&[
    Attribute::TimeAccess,
    Attribute::TimeAccessSet,
    Attribute::TimeModify,
    Attribute::TimeModifySet,
]);

impl Compound for CreateExclusive<'_> {
    type Ok = CreatedExclusive;

    fn operations(&self, ops: &mut Operations<'_>) {
        let attributes = Attributes { mode: self.mode, ..Attributes::default() };
        let how = CreateHow::Exclusive41(self.verifier, attributes);
        put_open(ops, self.at, self.owner, how, share_access::WRITE);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<CreatedExclusive, Failure> {
        let (created, named) = opened(r)?;
        Ok(CreatedExclusive { created, left: left_to_set(self.mode.is_some(), named) })
    }
}

/// The attributes left to SETATTR after an OPEN whose result has `named` attributes: those that it has set, and those that
/// hold the verifier. The mode was set if the request had one (`sent_mode`); otherwise it holds the verifier.
fn left_to_set(sent_mode: bool, named: Bitmap) -> LeftToSet {
    LeftToSet { mode: !(sent_mode && named.contains(Attribute::Mode)), times: named.intersects(TIMES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_open_names_the_attributes_left_to_set() {
        use Attribute as A;
        for (named, with_mode, without) in [
            (&[][..], (true, false), (true, false)),
            (&[A::Mode], (false, false), (true, false)),
            (&[A::Mode, A::TimeAccess, A::TimeModify], (false, true), (true, true)),
            (&[A::Mode, A::TimeModifySet], (false, true), (true, true)),
            (&[A::TimeAccessSet], (true, true), (true, true)),
            (&[A::Size, A::Owner, A::Acl, A::TimeMetadata], (true, false), (true, false)),
        ] {
            for (sent, (mode, times)) in [(true, with_mode), (false, without)] {
                assert_eq!(left_to_set(sent, Bitmap::of(named)), LeftToSet { mode, times }, "{named:?}");
            }
        }
    }
}
