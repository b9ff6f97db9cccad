//! What can go wrong: at mount, a sentence; afterwards, the number that a program gets.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use millrace_nfs::v3::Status;
use rustix::io::Errno;

use crate::device::DEVICE;

/// Why a mount was not made, or not ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// An option of `-o` is unknown or has a wrong value.
    #[error("mount option {option:?}: {reason}")]
    Option {
        /// The option as it was written.
        option: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory cannot be mounted on.
    #[error("cannot mount on {}: {reason}", path.display())]
    MountPoint {
        /// The directory.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// The server cannot be reached, or refuses.
    #[error(transparent)]
    Server(#[from] millrace_client::Error),
    /// The kernel refuses.
    #[error("cannot mount {}: {}{}", path.display(), source.to_string().trim(), hint(source))]
    Kernel {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Unmounted, but data was lost of which no program was told.
    #[error("{} was unmounted, but changes of {} files are lost: {}", path.display(), files.len(), listed(files))]
    Lost {
        /// The directory.
        path: PathBuf,
        /// Which files, and why.
        files: Vec<LostFile>,
    },
    /// A local resource.
    #[error("{0}")]
    Local(String),
}

fn hint(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::NotFound if !Path::new(DEVICE).exists() => {
            "; is there /dev/fuse? (modprobe fuse; a container needs --device /dev/fuse)"
        }
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            "; without root, fusermount3 must be installed (package fuse3) and /dev/fuse be open to you"
        }
        _ => "",
    }
}

/// Lost files that a sentence names.
const NAMED: usize = 8;

fn listed(files: &[LostFile]) -> String {
    let named = files.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = files.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
    let nameless = files.iter().any(|f| f.path.is_none());
    let hint = if nameless { "; `find -inum` finds names for the numbers" } else { "" };
    format!("{named}{rest}{hint}")
}

/// A file whose data could not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostFile {
    /// Its path from the root of the mount, as last known here; `None`: the kernel has forgotten it, or another file has
    /// its name now.
    pub path: Option<PathBuf>,
    /// Its inode's number (`find -inum`).
    pub number: u64,
    /// Why: [`Errno::TIMEDOUT`] when the server did not answer in time.
    pub error: Errno,
}

impl fmt::Display for LostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{path:?}")?,
            None => write!(f, "inode {}", self.number)?,
        }
        match self.error {
            Errno::TIMEDOUT => f.write_str(" (the server did not answer in time)"),
            e => write!(f, " ({e})"),
        }
    }
}

/// The number for what a call ended with.
pub(crate) fn errno(e: &millrace_client::Error) -> Errno {
    match e {
        millrace_client::Error::Nfs { status, .. } => of_status(*status),
        millrace_client::Error::OutOfMemory(_) => Errno::NOMEM,
        millrace_client::Error::Unreachable { .. } => {
            tracing::warn!(
                "{e}; more `timeo` or `retrans` lets a `soft` mount wait longer, `hard` without end"
            );
            Errno::IO
        }
        other => {
            tracing::warn!("{other}");
            Errno::IO
        }
    }
}

fn of_status(status: Status) -> Errno {
    match status {
        Status::Perm => Errno::PERM,
        Status::NoEnt => Errno::NOENT,
        Status::NxIo => Errno::NXIO,
        Status::Access => Errno::ACCESS,
        Status::Exist => Errno::EXIST,
        Status::XDev => Errno::XDEV,
        Status::NoDev => Errno::NODEV,
        Status::NotDir => Errno::NOTDIR,
        Status::IsDir => Errno::ISDIR,
        Status::Inval | Status::BadType => Errno::INVAL,
        Status::FBig => Errno::FBIG,
        Status::NoSpc => Errno::NOSPC,
        Status::RoFs => Errno::ROFS,
        Status::MLink => Errno::MLINK,
        Status::NameTooLong => Errno::NAMETOOLONG,
        Status::NotEmpty => Errno::NOTEMPTY,
        Status::DQuot => Errno::DQUOT,
        Status::Stale | Status::BadHandle => Errno::STALE,
        Status::Remote => Errno::REMOTE,
        Status::NotSupp => Errno::OPNOTSUPP,
        Status::Jukebox => Errno::AGAIN,
        _ => Errno::IO,
    }
}
