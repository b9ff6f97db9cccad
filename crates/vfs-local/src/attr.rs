//! Attributes from `statx(2)`.

use std::os::fd::BorrowedFd;

use millrace_vfs::{Attr, FileKind, FsError, FsResult, SetTime, Time};
use rustix::{
    fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp},
    io::Errno,
};

use super::kept;

/// `STATX_SUBVOL` (Linux 6.10): ID of a btrfs subvolume.
const SUBVOLUME: StatxFlags = StatxFlags::from_bits_retain(0x8000);

/// Whether the kernel returned these attributes.
pub(super) fn has(st: &Statx, flags: StatxFlags) -> bool {
    StatxFlags::from_bits_retain(st.stx_mask).contains(flags)
}

/// Whether two objects are on the same device. Each btrfs subvolume is a device.
pub(super) fn same_device(a: &Statx, b: &Statx) -> bool {
    (a.stx_dev_major, a.stx_dev_minor) == (b.stx_dev_major, b.stx_dev_minor)
}

/// Whether two objects are the same. Inode numbers are unique per device.
pub(super) fn same_object(a: &Statx, b: &Statx) -> bool {
    a.stx_ino == b.stx_ino && same_device(a, b)
}

/// Identifies the device of an object that is not on the device of the export's root: by the subvolume ID,
/// which is persistent, or else by the device number, which may change at the next mount.
pub(super) fn device_number(st: &Statx) -> u64 {
    if has(st, SUBVOLUME) {
        return st.stx_subvol;
    }
    u64::from(st.stx_dev_major) << 32 | u64::from(st.stx_dev_minor)
}

/// Attributes of an open object (also one opened with `O_PATH`).
pub(super) fn stat(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID | SUBVOLUME;
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, want)
}

/// Like [`stat`], but [`FsError::Stale`] for an object without links that is not kept.
pub(super) fn live_stat(fd: BorrowedFd<'_>) -> FsResult<Statx> {
    let st = stat(fd)?;
    if st.stx_nlink == 0 && !kept::contains(&st) { Err(FsError::Stale) } else { Ok(st) }
}

/// Whether the file system has extended attributes of the namespace `user`. `root` is open for reading.
pub(super) fn has_xattrs(root: BorrowedFd<'_>) -> bool {
    let found = rustix::fs::fgetxattr(root, c"user.millrace.probe", &mut [0u8; 0]);
    !matches!(found, Err(Errno::OPNOTSUPP | Errno::NOSYS))
}

/// Type of an object.
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

/// Permission, set-ID and sticky bits.
pub(super) fn mode(st: &Statx) -> u32 {
    u32::from(st.stx_mode) & 0o7777
}

/// Converts attributes.
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
        change: time(st.stx_ctime).change(),
    })
}

/// Converts a time for `utimensat(2)`.
pub(super) fn timespec(set: SetTime) -> rustix::fs::Timespec {
    let (tv_sec, tv_nsec) = match set {
        SetTime::Keep => (0, rustix::fs::UTIME_OMIT),
        SetTime::Now => (0, rustix::fs::UTIME_NOW),
        SetTime::To(t) => (t.seconds, t.nanos.into()),
    };
    rustix::fs::Timespec { tv_sec, tv_nsec }
}
