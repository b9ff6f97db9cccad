//! Attributes of objects: GETATTR, VERIFY, NVERIFY, ACCESS.

use millrace_nfs::v4::{
    AccessArgs, AccessOk, Attribute, Attributes, Bitmap, ChangeAttrType, Fattr, FileType, Fsid, GetattrArgs,
    NfsTime, Opaque, OpenArguments, Owner, Status, access, share_access,
};
use millrace_vfs::{Access, Attr, FsStat};

use super::{
    compound::{Compound, Scope},
    convert,
    object::{File, Object},
    paths::MAX_NAME,
};
use crate::{handle::HandleBytes, owners::Kind};

/// Rights that a read-only export never grants.
const WRITE_RIGHTS: u32 = access::MODIFY | access::EXTEND | access::DELETE;
/// Rights in a directory of the pseudo file system.
const PSEUDO_RIGHTS: u32 = access::READ | access::LOOKUP | access::EXECUTE;
/// The rights that a file system checks.
const ALL_RIGHTS: u32 = PSEUDO_RIGHTS | WRITE_RIGHTS;
/// Rights to extended attributes (RFC 8276 section 8.5), each with the right that it requires.
const XATTR_RIGHTS: [(u32, u32); 3] = [
    (access::XATTR_READ, access::READ),
    (access::XATTR_LIST, access::READ),
    (access::XATTR_WRITE, access::MODIFY),
];
const DEFINED_XATTR_RIGHTS: u32 = access::XATTR_READ | access::XATTR_LIST | access::XATTR_WRITE;
/// Permission, set-id and sticky bits.
const MODE_BITS: u32 = 0o7777;
const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// Attributes of the space of a whole file system.
const SPACE: Bitmap = Bitmap::of(&[
    Attribute::FilesAvail,
    Attribute::FilesFree,
    Attribute::FilesTotal,
    Attribute::SpaceAvail,
    Attribute::SpaceFree,
    Attribute::SpaceTotal,
]);

/// Users and groups.
const OWNERS: Bitmap = Bitmap::of(&[Attribute::Owner, Attribute::OwnerGroup]);

/// The attributes that a client with a write delegation changes.
const HELD: Bitmap = Bitmap::of(&[
    Attribute::Change,
    Attribute::Size,
    Attribute::TimeAccess,
    Attribute::TimeMetadata,
    Attribute::TimeModify,
]);

/// The attributes that the server supports.
const SUPPORTED: Bitmap =
    Attributes::KNOWN.difference(Bitmap::of(&[Attribute::TimeCreate, Attribute::SpaceFreed]));

/// Those of minor version 2 that a client of minor version 1 must not see (RFC 9754).
const OF_MINOR_VERSION_2: Bitmap = Attributes::DELEGATED_TIMES.with(Attribute::OpenArguments);

/// The arguments of OPEN that the server supports (RFC 9754 section 3), of the claims all but CLAIM_DELEGATE_PREV and
/// CLAIM_DELEG_PREV_FH.
const OPEN_ARGUMENTS: OpenArguments = OpenArguments {
    share_access: bits(1 << share_access::READ | 1 << share_access::WRITE | 1 << share_access::BOTH),
    share_deny: bits(0b1111),
    share_access_want: bits(
        1 << (share_access::WANT_ANY_DELEG >> 8)
            | 1 << (share_access::WANT_NO_DELEG >> 8)
            | 1 << (share_access::WANT_CANCEL >> 8)
            | share_access::WANT_DELEG_TIMESTAMPS,
    ),
    claim: bits(0b11_0111),
    create_mode: bits(0b1111),
};

const fn bits(word: u32) -> Bitmap {
    Bitmap::from_words([word, 0, 0])
}

/// The attributes that an exclusive create can set: not the times, in which some file systems store the verifier.
pub(super) const EXCLUSIVE: Bitmap = Bitmap::of(&[
    Attribute::Size,
    Attribute::Mode,
    Attribute::ModeUmask,
    Attribute::Owner,
    Attribute::OwnerGroup,
]);

/// Parameters of the server in attributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameters {
    pub(super) supported: Bitmap,
    pub(super) lease_seconds: u32,
    pub(super) maxread: u32,
    pub(super) maxwrite: u32,
}

impl Parameters {
    /// The attributes that are equal for all objects.
    fn values(&self) -> Attributes<'static> {
        Attributes {
            supported_attrs: Some(self.supported),
            fh_expire_type: Some(0),
            named_attr: Some(false),
            unique_handles: Some(true),
            lease_time: Some(self.lease_seconds),
            rdattr_error: Some(Status::Ok),
            aclsupport: Some(0),
            case_insensitive: Some(false),
            case_preserving: Some(true),
            chown_restricted: Some(true),
            homogeneous: Some(true),
            no_trunc: Some(true),
            maxread: Some(self.maxread.into()),
            maxwrite: Some(self.maxwrite.into()),
            suppattr_exclcreat: Some(EXCLUSIVE),
            open_arguments: Some(OPEN_ARGUMENTS),
            ..Attributes::default()
        }
    }

    /// The attributes of an object of an export, without its handle and the space of the file system.
    fn of_file(&self, file: &File, a: &Attr) -> Attributes<'static> {
        let info = file.export.info();
        let delta = info.time_delta_nanos;
        Attributes {
            file_type: Some(convert::file_type(a.kind)),
            change: Some(a.change),
            size: Some(a.size),
            link_support: Some(info.hard_links),
            symlink_support: Some(info.symlinks),
            fsid: Some(Fsid { major: file.export.id().into(), minor: a.fsid }),
            cansettime: Some(info.writable),
            fileid: Some(a.fileid),
            maxfilesize: Some(info.max_file_size),
            maxlink: Some(info.link_max),
            maxname: Some(info.name_max),
            mode: Some(a.mode & MODE_BITS),
            numlinks: Some(a.nlink),
            owner: Some(Owner::Id(a.uid)),
            owner_group: Some(Owner::Id(a.gid)),
            rawdev: Some(convert::device(a.rdev)),
            space_used: Some(a.used),
            time_access: Some(convert::time(a.atime)),
            time_delta: Some(NfsTime {
                seconds: (delta / NANOS_PER_SECOND).into(),
                nanoseconds: delta % NANOS_PER_SECOND,
            }),
            time_metadata: Some(convert::time(a.ctime)),
            time_modify: Some(convert::time(a.mtime)),
            xattr_support: Some(info.xattrs),
            clone_blksize: Some(info.clone_block),
            mounted_on_fileid: Some(a.fileid),
            change_attr_type: Some(match info.change_counter {
                true => ChangeAttrType::VersionCounter,
                false => ChangeAttrType::TimeMetadata,
            }),
            ..self.values()
        }
    }

    /// The attributes of the pseudo directory with this number, except its handle.
    pub(super) fn of_pseudo(&self, number: u64, subdirectories: usize, change: u64) -> Attributes<'static> {
        let epoch = NfsTime::default();
        Attributes {
            file_type: Some(FileType::Directory),
            change: Some(change),
            size: Some(0),
            link_support: Some(false),
            symlink_support: Some(false),
            fsid: Some(Fsid::default()),
            cansettime: Some(false),
            fileid: Some(number),
            maxfilesize: Some(0),
            maxlink: Some(u32::MAX),
            maxname: Some(MAX_NAME),
            mode: Some(0o555),
            numlinks: Some(u32::try_from(subdirectories).unwrap_or(u32::MAX).saturating_add(2)),
            owner: Some(Owner::Id(0)),
            owner_group: Some(Owner::Id(0)),
            rawdev: Some(convert::device((0, 0))),
            space_used: Some(0),
            time_access: Some(epoch),
            time_delta: Some(NfsTime { seconds: 1, nanoseconds: 0 }),
            time_metadata: Some(epoch),
            time_modify: Some(epoch),
            xattr_support: Some(false),
            clone_blksize: Some(0),
            mounted_on_fileid: Some(number),
            change_attr_type: Some(ChangeAttrType::Undefined),
            ..set_space(self.values(), &FsStat::default())
        }
    }
}

/// Sets the attributes of the space of the file system.
fn set_space<'a>(attributes: Attributes<'a>, stat: &FsStat) -> Attributes<'a> {
    Attributes {
        files_avail: Some(stat.available_files),
        files_free: Some(stat.free_files),
        files_total: Some(stat.total_files),
        space_avail: Some(stat.available_bytes),
        space_free: Some(stat.free_bytes),
        space_total: Some(stat.total_bytes),
        ..attributes
    }
}

/// The names of the owners of an object.
#[derive(Default)]
pub(super) struct OwnerNames([Option<String>; 2]);

impl OwnerNames {
    /// Replaces numbers by the names.
    pub(super) fn set<'n>(&'n self, values: &mut Attributes<'n>) {
        let [owner, group] = &self.0;
        let name = |name: &'n String| Owner::Name(name.as_bytes());
        values.owner = owner.as_ref().map(name).or(values.owner);
        values.owner_group = group.as_ref().map(name).or(values.owner_group);
    }
}

impl Scope<'_> {
    /// The names of the owners in `values`, if they are requested by a caller who gets names instead of numbers.
    pub(super) async fn owner_names(&self, values: &Attributes<'_>, requested: Bitmap) -> OwnerNames {
        let mut names = OwnerNames::default();
        if !self.caller.has_names() || !requested.intersects(OWNERS) {
            return names;
        }
        let owners = [(Kind::User, values.owner), (Kind::Group, values.owner_group)];
        for (name, (kind, owner)) in names.0.iter_mut().zip(owners) {
            if let Some(Owner::Id(id)) = owner {
                *name = self.env.owners.name(kind, id).await;
            }
        }
        names
    }

    /// The attributes that the server supports in the minor version of the COMPOUND.
    pub(super) fn supported(&self) -> Bitmap {
        if self.minor_version > 1 { SUPPORTED } else { SUPPORTED.difference(OF_MINOR_VERSION_2) }
    }

    /// The `requested` attributes of `object`, and others, without its handle. `known`: attributes that were just
    /// read.
    pub(super) async fn attributes(
        &self,
        object: &Object,
        known: Option<Attr>,
        requested: Bitmap,
    ) -> Result<Attributes<'static>, Status> {
        let parameters = self.env.parameters(self.supported());
        let file = match object {
            Object::Pseudo(dir) => {
                let namespace = self.exports.namespace();
                let node = namespace.node(*dir);
                let children = node.children.iter().filter(|child| self.paths().sees(**child)).count();
                return Ok(parameters.of_pseudo(node.number, children, namespace.change()));
            }
            Object::File(file) => file,
        };
        file.caller()?;
        let attr = match known {
            Some(attr) => attr,
            None => file.fs().getattr(&file.handle).await.map_err(convert::status)?,
        };
        let mut values = parameters.of_file(file, &attr);
        if requested.contains(Attribute::MountedOnFileid) && file.is_root() {
            values.mounted_on_fileid = self.paths().covered(&file.export).await.or(values.mounted_on_fileid);
        }
        if requested.intersects(SPACE) {
            let stat = file.fs().stat().await.map_err(convert::status)?;
            values = set_space(values, &stat);
        }
        Ok(values)
    }
}

impl Compound<'_> {
    pub(super) async fn getattr(&mut self, args: GetattrArgs) -> Result<(), Status> {
        let requested = args.requested.intersection(self.scope.supported());
        if requested.intersects(Attributes::WRITE_ONLY) {
            return Err(Status::Inval);
        }
        let object = self.current()?;
        let known = self.held_attributes(object, requested).await?;
        let handle = self.requested_handle(object, requested);
        let mut values: Attributes<'_> = self.scope.attributes(object, known, requested).await?;
        let names = self.scope.owner_names(&values, requested).await;
        names.set(&mut values);
        values.filehandle = handle.as_ref().map(|handle| Opaque(handle));
        values.encode_requested(&mut self.reply, requested);
        Ok(())
    }

    /// The attributes of a file if another client may have newer ones.
    async fn held_attributes(&self, object: &Object, requested: Bitmap) -> Result<Option<Attr>, Status> {
        let env = self.scope.env;
        let Object::File(file) = object else { return Ok(None) };
        if !requested.intersects(HELD) || !env.clients.state.may_delegate() {
            return Ok(None);
        }
        file.caller()?;
        let attr = file.fs().getattr(&file.handle).await.map_err(convert::status)?;
        env.sender.attributes(self.used(file)?, &file.handle, attr).await.map(Some)
    }

    async fn is_same(&self, attributes: &Fattr<'_>) -> Result<bool, Status> {
        let object = self.current()?;
        let known = self.held_attributes(object, attributes.set).await?;
        let handle = self.requested_handle(object, attributes.set);
        let mut current: Attributes<'_> = self.scope.attributes(object, known, attributes.set).await?;
        let names = self.scope.owner_names(&current, attributes.set).await;
        names.set(&mut current);
        current.filehandle = handle.as_ref().map(|handle| Opaque(handle));
        attributes.is_same(&current, self.scope.supported())
    }

    /// The NFS handle of `object` if it is requested: its authentication code takes as long as several attributes.
    fn requested_handle(&self, object: &Object, requested: Bitmap) -> Option<HandleBytes> {
        requested.contains(Attribute::Filehandle).then(|| object.seal(&self.scope.exports))
    }

    pub(super) async fn verify(&self, attributes: &Fattr<'_>) -> Result<(), Status> {
        if self.is_same(attributes).await? { Ok(()) } else { Err(Status::NotSame) }
    }

    pub(super) async fn nverify(&self, attributes: &Fattr<'_>) -> Result<(), Status> {
        if self.is_same(attributes).await? { Err(Status::Same) } else { Ok(()) }
    }

    /// # Errors
    /// INVAL for rights that the minor version does not define, as of the Linux kernel's server.
    pub(super) async fn access(&mut self, args: AccessArgs) -> Result<(), Status> {
        let defined =
            if self.scope.minor_version > 1 { ALL_RIGHTS | DEFINED_XATTR_RIGHTS } else { ALL_RIGHTS };
        if args.access & !defined != 0 {
            return Err(Status::Inval);
        }
        let wanted = args.access & ALL_RIGHTS;
        let (supported, granted) = match self.current()? {
            Object::Pseudo(_) => (wanted, wanted & PSEUDO_RIGHTS),
            Object::File(file) => {
                let has_xattrs = file.export.info().xattrs;
                let xattrs = XATTR_RIGHTS.iter().filter(|(right, _)| has_xattrs && args.access & right != 0);
                let required = xattrs.clone().fold(wanted, |all, (_, required)| all | required);
                let possible = if file.is_read_only()? { required & !WRITE_RIGHTS } else { required };
                let checked = file.fs().access(file.caller()?, &file.handle, Access(possible)).await;
                let granted = checked.map_err(convert::status)?.0.0 & possible;
                let of_xattrs = xattrs.clone().filter(|(_, required)| granted & required != 0);
                let of_xattrs = of_xattrs.fold(0, |all, (right, _)| all | right);
                (xattrs.fold(wanted, |all, (right, _)| all | right), granted & wanted | of_xattrs)
            }
        };
        self.reply.put(&AccessOk { supported, access: granted });
        Ok(())
    }
}
