//! Errors of copies.

use std::{io, path::PathBuf};

use millrace_client::ops::Status;

/// Reason why an object was not copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on the local file system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Local {
        /// The operation, as a verb: `read`.
        action: &'static str,
        /// The path it failed on.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// An extended attribute of a local file or directory could not be read or set.
    #[error("cannot {action} the extended attribute user.{name} of {}: {source}", path.display())]
    Xattr {
        /// The operation, as a verb: `read`.
        action: &'static str,
        /// The attribute.
        name: String,
        /// The path it failed on.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The extended attributes of an object are more than a copy holds in memory.
    #[error("its extended attributes have more than 16 MiB")]
    LargeXattrs,
    /// An NFS call failed.
    #[error(transparent)]
    Remote(#[from] millrace_client::Error),
    /// The client's arena has no memory for a record.
    #[error(transparent)]
    OutOfMemory(#[from] millrace_buffer::OutOfMemory),
    /// The source is a directory, and [`Options::recursive`](crate::Options::recursive) is off.
    #[error("it is a directory, and the copy is not recursive")]
    IsDirectory,
    /// The source is a directory, and its name at the target belongs to an object of another type.
    #[error("its name at the target belongs to an object that is not a directory")]
    NotDirectory,
    /// The source is a device, socket or named pipe, which are not copied.
    #[error("it is a device, socket or named pipe, which are not copied")]
    Special,
    /// The name at the target belongs to a directory, and the source is not one.
    #[error("its name at the target belongs to a directory")]
    TargetIsDirectory,
    /// The name at the target belongs to an object of a type that cannot be written, or not be replaced.
    #[error("its name at the target belongs to {0}")]
    SpecialTarget(&'static str),
    /// Source and target are one file, whose content the copy would remove.
    #[error("source and target are the same file")]
    SameFile,
    /// The directory is one that the copy has created or found at the target.
    #[error("a directory cannot be copied into itself")]
    IntoItself,
    /// With [`Options::delete`](crate::Options::delete), another source is copied to the same directory of the target: each
    /// would remove what the other one has copied.
    #[error("another source is copied to the same directory, and each would remove the copies of the other")]
    SharedTarget,
    /// The directory to remove is a mount point.
    #[error("it is a mount point, which is not removed")]
    MountPoint,
    /// An existing file was written in place when the copy was stopped.
    #[error(
        "the copy was stopped after it had removed the content of the existing file, which is incomplete now"
    )]
    Incomplete,
    /// The source returned a directory entry whose name is empty, `.`, `..`, or contains `/` or NUL.
    #[error("the source has the invalid file name {0:?}")]
    InvalidName(String),
    /// The file was truncated while it was read.
    #[error("it was truncated while it was copied")]
    Shrunk,
    /// The checksum of the copy differs from that of the data that was read from the source.
    #[error("the copy differs from the source (SHA-256)")]
    Mismatch,
    /// The object is a hard link to a file that was not copied.
    #[error("it is a hard link to a file that was not copied")]
    LinkTarget,
    /// The target repeatedly lost unstable data.
    #[error("the server lost written data repeatedly")]
    DataLost,
    /// The copy was interrupted, or another file failed with a fatal error.
    #[error("the copy was stopped")]
    Stopped,
    /// The runtime is shutting down, or the task that copied the file panicked.
    #[error("the task that copied the file was aborted or panicked")]
    Task,
}

impl Error {
    /// Whether further files would fail for the same reason (a full disk, a read-only file system, a lost
    /// connection). A copy stops at its first fatal error.
    pub fn is_fatal(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        use millrace_client::Error as Client;
        match self {
            Self::Local { source, .. } => {
                matches!(source.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
            }
            Self::Remote(Client::Nfs { status, .. }) => {
                matches!(status, Status::NoSpc | Status::DQuot | Status::RoFs)
            }
            // Space for extended attributes may be that of the file only.
            Self::Remote(
                Client::Path { .. }
                | Client::Xattr { .. }
                | Client::Source(_)
                | Client::Sink(_)
                | Client::Local(_),
            ) => false,
            Self::Remote(_) | Self::OutOfMemory(_) | Self::DataLost => true,
            _ => false,
        }
    }
}

impl Error {
    /// Whether the permissions do not allow the operation.
    pub(crate) fn is_denied(&self) -> bool {
        match self {
            Self::Local { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Self::Remote(e) => e.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_server_is_fatal_and_a_missing_file_is_not() {
        let failed = |status| {
            let procedure = millrace_client::ops::Procedure::Read;
            Error::from(millrace_client::Error::Nfs { procedure, object: "x".into(), status })
        };
        assert!(failed(Status::NoSpc).is_fatal() && failed(Status::RoFs).is_fatal());
        assert!(!failed(Status::Stale).is_fatal() && !failed(Status::NoEnt).is_fatal());
    }
}
