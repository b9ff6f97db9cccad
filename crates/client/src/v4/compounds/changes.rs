//! Proof that an operation alone has changed an object, for a cache of its data or names.
//!
//! NFSv3 servers return the attributes of an object before and after a change (`wcc_data`, RFC 1813 section 2.6). NFSv4 has
//! the change attribute: the server returns that of a directory before and after the change of a name (`change_info4`), and
//! whether it read both atomically with the change. Other results have none. A GETATTR before the change, in the same
//! COMPOUND, is not atomic with it: another client may change the object between the two. A change attribute that counts the
//! changes (`NFS4_CHANGE_TYPE_IS_VERSION_COUNTER`, RFC 7862 section 12.2.3) shows whether it has: it has increased by one if
//! the operation is a change, and not at all if it is none.

use millrace_nfs::v4::{Attribute, Attributes, Bitmap, ChangeInfo, Operation};

use super::attributes::{after, attributes, requested};
use crate::{
    ops::{ChangeNumbers, FileHandle, Wcc},
    v4::{
        ChangeProof,
        compound::{Compound, Failure, Operations, Results},
    },
};

/// The change attribute alone.
const CHANGE: Bitmap = Bitmap::of(&[Attribute::Change]);

/// Appends the request for the change attribute of the current object, in front of its change.
pub(super) fn put_before(ops: &mut Operations<'_>) {
    if ops.proof == ChangeProof::OfObjects {
        ops.getattr(CHANGE);
    }
}

/// The result of [`put_before`]; `None` without it.
pub(super) fn before(r: &mut Results<'_>) -> Result<Option<u64>, Failure> {
    match r.proof {
        ChangeProof::OfObjects => Ok(r.next::<Attributes<'_>>(Operation::Getattr)?.change),
        _ => Ok(None),
    }
}

/// Appends the request for what [`changed`] or [`unchanged`] needs of the current object after an operation on its data.
pub(super) fn put_after(ops: &mut Operations<'_>) {
    ops.getattr(match ops.proof {
        ChangeProof::OfObjects => CHANGE,
        proof => requested(proof),
    });
}

/// The change of an object from a change attribute to another one by one operation, which is a change (`is_change`) or not;
/// `None` if another operation may have changed the object too.
fn alone(before: Option<u64>, after: Option<u64>, is_change: bool) -> Option<ChangeNumbers> {
    let (before, after) = before.zip(after)?;
    (after.wrapping_sub(before) == is_change.into()).then_some(ChangeNumbers { before, after })
}

/// The results of [`put_after`] of an object whose data the operation before has changed (`is_change`), or not.
pub(super) fn changed(before: Option<u64>, is_change: bool, r: &mut Results<'_>) -> Result<Wcc, Failure> {
    data(r, |now| alone(before, now, is_change))
}

/// The results of [`put_after`] of an object that the operation leaves unchanged, such as COMMIT: its change attribute is
/// that before and after it. A change by another client between the last known change attribute and this one differs from
/// both.
pub(super) fn unchanged(r: &mut Results<'_>) -> Result<Wcc, Failure> {
    data(r, |now| alone(now, now, false))
}

/// The results of [`put_after`]. `change` returns the change that the change attribute after it proves.
fn data(
    r: &mut Results<'_>,
    change: impl FnOnce(Option<u64>) -> Option<ChangeNumbers>,
) -> Result<Wcc, Failure> {
    match r.proof {
        ChangeProof::OfObjects => {
            let now = r.optional::<Attributes<'_>>(Operation::Getattr)?.and_then(|a| a.change);
            Ok(Wcc { change: change(now), ..Wcc::default() })
        }
        _ => Ok(Wcc { after: after(r)?, ..Wcc::default() }),
    }
}

/// The results of SETATTR, and of a GETATTR of [`requested`] after it.
pub(super) fn attributes_changed(
    before: Option<u64>,
    is_change: bool,
    r: &mut Results<'_>,
) -> Result<Wcc, Failure> {
    let Some(a) = r.optional::<Attributes<'_>>(Operation::Getattr)? else { return Ok(Wcc::default()) };
    Ok(Wcc { before: None, after: Some(attributes(&a, r)?), change: alone(before, a.change, is_change) })
}

/// Whether an operation that changes names is followed by a GETATTR of their directory, which [`directory`] decodes.
pub(super) fn has_directory(proof: ChangeProof) -> bool {
    proof == ChangeProof::Nothing
}

/// Appends the request for what [`directory`] needs of the current directory after a change of a name in it.
pub(super) fn put_directory(ops: &mut Operations<'_>) {
    if has_directory(ops.proof) {
        ops.attributes();
    }
}

/// The change of a directory in which a name has changed. `info` is the result of the change.
pub(super) fn directory(info: ChangeInfo, r: &mut Results<'_>) -> Result<Wcc, Failure> {
    if has_directory(r.proof) {
        return Ok(Wcc { after: after(r)?, ..Wcc::default() });
    }
    let ChangeInfo { atomic, before, after } = info;
    Ok(Wcc { change: atomic.then_some(ChangeNumbers { before, after }), ..Wcc::default() })
}

/// A request for what the change attribute of an object proves.
pub(crate) struct GetChangeProof {
    pub(crate) object: FileHandle,
}

impl Compound for GetChangeProof {
    type Ok = ChangeProof;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.object.as_bytes()).getattr(Bitmap::of(&[Attribute::ChangeAttrType]));
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ChangeProof, Failure> {
        r.done(Operation::Putfh)?;
        Ok(ChangeProof::of(r.next::<Attributes<'_>>(Operation::Getattr)?.change_attr_type))
    }
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_nfs::v4::{ChangeAttrType, CompoundRes, Fsid, Opaque, Status};
    use millrace_xdr::{Decoder, Encoder};

    use super::{super::attributes::change_number, *};
    use crate::ops;

    /// Attributes with this change attribute.
    fn attributes(change: u64, change_type: Option<ChangeAttrType>) -> Attributes<'static> {
        Attributes {
            file_type: Some(millrace_nfs::v4::FileType::Regular),
            change: Some(change),
            size: Some(0),
            fileid: Some(1),
            fsid: Some(Fsid::default()),
            change_attr_type: change_type,
            ..Attributes::default()
        }
    }

    /// Decodes the results of GETATTRs.
    fn decode<T>(
        proof: ChangeProof,
        results: &[Attributes<'_>],
        decode: impl FnOnce(&mut Results<'_>) -> Result<T, Failure>,
    ) -> T {
        let arena = Arena::new(ArenaConfig::default());
        let mut e = Encoder::new(&arena, 512);
        e.put(&CompoundRes { status: Status::Ok, tag: Opaque(b""), results: results.len() as u32 });
        for attributes in results {
            e.put(&Operation::Getattr);
            e.put(&Status::Ok);
            e.put(attributes);
        }
        let message = e.finish().unwrap();
        let mut results = Results::new(Decoder::new(&message), proof).unwrap();
        let decoded = decode(&mut results).unwrap();
        results.finish().unwrap();
        decoded
    }

    #[test]
    fn a_counter_proves_that_nothing_else_has_changed_an_object() {
        for (from, to, expected) in [
            (7, 8, [false, true]),
            (u64::MAX, 0, [false, true]),
            (7, 7, [true, false]),
            (7, 9, [false; 2]),
            (7, 6, [false; 2]),
        ] {
            let around =
                [from, to].map(|change| Attributes { change: Some(change), ..Attributes::default() });
            let proven = [false, true].map(|is_change| {
                let wcc = decode(ChangeProof::OfObjects, &around, |r| {
                    let before = before(r)?;
                    changed(before, is_change, r)
                });
                assert_eq!((wcc.before, wcc.after), (None, None));
                wcc.change == Some(ChangeNumbers { before: from, after: to })
            });
            assert_eq!(proven, expected, "{from} {to}");
            let around = [around[0], attributes(to, Some(ChangeAttrType::VersionCounter))];
            let set = [false, true].map(|is_change| {
                let wcc = decode(ChangeProof::OfObjects, &around, |r| {
                    let before = before(r)?;
                    attributes_changed(before, is_change, r)
                });
                assert_eq!(wcc.after.unwrap().change, Some(to));
                wcc.change.is_some()
            });
            assert_eq!(set, expected, "{from} {to}");
        }
        let missing = [Attributes::default(), attributes(8, None)];
        let wcc = decode(ChangeProof::OfObjects, &missing, |r| {
            let before = before(r)?;
            changed(before, true, r)
        });
        assert_eq!(wcc.change, None);
    }

    #[test]
    fn other_change_attributes_prove_nothing_about_objects() {
        for proof in [ChangeProof::OfNames, ChangeProof::Nothing] {
            let now = [attributes(8, Some(ChangeAttrType::Monotonic))];
            let wcc = decode(proof, &now, |r| {
                let before = before(r)?;
                changed(before, true, r)
            });
            assert!(wcc.before.is_none() && wcc.change.is_none() && wcc.after.is_some());
            let wcc = decode(proof, &now, unchanged);
            assert!(wcc.before.is_none() && wcc.change.is_none() && wcc.after.is_some());
        }
    }

    /// COMMIT changes nothing: a change before it by another client does not become one of this client.
    #[test]
    fn commit_proves_no_change() {
        let now = [Attributes { change: Some(9), ..Attributes::default() }];
        let committed = decode(ChangeProof::OfObjects, &now, unchanged);
        assert_eq!(committed.change, Some(ChangeNumbers { before: 9, after: 9 }));
        let written = |before, after| Wcc { change: Some(ChangeNumbers { before, after }), ..Wcc::default() };
        assert_eq!(written(8, 9).then(committed).change, Some(ChangeNumbers { before: 8, after: 9 }));
        assert_eq!(written(7, 8).then(committed).change, None, "another client has changed 8 to 9");
    }

    #[test]
    fn an_atomic_change_info_proves_that_nothing_else_has_changed_a_directory() {
        for (atomic, expected) in [(true, Some(ChangeNumbers { before: 7, after: 90 })), (false, None)] {
            let info = ChangeInfo { atomic, before: 7, after: 90 };
            for proof in [ChangeProof::OfNames, ChangeProof::OfObjects] {
                let wcc = decode(proof, &[], |r| directory(info, r));
                assert_eq!(wcc, Wcc { change: expected, ..Wcc::default() });
            }
            let now = [attributes(90, Some(ChangeAttrType::TimeMetadata))];
            let wcc = decode(ChangeProof::Nothing, &now, |r| directory(info, r));
            assert!(wcc.change.is_none() && wcc.before.is_none() && wcc.after.is_some());
        }
    }

    #[test]
    fn objects_have_the_change_attributes_that_prove_something() {
        use ChangeAttrType::{Monotonic, TimeMetadata, Undefined, VersionCounter, VersionCounterWithoutPnfs};
        let number =
            |change_type, file_type: ops::FileType| change_number(&attributes(5, change_type), file_type);
        for (change_type, of_directory, of_file) in [
            (Some(VersionCounter), Some(5), Some(5)),
            (Some(VersionCounterWithoutPnfs), Some(5), Some(5)),
            (Some(Monotonic), Some(5), None),
            (None, Some(5), None),
            (Some(TimeMetadata), None, None),
            (Some(Undefined), None, None),
        ] {
            let found = [ops::FileType::Directory, ops::FileType::Regular].map(|t| number(change_type, t));
            assert_eq!(found, [of_directory, of_file], "{change_type:?}");
        }
    }
}
