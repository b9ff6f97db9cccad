//! Errors of mounting and unmounting, and the errno values of failed requests.

use std::{fmt, path::PathBuf};

use rustix::io::Errno;

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// An option of `-o` is unknown or has an invalid value.
    #[error("mount option {option:?}: {reason}")]
    Option {
        /// The option as given.
        option: String,
        /// Why it is invalid.
        reason: String,
    },
    /// The server is unreachable or rejected the mount.
    #[error(transparent)]
    Server(#[from] millrace_client::Error),
    /// The export was unmounted, but data was lost without a program having been informed.
    #[error("{} was unmounted, but changes to {} files were lost: {}", path.display(), files.len(), listed(files))]
    Lost {
        /// The mount point.
        path: PathBuf,
        /// The files and the errors.
        files: Vec<LostFile>,
    },
    /// The mount point or the system does not permit it.
    #[error(transparent)]
    System(#[from] millrace_fuse_session::MountError),
}

/// Maximum number of files listed in an error message.
const NAMED: usize = 8;

fn listed(files: &[LostFile]) -> String {
    let named = files.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = files.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
    let nameless = files.iter().any(|f| f.path.is_none());
    let hint = if nameless { "; `find -inum` shows the names of inode numbers" } else { "" };
    format!("{named}{rest}{hint}")
}

/// A file whose data could not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostFile {
    /// Last known path relative to the root of the mount; `None` if the kernel has forgotten the inode, or
    /// another file has taken its name.
    pub path: Option<PathBuf>,
    /// Inode number (`find -inum`).
    pub number: u64,
    /// The error; [`Errno::TIMEDOUT`] if the server did not reply in time.
    pub error: Errno,
}

impl fmt::Display for LostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{path:?}")?,
            None => write!(f, "inode {}", self.number)?,
        }
        match self.error {
            Errno::TIMEDOUT => f.write_str(" (the server did not reply in time)"),
            e => write!(f, " ({e})"),
        }
    }
}

/// Returns the errno for a failed call.
pub(crate) fn errno(e: &millrace_client::Error) -> Errno {
    if let Some(errno) = e.raw_os_error() {
        return Errno::from_raw_os_error(errno);
    }
    match e {
        millrace_client::Error::Unreachable { .. } => {
            tracing::warn!(
                "{e}; increase `timeo` or `retrans` to let a `soft` mount wait longer, or use `hard`"
            );
        }
        other => tracing::warn!("{other}"),
    }
    Errno::IO
}
