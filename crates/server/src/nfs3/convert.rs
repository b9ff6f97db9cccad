//! Conversion between values of the protocol and of file systems.

use millrace_nfs::v3::{
    CreateHow, Fattr, FileType, NfsTime, Sattr, SetTime, SpecData, StableHow, Status, WccAttr, WccData,
};
use millrace_vfs::{Attr, FileKind, FsError, SetAttr, Stability, Time, Wcc};

/// Permission, set-id and sticky bits.
const MODE_BITS: u32 = 0o7777;
const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// Converts an error to its status.
pub(super) fn status(e: FsError) -> Status {
    match e {
        FsError::Perm => Status::Perm,
        FsError::NoEnt => Status::NoEnt,
        FsError::Io => Status::Io,
        FsError::NxIo => Status::NxIo,
        FsError::Access => Status::Access,
        FsError::Exist => Status::Exist,
        FsError::XDev => Status::XDev,
        FsError::NoDev => Status::NoDev,
        FsError::NotDir => Status::NotDir,
        FsError::IsDir => Status::IsDir,
        FsError::Inval => Status::Inval,
        FsError::FBig => Status::FBig,
        FsError::NoSpc => Status::NoSpc,
        FsError::RoFs => Status::RoFs,
        FsError::MLink => Status::MLink,
        FsError::NameTooLong => Status::NameTooLong,
        FsError::NotEmpty => Status::NotEmpty,
        FsError::DQuot => Status::DQuot,
        FsError::Stale => Status::Stale,
        FsError::BadHandle => Status::BadHandle,
        FsError::NotSync => Status::NotSync,
        FsError::BadCookie => Status::BadCookie,
        FsError::NotSupp => Status::NotSupp,
        FsError::TooSmall => Status::TooSmall,
        // No procedure concerns extended attributes.
        FsError::ServerFault | FsError::NoXattr | FsError::XattrTooBig => Status::ServerFault,
        FsError::BadType => Status::BadType,
        FsError::Jukebox => Status::Jukebox,
    }
}

/// Converts a time; times outside 1970 to 2106 become the nearest representable time.
pub(super) fn nfs_time(t: Time) -> NfsTime {
    match u32::try_from(t.seconds) {
        Ok(seconds) => NfsTime { seconds: seconds.into(), nanoseconds: t.nanos },
        Err(_) if t.seconds < 0 => NfsTime::default(),
        Err(_) => NfsTime { seconds: u32::MAX.into(), nanoseconds: t.nanos },
    }
}

/// Converts a client's time; its nanoseconds must be less than a second.
pub(super) fn time(t: NfsTime) -> Result<Time, FsError> {
    if t.nanoseconds >= NANOS_PER_SECOND {
        return Err(FsError::Inval);
    }
    Ok(Time { seconds: t.seconds, nanos: t.nanoseconds })
}

fn file_type(k: FileKind) -> FileType {
    match k {
        FileKind::Regular => FileType::Regular,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Block => FileType::Block,
        FileKind::Character => FileType::Character,
        FileKind::Socket => FileType::Socket,
        FileKind::Fifo => FileType::Fifo,
    }
}

pub(super) fn fattr(a: &Attr) -> Fattr {
    Fattr {
        file_type: file_type(a.kind),
        mode: a.mode & MODE_BITS,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        used: a.used,
        rdev: SpecData { major: a.rdev.0, minor: a.rdev.1 },
        fsid: a.fsid,
        fileid: a.fileid,
        atime: nfs_time(a.atime),
        mtime: nfs_time(a.mtime),
        ctime: nfs_time(a.ctime),
    }
}

pub(super) fn wcc(w: &Wcc) -> WccData {
    WccData {
        before: w.before.map(|b| WccAttr {
            size: b.size,
            mtime: nfs_time(b.mtime),
            ctime: nfs_time(b.ctime),
        }),
        after: w.after.as_ref().map(fattr),
    }
}

fn set_time(t: SetTime) -> Result<millrace_vfs::SetTime, FsError> {
    Ok(match t {
        SetTime::DontChange => millrace_vfs::SetTime::Keep,
        SetTime::ServerTime => millrace_vfs::SetTime::Now,
        SetTime::ClientTime(t) => millrace_vfs::SetTime::To(time(t)?),
    })
}

/// Converts attributes to set; their times must be valid.
pub(super) fn set_attr(s: &Sattr) -> Result<SetAttr, FsError> {
    Ok(SetAttr {
        mode: s.mode.map(|m| m & MODE_BITS),
        umask: 0,
        uid: s.uid,
        gid: s.gid,
        size: s.size,
        atime: set_time(s.atime)?,
        mtime: set_time(s.mtime)?,
    })
}

pub(super) fn create_how(how: &CreateHow) -> Result<millrace_vfs::CreateHow, FsError> {
    Ok(match how {
        CreateHow::Unchecked(s) => millrace_vfs::CreateHow::Unchecked(set_attr(s)?),
        CreateHow::Guarded(s) => millrace_vfs::CreateHow::Guarded(set_attr(s)?),
        CreateHow::Exclusive(v) => millrace_vfs::CreateHow::Exclusive(*v, SetAttr::default()),
    })
}

pub(super) fn stability(s: StableHow) -> Stability {
    match s {
        StableHow::Unstable => Stability::Unstable,
        StableHow::DataSync => Stability::DataSync,
        StableHow::FileSync => Stability::FileSync,
    }
}

pub(super) fn stable_how(s: Stability) -> StableHow {
    match s {
        Stability::Unstable => StableHow::Unstable,
        Stability::DataSync => StableHow::DataSync,
        Stability::FileSync => StableHow::FileSync,
    }
}
