//! Attributes from `statx(2)`.

use std::os::fd::BorrowedFd;

use rustix::{
    fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp},
    io::Errno,
};

use crate::{Attr, FileKind, FsError, FsResult, SetTime, Time};

/// The attributes of an open object (`O_PATH` is enough).
pub(super) fn stat(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, want)
}

/// As [`stat`], but an object without links is [`FsError::Stale`].
pub(super) fn live_stat(fd: BorrowedFd<'_>) -> FsResult<Statx> {
    let st = stat(fd)?;
    if st.stx_nlink == 0 { Err(FsError::Stale) } else { Ok(st) }
}

/// The kind of an object.
pub(super) fn kind(st: &Statx) -> FsResult<FileKind> {
    Ok(match FileType::from_raw_mode(st.stx_mode.into()) {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::Block,
        FileType::CharacterDevice => FileKind::Character,
        FileType::Socket => FileKind::Socket,
        FileType::Fifo => FileKind::Fifo,
        _ => return Err(FsError::BadType),
    })
}

fn time(t: StatxTimestamp) -> Time {
    Time { seconds: t.tv_sec, nanos: t.tv_nsec }
}

/// The permission, set-id and sticky bits.
pub(super) fn mode(st: &Statx) -> u32 {
    u32::from(st.stx_mode) & 0o7777
}

/// Attributes as the trait gives them.
pub(super) fn attr(st: &Statx, fsid: u64) -> FsResult<Attr> {
    Ok(Attr {
        kind: kind(st)?,
        mode: mode(st),
        nlink: st.stx_nlink,
        uid: st.stx_uid,
        gid: st.stx_gid,
        size: st.stx_size,
        used: st.stx_blocks.saturating_mul(512),
        rdev: (st.stx_rdev_major, st.stx_rdev_minor),
        fsid,
        fileid: st.stx_ino,
        atime: time(st.stx_atime),
        mtime: time(st.stx_mtime),
        ctime: time(st.stx_ctime),
    })
}

/// A time for `utimensat(2)`.
pub(super) fn timespec(set: SetTime) -> rustix::fs::Timespec {
    let (tv_sec, tv_nsec) = match set {
        SetTime::Keep => (0, rustix::fs::UTIME_OMIT),
        SetTime::Now => (0, rustix::fs::UTIME_NOW),
        SetTime::To(t) => (t.seconds, t.nanos.into()),
    };
    rustix::fs::Timespec { tv_sec, tv_nsec }
}
