//! Conversion of attributes, times, device numbers and errors between NFS and FUSE.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, INodeNo, TimeOrNow};
use millrace_nfs::v3::{Fattr, FileType, NfsTime, SetTime, SpecData};
use rustix::io::Errno;

/// Block size reported by statfs, in bytes.
pub(crate) const BLOCK: u32 = 4096;

/// Converts an errno.
pub(crate) fn number(e: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(e.raw_os_error())
}

fn time(t: NfsTime) -> SystemTime {
    UNIX_EPOCH + Duration::new(t.seconds.into(), t.nanoseconds.min(999_999_999))
}

/// NFSv3 times range from 1970 to 2106; others are clamped, as in Linux.
pub(crate) fn set_time(t: Option<TimeOrNow>) -> SetTime {
    match t {
        None => SetTime::DontChange,
        Some(TimeOrNow::Now) => SetTime::ServerTime,
        Some(TimeOrNow::SpecificTime(t)) => {
            let d = t.duration_since(UNIX_EPOCH).unwrap_or_default();
            let seconds = u32::try_from(d.as_secs()).unwrap_or(u32::MAX);
            SetTime::ClientTime(NfsTime { seconds, nanoseconds: d.subsec_nanos() })
        }
    }
}

/// Converts a file type.
pub(crate) fn kind(t: FileType) -> fuser::FileType {
    match t {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Block => fuser::FileType::BlockDevice,
        FileType::Character => fuser::FileType::CharDevice,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Socket => fuser::FileType::Socket,
        FileType::Fifo => fuser::FileType::NamedPipe,
    }
}

/// Converts the attributes of the inode `ino`.
pub(crate) fn attr(ino: u64, a: &Fattr) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: a.size,
        blocks: a.used.div_ceil(512),
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(a.file_type),
        perm: (a.mode & 0o7777) as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: device(a.rdev),
        blksize: BLOCK,
        flags: 0,
    }
}

/// Encodes a device number like the kernel's `new_encode_dev`: 12 bits of major number between the parts of a
/// 20-bit minor number.
fn device(d: SpecData) -> u32 {
    (d.minor & 0xff) | ((d.major & 0xfff) << 8) | ((d.minor & 0xfff00) << 12)
}

/// Decodes a device number of the kernel.
pub(crate) fn spec(dev: u32) -> SpecData {
    SpecData { major: (dev >> 8) & 0xfff, minor: (dev & 0xff) | ((dev >> 12) & 0xfff00) }
}

/// Attributes for a negative entry.
pub(crate) fn absent() -> FileAttr {
    let nothing = Fattr {
        file_type: FileType::Regular,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        size: 0,
        used: 0,
        rdev: SpecData::default(),
        fsid: 0,
        fileid: 0,
        atime: NfsTime::default(),
        mtime: NfsTime::default(),
        ctime: NfsTime::default(),
    };
    attr(0, &nothing)
}
