//! File system errors, which correspond to `nfsstat3` of RFC 1813.

/// Result of a file system operation.
pub type FsResult<T> = Result<T, FsError>;

/// Error of a file system operation. Each variant is the `nfsstat3` value of the same name (RFC 1813 section
/// 2.6), unless it states another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// Not the owner.
    #[error("operation not permitted")]
    Perm,
    /// The name does not exist.
    #[error("no such file or directory")]
    NoEnt,
    /// I/O error.
    #[error("input/output error")]
    Io,
    /// No such device.
    #[error("no such device or address")]
    NxIo,
    /// Permission denied.
    #[error("permission denied")]
    Access,
    /// The name exists.
    #[error("file exists")]
    Exist,
    /// Rename or link across file systems.
    #[error("cross-device link")]
    XDev,
    /// The device does not support the operation.
    #[error("no such device")]
    NoDev,
    /// Not a directory.
    #[error("not a directory")]
    NotDir,
    /// Is a directory.
    #[error("is a directory")]
    IsDir,
    /// Invalid argument.
    #[error("invalid argument")]
    Inval,
    /// The file would be too large.
    #[error("file too large")]
    FBig,
    /// No space left.
    #[error("no space left on the file system")]
    NoSpc,
    /// Read-only file system.
    #[error("read-only file system")]
    RoFs,
    /// Too many links.
    #[error("too many links")]
    MLink,
    /// The name is too long.
    #[error("file name too long")]
    NameTooLong,
    /// The directory is not empty.
    #[error("directory not empty")]
    NotEmpty,
    /// Quota exceeded.
    #[error("disk quota exceeded")]
    DQuot,
    /// The object of the handle no longer exists.
    #[error("stale file handle")]
    Stale,
    /// The handle is invalid.
    #[error("bad file handle")]
    BadHandle,
    /// The guard does not match the ctime.
    #[error("the file changed since its attributes were read")]
    NotSync,
    /// The directory cookie is invalid.
    #[error("stale directory cookie")]
    BadCookie,
    /// The operation is not supported.
    #[error("operation not supported")]
    NotSupp,
    /// The reply size limit is too small for one entry.
    #[error("buffer too small")]
    TooSmall,
    /// An internal error of the server.
    #[error("server fault")]
    ServerFault,
    /// The type of object is not supported.
    #[error("type not supported")]
    BadType,
    /// The extended attribute does not exist (`NFS4ERR_NOXATTR`, RFC 8276).
    #[error("no such extended attribute")]
    NoXattr,
    /// The value of an extended attribute is too long (`NFS4ERR_XATTR2BIG`).
    #[error("extended attribute value too long")]
    XattrTooBig,
    /// Temporarily unavailable; try again later.
    #[error("busy, try again later")]
    Jukebox,
}
