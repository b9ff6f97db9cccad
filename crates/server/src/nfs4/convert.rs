//! Conversion between values of the protocol and of file systems.

use millrace_nfs::v4::{ChangeInfo, FileType, NfsTime, SpecData, StableHow, Status};
use millrace_vfs::{FileKind, FsError, Stability, Time, Wcc};

/// Converts an error to its status.
pub(super) fn status(e: FsError) -> Status {
    match e {
        FsError::Perm => Status::Perm,
        FsError::NoEnt => Status::NoEnt,
        FsError::Io => Status::Io,
        FsError::NxIo | FsError::NoDev => Status::NxIo,
        FsError::Access => Status::Access,
        FsError::Exist => Status::Exist,
        FsError::XDev => Status::XDev,
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
        FsError::BadCookie => Status::BadCookie,
        FsError::NotSupp => Status::NotSupp,
        FsError::TooSmall => Status::TooSmall,
        // NotSync does not occur: no operation sets a guard.
        FsError::ServerFault | FsError::NotSync => Status::ServerFault,
        FsError::BadType => Status::BadType,
        FsError::NoXattr => Status::NoXattr,
        FsError::XattrTooBig => Status::Xattr2Big,
        FsError::Jukebox => Status::Delay,
    }
}

pub(super) fn time(t: Time) -> NfsTime {
    NfsTime { seconds: t.seconds, nanoseconds: t.nanos }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::Regular,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Block => FileType::Block,
        FileKind::Character => FileType::Character,
        FileKind::Socket => FileType::Socket,
        FileKind::Fifo => FileType::Fifo,
    }
}

pub(super) fn device(rdev: (u32, u32)) -> SpecData {
    SpecData { major: rdev.0, minor: rdev.1 }
}

/// The change of a directory.
pub(super) fn change_info(wcc: &Wcc) -> ChangeInfo {
    let before = wcc.before.map(|b| b.change);
    let after = wcc.after.map(|a| a.change);
    ChangeInfo {
        atomic: before.is_some() && after.is_some(),
        before: before.unwrap_or_default(),
        after: after.unwrap_or_default(),
    }
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
