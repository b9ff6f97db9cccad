//! FSSTAT, FSINFO and PATHCONF: attributes of the file system in NFSv4.

use millrace_nfs::{
    v3::{self, FileHandle, NfsTime, properties},
    v4::{Attribute, Attributes, Bitmap, Operation},
};

use super::attributes::{fattr, requested};
use crate::nfs4::compound::{Compound, Failure, Operations, Results};

fn put(ops: &mut Operations<'_>, object: FileHandle, attributes: &[Attribute]) {
    let requested = requested(ops.proof).union(Bitmap::of(attributes));
    ops.putfh(object.as_bytes()).getattr(requested);
}

fn get<'a>(r: &mut Results<'a>) -> Result<Attributes<'a>, Failure> {
    r.done(Operation::Putfh)?;
    r.next(Operation::Getattr)
}

impl Compound for v3::FsstatArgs {
    type Ok = v3::FsstatOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        use Attribute as A;
        let files = [A::FilesAvail, A::FilesFree, A::FilesTotal];
        let space = [A::SpaceAvail, A::SpaceFree, A::SpaceTotal];
        put(ops, self.root, &[files, space].concat());
    }

    fn results(&self, r: &mut Results<'_>) -> Result<v3::FsstatOk, Failure> {
        let a = get(r)?;
        Ok(v3::FsstatOk {
            attributes: Some(fattr(&a)?),
            total_bytes: a.space_total.unwrap_or_default(),
            free_bytes: a.space_free.unwrap_or_default(),
            available_bytes: a.space_avail.unwrap_or_default(),
            total_files: a.files_total.unwrap_or_default(),
            free_files: a.files_free.unwrap_or_default(),
            available_files: a.files_avail.unwrap_or_default(),
            invariant_seconds: 0,
        })
    }
}

/// Preferred size of a page of a directory in bytes, which NFSv4 servers do not report.
const READDIR: u32 = 32 << 10;

/// The attributes of the results of FSINFO.
const FSINFO: [Attribute; 8] = {
    use Attribute as A;
    [
        A::Maxread,
        A::Maxwrite,
        A::Maxfilesize,
        A::TimeDelta,
        A::LinkSupport,
        A::SymlinkSupport,
        A::Homogeneous,
        A::Cansettime,
    ]
};

/// What a client asks about the file system of an export when it mounts it.
pub(crate) struct GetServerInfo {
    /// The root of the export.
    pub(crate) root: FileHandle,
}

/// The result of [`GetServerInfo`].
pub(crate) struct ServerInfo {
    pub(crate) fsinfo: v3::FsinfoOk,
    /// Whether OPEN with EXCLUSIVE4_1 can set the mode (`suppattr_exclcreat`, RFC 8881 section 5.8.1.14); false if the server
    /// omits it.
    pub(crate) exclusive_mode: bool,
    /// Whether files have extended attributes (`xattr_support`, RFC 8276 section 8.2.1).
    pub(crate) xattrs: bool,
}

impl Compound for GetServerInfo {
    type Ok = ServerInfo;

    fn operations(&self, ops: &mut Operations<'_>) {
        let more = [Attribute::SuppattrExclcreat, Attribute::XattrSupport];
        put(ops, self.root, &[&FSINFO[..], &more].concat());
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ServerInfo, Failure> {
        let a = get(r)?;
        let exclusive_mode = a.suppattr_exclcreat.is_some_and(|set| set.contains(Attribute::Mode));
        let xattrs = a.xattr_support.unwrap_or(false);
        Ok(ServerInfo { fsinfo: fsinfo(&a)?, exclusive_mode, xattrs })
    }
}

impl Compound for v3::FsinfoArgs {
    type Ok = v3::FsinfoOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        put(ops, self.root, &FSINFO);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<v3::FsinfoOk, Failure> {
        fsinfo(&get(r)?)
    }
}

fn fsinfo(a: &Attributes<'_>) -> Result<v3::FsinfoOk, Failure> {
    let size = |bytes: Option<u64>| bytes.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
    let (read, write) = (size(a.maxread), size(a.maxwrite));
    let delta = a.time_delta.unwrap_or_default();
    let flag = |value: Option<bool>, bit| if value.unwrap_or(true) { bit } else { 0 };
    Ok(v3::FsinfoOk {
        attributes: Some(fattr(a)?),
        read_max: read,
        read_preferred: read,
        read_multiple: 1,
        write_max: write,
        write_preferred: write,
        write_multiple: 1,
        readdir_preferred: READDIR,
        max_file_size: a.maxfilesize.unwrap_or(i64::MAX as u64),
        time_delta: NfsTime { seconds: delta.seconds, nanoseconds: delta.nanoseconds },
        properties: flag(a.link_support, properties::LINK)
            | flag(a.symlink_support, properties::SYMLINK)
            | flag(a.homogeneous, properties::HOMOGENEOUS)
            | flag(a.cansettime, properties::CAN_SET_TIME),
    })
}

impl Compound for v3::PathconfArgs {
    type Ok = v3::PathconfOk;

    fn operations(&self, ops: &mut Operations<'_>) {
        use Attribute as A;
        let limits = [A::Maxlink, A::Maxname, A::NoTrunc];
        let names = [A::ChownRestricted, A::CaseInsensitive, A::CasePreserving];
        put(ops, self.object, &[limits, names].concat());
    }

    fn results(&self, r: &mut Results<'_>) -> Result<v3::PathconfOk, Failure> {
        let a = get(r)?;
        Ok(v3::PathconfOk {
            attributes: Some(fattr(&a)?),
            link_max: a.maxlink.unwrap_or(1),
            name_max: a.maxname.unwrap_or(255),
            no_trunc: a.no_trunc.unwrap_or(true),
            chown_restricted: a.chown_restricted.unwrap_or(true),
            case_insensitive: a.case_insensitive.unwrap_or(false),
            case_preserving: a.case_preserving.unwrap_or(true),
        })
    }
}
