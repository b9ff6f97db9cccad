//! Conversion of attributes, times and device numbers between NFS and FUSE.

use millrace_client::ops::{self, FileType, NfsTime, SetTime, SpecData};
use millrace_fuse_session::{
    protocol::{Attributes, SetTime as NewTime, Time},
    settings::BLOCK,
};
use rustix::fs::FileType as Kind;

fn time(t: NfsTime) -> Time {
    Time { seconds: t.seconds, nanoseconds: t.nanoseconds.min(999_999_999) }
}

pub(crate) fn set_time(t: Option<NewTime>) -> SetTime {
    match t {
        None => SetTime::DontChange,
        Some(NewTime::Now) => SetTime::ServerTime,
        Some(NewTime::At(Time { seconds, nanoseconds })) => {
            SetTime::ClientTime(NfsTime { seconds, nanoseconds })
        }
    }
}

/// The type of a file in a mode.
pub(crate) fn mode(t: FileType) -> u32 {
    let kind = match t {
        FileType::Regular => Kind::RegularFile,
        FileType::Directory => Kind::Directory,
        FileType::Block => Kind::BlockDevice,
        FileType::Character => Kind::CharacterDevice,
        FileType::Symlink => Kind::Symlink,
        FileType::Socket => Kind::Socket,
        FileType::Fifo => Kind::Fifo,
    };
    kind.as_raw_mode()
}

/// Converts the attributes of the inode `inode`.
pub(crate) fn attributes(inode: u64, a: &ops::Attributes) -> Attributes {
    Attributes {
        inode,
        size: a.size,
        blocks: a.used.div_ceil(512),
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        mode: mode(a.file_type) | (a.mode & 0o7777),
        links: a.nlink,
        uid: a.uid,
        gid: a.gid,
        device: device(a.rdev),
        block_size: BLOCK,
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
