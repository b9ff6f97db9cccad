//! FSSTAT, FSINFO and PATHCONF: attributes of the file system in NFSv4.

use millrace_nfs::v4::{Attribute, Attributes, Bitmap, Operation};

use super::attributes::time;
use crate::{
    ops::{self, FileHandle},
    v4::compound::{Compound, Failure, Operations, Results},
};

fn put(ops: &mut Operations<'_>, object: FileHandle, attributes: &[Attribute]) {
    ops.putfh(object.as_bytes()).getattr(Bitmap::of(attributes));
}

fn get<'a>(r: &mut Results<'a>) -> Result<Attributes<'a>, Failure> {
    r.done(Operation::Putfh)?;
    r.next(Operation::Getattr)
}

impl Compound for ops::Fsstat {
    type Ok = ops::FsStat;

    fn operations(&self, ops: &mut Operations<'_>) {
        use Attribute as A;
        let files = [A::FilesAvail, A::FilesFree, A::FilesTotal];
        let space = [A::SpaceAvail, A::SpaceFree, A::SpaceTotal];
        put(ops, self.root, &[files, space].concat());
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::FsStat, Failure> {
        let a = get(r)?;
        Ok(ops::FsStat {
            total_bytes: a.space_total.unwrap_or_default(),
            free_bytes: a.space_free.unwrap_or_default(),
            available_bytes: a.space_avail.unwrap_or_default(),
            total_files: a.files_total.unwrap_or_default(),
            free_files: a.files_free.unwrap_or_default(),
            available_files: a.files_avail.unwrap_or_default(),
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
    pub(crate) fsinfo: ops::FsInfo,
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
        Ok(ServerInfo { fsinfo: fsinfo(&a), exclusive_mode, xattrs })
    }
}

impl Compound for ops::Fsinfo {
    type Ok = ops::FsInfo;

    fn operations(&self, ops: &mut Operations<'_>) {
        put(ops, self.root, &FSINFO);
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::FsInfo, Failure> {
        Ok(fsinfo(&get(r)?))
    }
}

fn fsinfo(a: &Attributes<'_>) -> ops::FsInfo {
    let size = |bytes: Option<u64>| bytes.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
    let (read, write) = (size(a.maxread), size(a.maxwrite));
    ops::FsInfo {
        read_max: read,
        read_preferred: read,
        write_max: write,
        write_preferred: write,
        readdir_preferred: READDIR,
        max_file_size: a.maxfilesize.unwrap_or(i64::MAX as u64),
        time_delta: time(a.time_delta.unwrap_or_default()),
        hard_links: a.link_support.unwrap_or(true),
        symlinks: a.symlink_support.unwrap_or(true),
        homogeneous: a.homogeneous.unwrap_or(true),
        can_set_time: a.cansettime.unwrap_or(true),
    }
}

impl Compound for ops::Pathconf {
    type Ok = ops::PathConf;

    fn operations(&self, ops: &mut Operations<'_>) {
        use Attribute as A;
        let limits = [A::Maxlink, A::Maxname, A::NoTrunc];
        let names = [A::ChownRestricted, A::CaseInsensitive, A::CasePreserving];
        put(ops, self.object, &[limits, names].concat());
    }

    fn results(&self, r: &mut Results<'_>) -> Result<ops::PathConf, Failure> {
        let a = get(r)?;
        Ok(ops::PathConf {
            link_max: a.maxlink.unwrap_or(1),
            name_max: a.maxname.unwrap_or(255),
            no_trunc: a.no_trunc.unwrap_or(true),
            chown_restricted: a.chown_restricted.unwrap_or(true),
            case_insensitive: a.case_insensitive.unwrap_or(false),
            case_preserving: a.case_preserving.unwrap_or(true),
        })
    }
}
