//! What can go wrong in a file system, in the terms of RFC 1813's `nfsstat3`.

/// The outcome of a file system operation.
pub type FsResult<T> = Result<T, FsError>;

/// Why an operation failed. Each variant is the `nfsstat3` value of the same name (RFC 1813 section 2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// Not the owner.
    #[error("operation not permitted")]
    Perm,
    /// No such name.
    #[error("no such file or directory")]
    NoEnt,
    /// The device failed.
    #[error("input/output error")]
    Io,
    /// No such device.
    #[error("no such device or address")]
    NxIo,
    /// Permission denied by mode bits.
    #[error("permission denied")]
    Access,
    /// The name exists.
    #[error("file exists")]
    Exist,
    /// Across file systems.
    #[error("cross-device link")]
    XDev,
    /// The operation is not for this device.
    #[error("no such device")]
    NoDev,
    /// A directory was needed.
    #[error("not a directory")]
    NotDir,
    /// A directory was not wanted.
    #[error("is a directory")]
    IsDir,
    /// An argument makes no sense.
    #[error("invalid argument")]
    Inval,
    /// The file would be too large.
    #[error("file too large")]
    FBig,
    /// No space left.
    #[error("no space left on the file system")]
    NoSpc,
    /// Read-only.
    #[error("read-only file system")]
    RoFs,
    /// Too many links.
    #[error("too many links")]
    MLink,
    /// The name is too long.
    #[error("file name too long")]
    NameTooLong,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// Quota exceeded.
    #[error("disk quota exceeded")]
    DQuot,
    /// The handle's file is gone.
    #[error("stale file handle")]
    Stale,
    /// The handle was never given out.
    #[error("bad file handle")]
    BadHandle,
    /// The guard's ctime does not match.
    #[error("the file changed since its attributes were read")]
    NotSync,
    /// The directory cookie is not valid.
    #[error("stale directory cookie")]
    BadCookie,
    /// Not supported here.
    #[error("operation not supported")]
    NotSupp,
    /// A size limit is too small for one entry.
    #[error("buffer too small")]
    TooSmall,
    /// The server itself failed (out of memory, a bug).
    #[error("server fault")]
    ServerFault,
    /// The type of object cannot be made.
    #[error("type not supported")]
    BadType,
    /// Try again later.
    #[error("busy, try again later")]
    Jukebox,
}
