//! The attributes of an object before a change of it, which NFSv3 servers return (`wcc_data`, RFC 1813 section 2.6).
//!
//! NFSv4 has no such results. A GETATTR before the change, in the same COMPOUND, is not atomic with it: another client may
//! change the object between the two. The change attribute shows whether it has: the server returns that of a directory
//! before and after the change of a name (`change_info4`), and that of other objects may be a counter of changes
//! (`NFS4_CHANGE_TYPE_IS_VERSION_COUNTER`, RFC 7862 section 12.2.3), which has increased by one if the operation is a
//! change, and not at all if it is none.

use millrace_nfs::{
    v3::{FileHandle, WccAttr, WccData},
    v4::{Attribute, Attributes, Bitmap, ChangeAttrType, ChangeInfo, Operation},
};

use super::attributes::{FATTR, after, fattr, time};
use crate::nfs4::compound::{Compound, Failure, Operations, Results};

/// The attributes of [`Before`].
const BEFORE: Bitmap = Bitmap::of(&[
    Attribute::Change,
    Attribute::Size,
    Attribute::TimeMetadata,
    Attribute::TimeModify,
    Attribute::ChangeAttrType,
]);

/// The attributes of an object before a change.
pub(super) struct Before {
    attributes: WccAttr,
    change: u64,
    /// Whether the change attribute is a counter of changes.
    is_counter: bool,
}

/// Appends the request for the attributes of the current object, in front of its change.
pub(super) fn put_before(ops: &mut Operations<'_>) {
    if ops.before {
        ops.getattr(BEFORE);
    }
}

/// Appends the request for the attributes of the current object after its change.
pub(super) fn put_after(ops: &mut Operations<'_>) {
    ops.getattr(if ops.before { FATTR.union(Bitmap::of(&[Attribute::Change])) } else { FATTR });
}

/// The results of [`put_before`]; `None` without it, or if the server omits an attribute.
pub(super) fn before(r: &mut Results<'_>) -> Result<Option<Before>, Failure> {
    if !r.before {
        return Ok(None);
    }
    let a: Attributes<'_> = r.next(Operation::Getattr)?;
    let known = || {
        let (mtime, ctime) = (time(a.time_modify?), time(a.time_metadata?));
        let attributes = WccAttr { size: a.size?, mtime, ctime };
        let is_counter = matches!(
            a.change_attr_type,
            Some(ChangeAttrType::VersionCounter | ChangeAttrType::VersionCounterWithoutPnfs)
        );
        Some(Before { attributes, change: a.change?, is_counter })
    };
    Ok(known())
}

/// The results of [`put_after`] of an object that the operation leaves unchanged, such as COMMIT: its attributes are those
/// before and after it. A change by another client between its last known attributes and these differs from both.
pub(super) fn unchanged(r: &mut Results<'_>) -> Result<WccData, Failure> {
    let after = after(r)?;
    Ok(WccData { before: after.as_ref().filter(|_| r.before).map(WccAttr::from), after })
}

impl Before {
    /// The results of [`put_after`] of an object whose data or attributes the operation between has changed (`changed`),
    /// or not.
    pub(super) fn object(
        before: Option<Self>,
        changed: bool,
        r: &mut Results<'_>,
    ) -> Result<WccData, Failure> {
        let is_proof =
            |before: &Self, now: u64| before.is_counter && now.wrapping_sub(before.change) == changed.into();
        Self::wcc(before, r, is_proof)
    }

    /// The results of [`put_after`] of a directory in which a name has changed. `info` is the result of the change.
    pub(super) fn directory(
        before: Option<Self>,
        info: ChangeInfo,
        r: &mut Results<'_>,
    ) -> Result<WccData, Failure> {
        let is_proof = |before: &Self, now| info.atomic && info.before == before.change && info.after == now;
        Self::wcc(before, r, is_proof)
    }

    /// `is_proof` is whether the change attribute, before and after, proves that nothing else has changed.
    fn wcc(
        before: Option<Self>,
        r: &mut Results<'_>,
        is_proof: impl FnOnce(&Self, u64) -> bool,
    ) -> Result<WccData, Failure> {
        let Some(a) = r.optional::<Attributes<'_>>(Operation::Getattr)? else {
            return Ok(WccData::default());
        };
        let before = before.filter(|before| a.change.is_some_and(|now| is_proof(before, now)));
        Ok(WccData { before: before.map(|b| b.attributes), after: Some(fattr(&a)?) })
    }
}

/// A request for the type of the change attribute of an object.
pub(crate) struct ChangeType {
    pub(crate) object: FileHandle,
}

impl Compound for ChangeType {
    type Ok = Option<ChangeAttrType>;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.object.as_bytes()).getattr(Bitmap::of(&[Attribute::ChangeAttrType]));
    }

    fn results(&self, r: &mut Results<'_>) -> Result<Self::Ok, Failure> {
        r.done(Operation::Putfh)?;
        Ok(r.next::<Attributes<'_>>(Operation::Getattr)?.change_attr_type)
    }
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_nfs::v4::{CompoundRes, FileType, Fsid, NfsTime, Opaque, Status};
    use millrace_xdr::{Decoder, Encoder};

    use super::*;

    /// Attributes with this change attribute, which is also the size.
    fn attributes(change: u64, kind: Option<ChangeAttrType>) -> Attributes<'static> {
        Attributes {
            file_type: Some(FileType::Regular),
            change: Some(change),
            size: Some(change),
            fileid: Some(1),
            fsid: Some(Fsid::default()),
            time_modify: Some(NfsTime::default()),
            time_metadata: Some(NfsTime::default()),
            change_attr_type: kind,
            ..Attributes::default()
        }
    }

    /// Whether the results of two GETATTRs around a change have the attributes before it.
    fn has_before(
        [first, last]: [Attributes<'static>; 2],
        decode: impl FnOnce(Option<Before>, &mut Results<'_>) -> Result<WccData, Failure>,
    ) -> bool {
        let arena = Arena::new(ArenaConfig::default());
        let mut e = Encoder::new(&arena, 512);
        e.put(&CompoundRes { status: Status::Ok, tag: Opaque(b""), results: 2 });
        for attributes in [&first, &last] {
            e.put(&Operation::Getattr);
            e.put(&Status::Ok);
            e.put(attributes);
        }
        let message = e.finish().unwrap();
        let mut results = Results::new(Decoder::new(&message), true).unwrap();
        let before = before(&mut results).unwrap();
        let wcc = decode(before, &mut results).unwrap();
        assert_eq!(wcc.after.unwrap().size, last.size.unwrap());
        assert!(wcc.before.is_none_or(|before| before.size == first.size.unwrap()));
        wcc.before.is_some()
    }

    #[test]
    fn a_counter_proves_that_nothing_else_has_changed_an_object() {
        use ChangeAttrType::{Monotonic, TimeMetadata, Undefined, VersionCounter, VersionCounterWithoutPnfs};
        // Whether there is a proof for an operation that is no change, and for one that is.
        let proofs = |from: u64, to: u64, kind| {
            [false, true].map(|changed| {
                let around = [attributes(from, kind), attributes(to, kind)];
                has_before(around, |before, r| Before::object(before, changed, r))
            })
        };
        for (kind, from, to, expected) in [
            (Some(VersionCounter), 7, 8, [false, true]),
            (Some(VersionCounterWithoutPnfs), 7, 8, [false, true]),
            (Some(VersionCounter), u64::MAX, 0, [false, true]),
            (Some(VersionCounter), 7, 7, [true, false]),
            (Some(VersionCounter), 7, 9, [false; 2]),
            (Some(VersionCounter), 7, 6, [false; 2]),
            (Some(Monotonic), 7, 8, [false; 2]),
            (Some(TimeMetadata), 7, 8, [false; 2]),
            (Some(TimeMetadata), 7, 7, [false; 2]),
            (Some(Undefined), 7, 8, [false; 2]),
            (None, 7, 8, [false; 2]),
        ] {
            assert_eq!(proofs(from, to, kind), expected, "{kind:?} {from} {to}");
        }
        let unknown = Attributes { change: None, ..attributes(7, Some(VersionCounter)) };
        let around = [unknown, attributes(8, Some(VersionCounter))];
        assert!(!has_before(around, |before, r| Before::object(before, true, r)));
    }

    #[test]
    fn change_info_proves_that_nothing_else_has_changed_a_directory() {
        for (atomic, before, after, expected) in [
            (true, 7, 90, true),
            (false, 7, 90, false),
            (true, 8, 90, false), // A change between GETATTR and the operation.
            (true, 7, 89, false), // A change between the operation and GETATTR.
        ] {
            let around = [7, 90].map(|change| attributes(change, None));
            let info = ChangeInfo { atomic, before, after };
            let decode = |before: Option<Before>, r: &mut Results<'_>| Before::directory(before, info, r);
            assert_eq!(has_before(around, decode), expected, "{info:?}");
        }
    }
}
