//! The operations of requests.

use std::ops::Range;

use crate::protocol::{DecodeError, Header, InitRequest, Time, fields::Fields};

/// Opcodes (`enum fuse_opcode`).
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const RENAME: u32 = 12;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const SETXATTR: u32 = 21;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const REMOVEXATTR: u32 = 24;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const GETLK: u32 = 31;
    pub(super) const SETLK: u32 = 32;
    pub(super) const SETLKW: u32 = 33;
    pub(super) const ACCESS: u32 = 34;
    pub(super) const CREATE: u32 = 35;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const IOCTL: u32 = 39;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
    pub(super) const LSEEK: u32 = 46;
    pub(super) const COPY_FILE_RANGE: u32 = 47;
    pub(super) const COPY_FILE_RANGE_64: u32 = 53;
}

/// What a request asks for. Names are without `/` and not empty; handles are those of [`crate::protocol::Opened`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Finds a name in a directory.
    Lookup {
        /// Name of the entry.
        name: &'a [u8],
    },
    /// Lowers the lookup count of a node. It has no reply.
    Forget {
        /// Lookups to subtract.
        lookups: u64,
    },
    /// Lowers the lookup counts of nodes. It has no reply.
    BatchForget(Forgets<'a>),
    /// Returns attributes.
    GetAttributes,
    /// Changes attributes, and returns the new ones.
    SetAttributes(SetAttributes),
    /// Returns the target of a symbolic link.
    ReadLink,
    /// Creates a symbolic link.
    Symlink {
        /// Name of the entry.
        name: &'a [u8],
        /// Target of the link.
        target: &'a [u8],
    },
    /// Creates a file that is not a directory.
    MakeNode {
        /// Name of the entry.
        name: &'a [u8],
        /// Type and permissions, to which the kernel has applied the umask.
        mode: u32,
        /// Device number in the encoding of the kernel (`new_encode_dev`).
        device: u32,
    },
    /// Creates a directory.
    MakeDirectory {
        /// Name of the entry.
        name: &'a [u8],
        /// Permissions, to which the kernel has applied the umask.
        mode: u32,
    },
    /// Removes an entry that is not a directory.
    Unlink {
        /// Name of the entry.
        name: &'a [u8],
    },
    /// Removes a directory.
    RemoveDirectory {
        /// Name of the entry.
        name: &'a [u8],
    },
    /// Renames an entry of a directory.
    Rename {
        /// Name of the entry.
        name: &'a [u8],
        /// Node of the new directory.
        new_directory: u64,
        /// New name.
        new_name: &'a [u8],
        /// Flags of renameat2(2).
        flags: u32,
    },
    /// Creates a link to a file in a directory.
    Link {
        /// Node of the file.
        node: u64,
        /// Name of the new entry.
        name: &'a [u8],
    },
    /// Opens a file.
    Open {
        /// Flags of open(2).
        flags: u32,
    },
    /// Creates and opens a file.
    Create {
        /// Name of the entry.
        name: &'a [u8],
        /// Type and permissions, to which the kernel has applied the umask.
        mode: u32,
        /// Flags of open(2).
        flags: u32,
    },
    /// Reads from a file.
    Read(ReadRequest),
    /// Writes to a file.
    Write(WriteRequest),
    /// A program closes a descriptor of a file.
    Flush {
        /// File handle.
        handle: u64,
        /// Lock owner whose locks end.
        lock_owner: u64,
    },
    /// The last descriptor of an open file is closed.
    Release {
        /// File handle.
        handle: u64,
    },
    /// Makes the data of a file durable.
    Fsync {
        /// File handle.
        handle: u64,
    },
    /// Opens a directory.
    OpenDirectory,
    /// Lists entries of a directory.
    ReadDirectory(ReadDirectory),
    /// Lists entries of a directory with their attributes.
    ReadDirectoryPlus(ReadDirectory),
    /// The last descriptor of an open directory is closed.
    ReleaseDirectory {
        /// File handle.
        handle: u64,
    },
    /// Makes the changes of a directory durable.
    FsyncDirectory,
    /// Finds a lock that conflicts with one.
    GetLock(LockRequest),
    /// Acquires or releases a lock.
    SetLock {
        /// The lock.
        lock: LockRequest,
        /// Wait until no other lock conflicts.
        waits: bool,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// Name of the attribute.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Flags of setxattr(2).
        flags: u32,
    },
    /// Returns the value of an extended attribute.
    GetXattr {
        /// Name of the attribute.
        name: &'a [u8],
        /// Space for the value, in bytes; 0 asks for its size.
        size: u32,
    },
    /// Lists the names of the extended attributes, each with a NUL byte at its end.
    ListXattrs {
        /// Space for the names, in bytes; 0 asks for their size.
        size: u32,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Name of the attribute.
        name: &'a [u8],
    },
    /// Returns the statistics of the file system.
    Statistics,
    /// Checks access rights.
    Access {
        /// Rights as in access(2).
        mask: u32,
    },
    /// Changes the allocated space of a file.
    Fallocate {
        /// The range.
        range: FileRange,
        /// Mode as in fallocate(2).
        mode: u32,
    },
    /// Finds data or a hole.
    Seek {
        /// File handle.
        handle: u64,
        /// Where the search begins, in bytes.
        offset: u64,
        /// Type of the search as in lseek(2).
        whence: u32,
    },
    /// Copies between files.
    CopyFileRange(CopyFileRange),
    /// Device-specific operation.
    Ioctl,
    /// Negotiates the session; the first request.
    Init(InitRequest),
    /// A signal waits for the caller of another request. It has no reply.
    Interrupt {
        /// Number of the other request.
        unique: u64,
    },
    /// The file system was unmounted.
    Destroy,
    /// Any other operation.
    Other,
}

/// New attributes (`fuse_setattr_in`); `None` keeps the present ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Type and permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<SetTime>,
    /// Time of last modification.
    pub mtime: Option<SetTime>,
    /// Handle of the file through which the caller has opened it.
    pub handle: Option<u64>,
}

/// A new time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The present time.
    Now,
    /// A time of the caller.
    At(Time),
}

/// Parameters of a read (`fuse_read_in`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// File handle.
    pub handle: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub size: u32,
    /// Flags of open(2) of the file.
    pub flags: u32,
    /// Lock owner: only if the read bypasses the page cache.
    pub lock_owner: Option<u64>,
}

/// Parameters of a write (`fuse_write_in`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRequest {
    /// File handle.
    pub handle: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Number of bytes. They are in the message at [`Self::DATA`].
    pub size: u32,
    /// Flags of open(2) of the file.
    pub flags: u32,
    /// Lock owner: only if the write bypasses the page cache.
    pub lock_owner: Option<u64>,
    /// The kernel writes pages back (`FUSE_WRITE_CACHE`): the handle may be that of another writer.
    pub is_from_cache: bool,
}

impl WriteRequest {
    /// Offset of the data in the message.
    pub const DATA: usize = Header::SIZE + 40;

    /// Whether a request with this header is a write.
    pub fn follows(header: &Header) -> bool {
        header.opcode == opcode::WRITE
    }
}

/// Parameters of a list of entries (`fuse_read_in`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDirectory {
    /// File handle.
    pub handle: u64,
    /// Offset of the last entry that the caller has; 0 for the start.
    pub offset: u64,
    /// Size of the reply, in bytes.
    pub size: u32,
}

/// A lock (`fuse_lk_in`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// File handle.
    pub handle: u64,
    /// Owner of the lock.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub last: u64,
    /// Type: `F_RDLCK`, `F_WRLCK` or `F_UNLCK` of fcntl(2).
    pub kind: u32,
    /// A lock of flock(2), not of fcntl(2) (`FUSE_LK_FLOCK`).
    pub is_flock: bool,
}

/// A range of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    /// File handle.
    pub handle: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl FileRange {
    /// The bytes; a range beyond the largest offset ends there.
    pub fn bytes(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.length)
    }
}

/// Parameters of a copy (`fuse_copy_file_range_in`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFileRange {
    /// What is copied.
    pub source: FileRange,
    /// Handle of the file that receives the data.
    pub handle: u64,
    /// Offset there, in bytes.
    pub offset: u64,
    /// The reply has 64 bits (FUSE_COPY_FILE_RANGE_64, 7.45): [`crate::protocol::Reply::Copied`], else [`crate::protocol::Reply::Written`].
    pub has_long_reply: bool,
}

/// Nodes with the numbers of lookups to subtract (`fuse_forget_one`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    /// Node and number of lookups.
    fn next(&mut self) -> Option<(u64, u64)> {
        let mut fields = Fields::new(self.0);
        let one = (fields.u64().ok()?, fields.u64().ok()?);
        self.0 = fields.rest();
        Some(one)
    }
}

impl<'a> Operation<'a> {
    /// Decodes the part of a request after its header. Fields that a later version appends are ignored.
    ///
    /// # Errors
    /// [`DecodeError`]: the message ends within a field, or a name is missing.
    pub fn decode(header: &Header, body: &'a [u8]) -> Result<Self, DecodeError> {
        let f = &mut Fields::new(body);
        Ok(match header.opcode {
            opcode::LOOKUP => Self::Lookup { name: f.name()? },
            opcode::FORGET => Self::Forget { lookups: f.u64()? },
            opcode::BATCH_FORGET => Self::BatchForget(forgets(f)?),
            opcode::GETATTR => Self::GetAttributes,
            opcode::SETATTR => Self::SetAttributes(set_attributes(f)?),
            opcode::READLINK => Self::ReadLink,
            opcode::ACCESS => Self::Access { mask: f.u32()? },
            opcode::OPEN => Self::Open { flags: f.u32()? },
            opcode::READ => Self::Read(read(f)?),
            opcode::WRITE => Self::Write(write(f)?),
            opcode::STATFS => Self::Statistics,
            opcode::FSYNC => Self::Fsync { handle: f.u64()? },
            opcode::FLUSH => {
                let handle = f.u64()?;
                f.skip::<8>()?;
                Self::Flush { handle, lock_owner: f.u64()? }
            }
            opcode::RELEASE => Self::Release { handle: f.u64()? },
            opcode::OPENDIR => Self::OpenDirectory,
            opcode::READDIR => Self::ReadDirectory(read_directory(f)?),
            opcode::READDIRPLUS => Self::ReadDirectoryPlus(read_directory(f)?),
            opcode::RELEASEDIR => Self::ReleaseDirectory { handle: f.u64()? },
            opcode::FSYNCDIR => Self::FsyncDirectory,
            opcode::GETLK => Self::GetLock(lock(f)?),
            opcode::SETLK => Self::SetLock { lock: lock(f)?, waits: false },
            opcode::SETLKW => Self::SetLock { lock: lock(f)?, waits: true },
            opcode::FALLOCATE => Self::Fallocate { range: file_range(f)?, mode: f.u32()? },
            opcode::LSEEK => Self::Seek { handle: f.u64()?, offset: f.u64()?, whence: f.u32()? },
            opcode::COPY_FILE_RANGE => Self::CopyFileRange(copy_file_range(f, false)?),
            opcode::COPY_FILE_RANGE_64 => Self::CopyFileRange(copy_file_range(f, true)?),
            opcode::IOCTL => Self::Ioctl,
            opcode::LISTXATTR => Self::ListXattrs { size: f.u32()? },
            opcode::INIT => Self::Init(InitRequest::decode(f)?),
            opcode::INTERRUPT => Self::Interrupt { unique: f.u64()? },
            opcode::DESTROY => Self::Destroy,
            other => Self::of_names(other, f)?,
        })
    }

    /// Decodes the operations that change names, and those on extended attributes.
    fn of_names(opcode: u32, f: &mut Fields<'a>) -> Result<Self, DecodeError> {
        Ok(match opcode {
            opcode::SYMLINK => Self::Symlink { name: f.name()?, target: f.string()? },
            opcode::MKNOD => {
                let (mode, device) = (f.u32()?, f.u32()?);
                f.skip::<8>()?;
                Self::MakeNode { name: f.name()?, mode, device }
            }
            opcode::MKDIR => {
                let mode = f.u32()?;
                f.skip::<4>()?;
                Self::MakeDirectory { name: f.name()?, mode }
            }
            opcode::CREATE => {
                let (flags, mode) = (f.u32()?, f.u32()?);
                f.skip::<8>()?;
                Self::Create { name: f.name()?, mode, flags }
            }
            opcode::UNLINK => Self::Unlink { name: f.name()? },
            opcode::RMDIR => Self::RemoveDirectory { name: f.name()? },
            opcode::RENAME => {
                let new_directory = f.u64()?;
                Self::Rename { name: f.name()?, new_directory, new_name: f.name()?, flags: 0 }
            }
            opcode::RENAME2 => {
                let (new_directory, flags) = (f.u64()?, f.u32()?);
                f.skip::<4>()?;
                Self::Rename { name: f.name()?, new_directory, new_name: f.name()?, flags }
            }
            opcode::LINK => Self::Link { node: f.u64()?, name: f.name()? },
            opcode::SETXATTR => {
                // The flags of version 2 (`FUSE_SETXATTR_EXT`) follow only if the file system enables it.
                let (size, flags) = (f.u32()?, f.u32()?);
                Self::SetXattr { name: f.name()?, value: f.bytes(size as usize)?, flags }
            }
            opcode::GETXATTR => {
                let size = f.u32()?;
                f.skip::<4>()?;
                Self::GetXattr { name: f.name()?, size }
            }
            opcode::REMOVEXATTR => Self::RemoveXattr { name: f.name()? },
            _ => Self::Other,
        })
    }
}

fn forgets<'a>(f: &mut Fields<'a>) -> Result<Forgets<'a>, DecodeError> {
    const SIZE: usize = 16;
    let count = f.u32()? as usize;
    f.skip::<4>()?;
    f.bytes(count.saturating_mul(SIZE)).map(Forgets)
}

/// Flags of `fuse_setattr_in` (`FATTR_...`).
mod valid {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const HANDLE: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

fn set_attributes(f: &mut Fields<'_>) -> Result<SetAttributes, DecodeError> {
    let valid = f.u32()?;
    f.skip::<4>()?;
    let (handle, size) = (f.u64()?, f.u64()?);
    f.skip::<8>()?; // The lock owner.
    let (atime, mtime) = (f.u64()?, f.u64()?);
    f.skip::<8>()?; // The time of change, which the file system maintains.
    let (atime_nanoseconds, mtime_nanoseconds) = (f.u32()?, f.u32()?);
    f.skip::<4>()?;
    let mode = f.u32()?;
    f.skip::<4>()?;
    let (uid, gid) = (f.u32()?, f.u32()?);
    let is_set = |flag: u32| valid & flag != 0;
    let time = |(flag, now): (u32, u32), seconds: u64, nanoseconds: u32| {
        let at = SetTime::At(Time { seconds: seconds as i64, nanoseconds });
        is_set(flag).then_some(if is_set(now) { SetTime::Now } else { at })
    };
    Ok(SetAttributes {
        mode: is_set(valid::MODE).then_some(mode),
        uid: is_set(valid::UID).then_some(uid),
        gid: is_set(valid::GID).then_some(gid),
        size: is_set(valid::SIZE).then_some(size),
        atime: time((valid::ATIME, valid::ATIME_NOW), atime, atime_nanoseconds),
        mtime: time((valid::MTIME, valid::MTIME_NOW), mtime, mtime_nanoseconds),
        handle: is_set(valid::HANDLE).then_some(handle),
    })
}

/// `FUSE_READ_LOCKOWNER` and `FUSE_WRITE_LOCKOWNER`: the lock owner is valid.
const HAS_LOCK_OWNER: u32 = 1 << 1;
/// `FUSE_WRITE_CACHE`.
const FROM_CACHE: u32 = 1 << 0;
/// `FUSE_LK_FLOCK`.
const LK_FLOCK: u32 = 1 << 0;

fn read(f: &mut Fields<'_>) -> Result<ReadRequest, DecodeError> {
    let (handle, offset, size, read_flags, owner, flags) =
        (f.u64()?, f.u64()?, f.u32()?, f.u32()?, f.u64()?, f.u32()?);
    let lock_owner = (read_flags & HAS_LOCK_OWNER != 0).then_some(owner);
    Ok(ReadRequest { handle, offset, size, flags, lock_owner })
}

fn write(f: &mut Fields<'_>) -> Result<WriteRequest, DecodeError> {
    let (handle, offset, size, write_flags, owner, flags) =
        (f.u64()?, f.u64()?, f.u32()?, f.u32()?, f.u64()?, f.u32()?);
    f.skip::<4>()?;
    Ok(WriteRequest {
        handle,
        offset,
        size,
        flags,
        lock_owner: (write_flags & HAS_LOCK_OWNER != 0).then_some(owner),
        is_from_cache: write_flags & FROM_CACHE != 0,
    })
}

fn read_directory(f: &mut Fields<'_>) -> Result<ReadDirectory, DecodeError> {
    Ok(ReadDirectory { handle: f.u64()?, offset: f.u64()?, size: f.u32()? })
}

fn lock(f: &mut Fields<'_>) -> Result<LockRequest, DecodeError> {
    let (handle, owner, start, last, kind) = (f.u64()?, f.u64()?, f.u64()?, f.u64()?, f.u32()?);
    f.skip::<4>()?; // The process.
    Ok(LockRequest { handle, owner, start, last, kind, is_flock: f.u32()? & LK_FLOCK != 0 })
}

fn file_range(f: &mut Fields<'_>) -> Result<FileRange, DecodeError> {
    Ok(FileRange { handle: f.u64()?, offset: f.u64()?, length: f.u64()? })
}

fn copy_file_range(f: &mut Fields<'_>, has_long_reply: bool) -> Result<CopyFileRange, DecodeError> {
    let (source_handle, source_offset) = (f.u64()?, f.u64()?);
    f.skip::<8>()?; // The node of the other file.
    let (handle, offset, length) = (f.u64()?, f.u64()?, f.u64()?);
    let source = FileRange { handle: source_handle, offset: source_offset, length };
    Ok(CopyFileRange { source, handle, offset, has_long_reply })
}
