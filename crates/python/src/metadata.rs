//! Attributes of objects as a tuple of `millrace_nfs.Stat`.

use millrace_client::ops::{Attributes, FileHandle, FileType, NfsTime};

/// The fields of `millrace_nfs.Stat`: type, size, mode, uid, gid, nlink, ino, atime, mtime and ctime in nanoseconds since
/// 1970, and the file handle.
pub(crate) type Stat = (&'static str, u64, u32, u32, u32, u32, u64, i128, i128, i128, Vec<u8>);

pub(crate) fn stat(handle: Option<FileHandle>, a: &Attributes) -> Stat {
    let time = |t: NfsTime| i128::from(t.seconds) * 1_000_000_000 + i128::from(t.nanoseconds);
    let kind = match a.file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        _ => "other",
    };
    let handle = handle.map_or_else(Vec::new, |h| h.as_bytes().to_vec());
    let times = (time(a.atime), time(a.mtime), time(a.ctime));
    (kind, a.size, a.mode, a.uid, a.gid, a.nlink, a.fileid, times.0, times.1, times.2, handle)
}
