//! The attributes of objects.

use millrace_nfs::v4::{self, Attribute, Attributes, Bitmap, Operation, Owner, Status};
use millrace_user_database::Kind;

use crate::{
    ops::{self, FileHandle, SetTime},
    v4::{
        ChangeProof,
        compound::{Compound, Failure, Operations, Results},
    },
};

/// The attributes of [`ops::Attributes`], without the change attribute.
const ATTRIBUTES: Bitmap = Bitmap::of(&[
    Attribute::FileType,
    Attribute::Size,
    Attribute::Fsid,
    Attribute::Fileid,
    Attribute::Mode,
    Attribute::Numlinks,
    Attribute::Owner,
    Attribute::OwnerGroup,
    Attribute::Rawdev,
    Attribute::SpaceUsed,
    Attribute::TimeAccess,
    Attribute::TimeMetadata,
    Attribute::TimeModify,
]);

/// The attributes to request for [`ops::Attributes`], with the change attribute if it proves something.
pub(super) const fn requested(proof: ChangeProof) -> Bitmap {
    match proof {
        ChangeProof::Nothing => ATTRIBUTES,
        _ => ATTRIBUTES.with(Attribute::Change).with(Attribute::ChangeAttrType),
    }
}

impl Operations<'_> {
    /// Appends GETATTR of the attributes of [`ops::Attributes`].
    pub(super) fn attributes(&mut self) -> &mut Self {
        self.getattr(requested(self.proof))
    }
}

/// The change attribute, if it was requested and proves which changes are the only ones of an object of this type.
pub(super) fn change_number(a: &Attributes<'_>, file_type: ops::FileType) -> Option<u64> {
    let proves = match ChangeProof::of(a.change_attr_type) {
        ChangeProof::OfObjects => true,
        ChangeProof::OfNames => file_type == ops::FileType::Directory,
        ChangeProof::Nothing => false,
    };
    a.change.filter(|_| proves)
}

pub(super) fn time(t: v4::NfsTime) -> ops::NfsTime {
    ops::NfsTime { seconds: t.seconds, nanoseconds: t.nanoseconds }
}

fn file_type(t: v4::FileType) -> ops::FileType {
    match t {
        v4::FileType::Regular | v4::FileType::NamedAttribute => ops::FileType::Regular,
        v4::FileType::Directory | v4::FileType::AttributeDirectory => ops::FileType::Directory,
        v4::FileType::Block => ops::FileType::Block,
        v4::FileType::Character => ops::FileType::Character,
        v4::FileType::Symlink => ops::FileType::Symlink,
        v4::FileType::Socket => ops::FileType::Socket,
        v4::FileType::Fifo => ops::FileType::Fifo,
    }
}

/// Converts attributes of a result of `r`. Those that servers need not support have defaults.
///
/// # Errors
/// A mandatory attribute is missing.
pub(super) fn attributes(a: &Attributes<'_>, r: &mut Results<'_>) -> Result<ops::Attributes, Failure> {
    let missing = || Failure::Invalid("attributes without type, size, fileid or fsid".into());
    let (Some(kind), Some(size), Some(fileid), Some(fsid)) = (a.file_type, a.size, a.fileid, a.fsid) else {
        return Err(missing());
    };
    let mtime = time(a.time_modify.unwrap_or_default());
    let (rdev, file_type) = (a.rawdev.unwrap_or_default(), file_type(kind));
    Ok(ops::Attributes {
        file_type,
        // The permission bits have the same values in both versions (RFC 8881 section 6.2.4).
        mode: a.mode.unwrap_or(0o777) & 0o7777,
        nlink: a.numlinks.unwrap_or(1),
        uid: r.owner(Kind::User, a.owner),
        gid: r.owner(Kind::Group, a.owner_group),
        size,
        used: a.space_used.unwrap_or(size),
        rdev: ops::SpecData { major: rdev.major, minor: rdev.minor },
        // Linux folds the two halves in the same way.
        fsid: fsid.major ^ fsid.minor,
        fileid,
        atime: a.time_access.map_or(mtime, time),
        mtime,
        ctime: a.time_metadata.map_or(mtime, time),
        change: change_number(a, file_type),
    })
}

/// Converts a handle.
///
/// # Errors
/// It is longer than 128 bytes (RFC 8881 section 3.2, NFS4_FHSIZE).
pub(super) fn handle(handle: &[u8]) -> Result<FileHandle, Failure> {
    FileHandle::new(handle).ok_or_else(|| {
        Failure::Invalid(format!("a file handle of {} bytes; at most 128 are allowed", handle.len()))
    })
}

/// Converts the attributes to set.
pub(super) fn settable(set: &ops::SetAttributes) -> Attributes<'static> {
    let time = |t| match t {
        SetTime::DontChange => None,
        SetTime::ServerTime => Some(v4::SetTime::ServerTime),
        SetTime::ClientTime(t) => Some(v4::SetTime::ClientTime(time4(t))),
    };
    Attributes {
        size: set.size,
        mode: set.mode.map(|m| m & 0o7777),
        owner: set.uid.map(Owner::Id),
        owner_group: set.gid.map(Owner::Id),
        time_access_set: time(set.atime),
        time_modify_set: time(set.mtime),
        ..Attributes::default()
    }
}

pub(super) fn time4(t: ops::NfsTime) -> v4::NfsTime {
    v4::NfsTime { seconds: t.seconds, nanoseconds: t.nanoseconds }
}

/// Decodes the attributes of an object.
pub(super) fn get(r: &mut Results<'_>) -> Result<ops::Attributes, Failure> {
    let a = r.next(Operation::Getattr)?;
    attributes(&a, r)
}

/// Decodes the attributes after an operation, which has succeeded even if the attributes are missing.
pub(super) fn after(r: &mut Results<'_>) -> Result<Option<ops::Attributes>, Failure> {
    let a = r.optional::<Attributes<'_>>(Operation::Getattr)?;
    a.map(|a| attributes(&a, r)).transpose()
}

impl Compound for ops::Getattr {
    type Ok = ops::Attributes;

    fn operations(&self, ops: &mut Operations<'_>) {
        ops.putfh(self.object.as_bytes()).attributes();
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::Attributes, Failure> {
        r.done(Operation::Putfh)?;
        get(r)
    }
}

impl Compound for ops::Access {
    type Ok = ops::AccessOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        // The rights have the same values in both versions.
        ops.putfh(self.object.as_bytes()).put(Operation::Access, &v4::AccessArgs { access: self.access });
        ops.attributes();
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::AccessOk, Failure> {
        r.done(Operation::Putfh)?;
        let ok: v4::AccessOk = r.next(Operation::Access)?;
        Ok(ops::AccessOk { access: ok.access, attributes: after(r)? })
    }
}

/// Maps the failure of a VERIFY or NVERIFY in front of an operation to that of the operation.
pub(super) fn verified(result: Result<(), Failure>, otherwise: Status) -> Result<(), Failure> {
    match result {
        Err(Failure::Status(operation, Status::Same | Status::NotSame)) => {
            Err(Failure::Status(operation, otherwise))
        }
        other => other,
    }
}
