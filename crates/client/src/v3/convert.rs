//! Types of NFSv3 from and to those of the procedures.

use millrace_nfs::v3;
use millrace_xdr::{Decode, Decoder, Encoder, XdrError};

use crate::ops::{
    Attributes, CreateHow, FileHandle, FileType, MknodWhat, NameIn, NfsTime, SetAttributes, SetTime,
    SpecData, StableHow, Wcc, WccAttr,
};

/// Encodes a directory and a name in it (`diropargs3`).
pub(super) fn put_name(e: &mut Encoder, at: &NameIn<'_>) {
    e.put_opaque(at.dir.as_bytes());
    e.put_opaque(at.name);
}

pub(super) fn get_handle(d: &mut Decoder<'_>) -> Result<FileHandle, XdrError> {
    let at = d.position();
    let bytes = d.opaque(v3::MAX_HANDLE)?;
    FileHandle::new(bytes).ok_or(XdrError::TooLong { at, len: bytes.len(), max: v3::MAX_HANDLE })
}

/// Decodes an optional value with `get`.
pub(super) fn optional<'a, T>(
    d: &mut Decoder<'a>,
    get: impl FnOnce(&mut Decoder<'a>) -> Result<T, XdrError>,
) -> Result<Option<T>, XdrError> {
    if d.bool()? { get(d).map(Some) } else { Ok(None) }
}

/// Decodes an optional value, and converts it.
fn optional_as<'a, W: Decode<'a>, T>(
    d: &mut Decoder<'a>,
    convert: impl FnOnce(W) -> T,
) -> Result<Option<T>, XdrError> {
    optional(d, |d| d.get().map(convert))
}

pub(super) fn get_attributes(d: &mut Decoder<'_>) -> Result<Option<Attributes>, XdrError> {
    optional_as(d, attributes)
}

pub(super) fn get_wcc(d: &mut Decoder<'_>) -> Result<Wcc, XdrError> {
    let before = optional_as(d, |a: v3::WccAttr| WccAttr {
        size: a.size,
        mtime: time(a.mtime),
        ctime: time(a.ctime),
    })?;
    Ok(Wcc { before, after: get_attributes(d)?, change: None })
}

pub(super) fn time(t: v3::NfsTime) -> NfsTime {
    NfsTime { seconds: t.seconds, nanoseconds: t.nanoseconds }
}

pub(super) fn time3(t: NfsTime) -> v3::NfsTime {
    v3::NfsTime { seconds: t.seconds, nanoseconds: t.nanoseconds }
}

pub(super) fn attributes(a: v3::Fattr) -> Attributes {
    Attributes {
        file_type: file_type(a.file_type),
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        used: a.used,
        rdev: SpecData { major: a.rdev.major, minor: a.rdev.minor },
        fsid: a.fsid,
        fileid: a.fileid,
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        change: None,
    }
}

fn file_type(t: v3::FileType) -> FileType {
    match t {
        v3::FileType::Regular => FileType::Regular,
        v3::FileType::Directory => FileType::Directory,
        v3::FileType::Block => FileType::Block,
        v3::FileType::Character => FileType::Character,
        v3::FileType::Symlink => FileType::Symlink,
        v3::FileType::Socket => FileType::Socket,
        v3::FileType::Fifo => FileType::Fifo,
    }
}

pub(super) fn settable(set: &SetAttributes) -> v3::Sattr {
    let time = |t| match t {
        SetTime::DontChange => v3::SetTime::DontChange,
        SetTime::ServerTime => v3::SetTime::ServerTime,
        SetTime::ClientTime(t) => v3::SetTime::ClientTime(time3(t)),
    };
    let SetAttributes { mode, uid, gid, size, atime, mtime } = *set;
    v3::Sattr { mode, uid, gid, size, atime: time(atime), mtime: time(mtime) }
}

pub(super) fn how(how: &CreateHow) -> v3::CreateHow {
    match how {
        CreateHow::Unchecked(set) => v3::CreateHow::Unchecked(settable(set)),
        CreateHow::Guarded(set) => v3::CreateHow::Guarded(settable(set)),
        CreateHow::Exclusive(verifier) => v3::CreateHow::Exclusive(*verifier),
    }
}

pub(super) fn node(what: &MknodWhat) -> v3::MknodWhat {
    let device = |d: &SpecData| v3::SpecData { major: d.major, minor: d.minor };
    match what {
        MknodWhat::Character(set, d) => v3::MknodWhat::Character(settable(set), device(d)),
        MknodWhat::Block(set, d) => v3::MknodWhat::Block(settable(set), device(d)),
        MknodWhat::Socket(set) => v3::MknodWhat::Socket(settable(set)),
        MknodWhat::Fifo(set) => v3::MknodWhat::Fifo(settable(set)),
    }
}

pub(super) fn stable3(how: StableHow) -> v3::StableHow {
    match how {
        StableHow::Unstable => v3::StableHow::Unstable,
        StableHow::DataSync => v3::StableHow::DataSync,
        StableHow::FileSync => v3::StableHow::FileSync,
    }
}

pub(super) fn stable(how: v3::StableHow) -> StableHow {
    match how {
        v3::StableHow::Unstable => StableHow::Unstable,
        v3::StableHow::DataSync => StableHow::DataSync,
        v3::StableHow::FileSync => StableHow::FileSync,
    }
}
