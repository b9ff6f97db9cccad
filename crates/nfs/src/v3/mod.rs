//! NFS version 3 (RFC 1813 sections 2 and 3).
//!
//! Arguments and results of all procedures with their XDR (`args`, `results`, `readdir`), and the maximum
//! sizes of replies (`sizes`). The crates `client` and `server` use the same types.

mod args;
mod handle;
mod readdir;
mod results;
mod sizes;
mod status;
mod types;

#[cfg(test)]
mod tests;

pub use args::*;
pub use handle::FileHandle;
pub use readdir::{
    Entry, EntryPlus, ReaddirEncoder, ReaddirOk, ReaddirplusEncoder, ReaddirplusOk, TooSmall, entry_bytes,
    plus_entry_bytes,
};
pub use results::*;
pub use sizes::{RPC_REPLY_HEAD, readdir_reply_head};
pub use status::Status;
pub use types::*;

use crate::schema::xdr_enum;

/// RPC program number.
pub const PROGRAM: u32 = 100_003;
/// Program version.
pub const VERSION: u32 = 3;
/// Registered TCP port.
pub const PORT_TCP: u16 = 2049;
/// Registered port for RDMA (RFC 8267 section 3.4).
pub const PORT_RDMA: u16 = 20049;
/// Maximum length of a file handle in bytes (NFS3_FHSIZE).
pub const MAX_HANDLE: usize = 64;
/// Maximum length of a decoded name in bytes. The protocol has no limit; a file system's limit (`name_max`)
/// is smaller and reported as [`Status::NameTooLong`].
pub const MAX_NAME: usize = 4096;
/// Maximum length of a decoded symbolic link target in bytes.
pub const MAX_PATH: usize = 4096;
/// Maximum length of decoded READ or WRITE data in bytes. It is not allocated in advance: the data must be
/// present.
pub const MAX_DATA: usize = 1 << 30;

/// An opaque verifier: of a directory scan, of a server instance (WRITE, COMMIT), or of an exclusive CREATE.
pub type Verifier = [u8; 8];

xdr_enum! {
    /// The procedures (RFC 1813 section 3.3).
    pub enum Procedure {
        /// No operation.
        Null = 0,
        /// Get attributes.
        Getattr = 1,
        /// Set attributes.
        Setattr = 2,
        /// Look up a name.
        Lookup = 3,
        /// Check access rights.
        Access = 4,
        /// Read a symbolic link.
        Readlink = 5,
        /// Read from a file.
        Read = 6,
        /// Write to a file.
        Write = 7,
        /// Create a file.
        Create = 8,
        /// Create a directory.
        Mkdir = 9,
        /// Create a symbolic link.
        Symlink = 10,
        /// Create a special file.
        Mknod = 11,
        /// Remove a file.
        Remove = 12,
        /// Remove a directory.
        Rmdir = 13,
        /// Rename a file or directory.
        Rename = 14,
        /// Create a hard link.
        Link = 15,
        /// Read a directory.
        Readdir = 16,
        /// Read a directory with attributes and file handles.
        Readdirplus = 17,
        /// Get dynamic file system information.
        Fsstat = 18,
        /// Get static file system information.
        Fsinfo = 19,
        /// Get POSIX pathconf information.
        Pathconf = 20,
        /// Commit written data to stable storage.
        Commit = 21,
    }
}

impl Procedure {
    /// Name in RFC 1813.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Getattr => "GETATTR",
            Self::Setattr => "SETATTR",
            Self::Lookup => "LOOKUP",
            Self::Access => "ACCESS",
            Self::Readlink => "READLINK",
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Create => "CREATE",
            Self::Mkdir => "MKDIR",
            Self::Symlink => "SYMLINK",
            Self::Mknod => "MKNOD",
            Self::Remove => "REMOVE",
            Self::Rmdir => "RMDIR",
            Self::Rename => "RENAME",
            Self::Link => "LINK",
            Self::Readdir => "READDIR",
            Self::Readdirplus => "READDIRPLUS",
            Self::Fsstat => "FSSTAT",
            Self::Fsinfo => "FSINFO",
            Self::Pathconf => "PATHCONF",
            Self::Commit => "COMMIT",
        }
    }

    /// Whether repeating the call gives the same result and state (without calls of others in between). Other
    /// procedures need a duplicate request cache for retransmissions. WRITE of the same data counts as
    /// idempotent; CREATE and SETATTR do not, because of their guarded forms.
    pub const fn is_idempotent(self) -> bool {
        !matches!(
            self,
            Self::Setattr
                | Self::Create
                | Self::Mkdir
                | Self::Symlink
                | Self::Mknod
                | Self::Remove
                | Self::Rmdir
                | Self::Rename
                | Self::Link
        )
    }
}

impl std::fmt::Display for Procedure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
