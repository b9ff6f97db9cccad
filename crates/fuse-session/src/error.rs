//! Errors of mounting and unmounting.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::device::DEVICE;

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The directory is not usable as a mount point.
    #[error("cannot mount on {}: {reason}", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The reason and the remedy.
        reason: String,
    },
    /// The mount cannot be removed.
    #[error("cannot unmount {}: {reason}", path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The reason and the remedy.
        reason: String,
    },
    /// The kernel or fusermount3 rejected the mount.
    #[error("cannot mount {}: {}{}", path.display(), source.to_string().trim(), hint(source))]
    Kernel {
        /// The mount point.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A local resource could not be allocated, or a precondition is not met.
    #[error("{0}")]
    Local(String),
}

fn hint(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::NotFound if !Path::new(DEVICE).exists() => {
            "; /dev/fuse does not exist (run `modprobe fuse`; for a container use --device /dev/fuse)"
        }
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            "; mounting without root needs fusermount3 (package fuse3) and access to /dev/fuse"
        }
        _ => "",
    }
}
