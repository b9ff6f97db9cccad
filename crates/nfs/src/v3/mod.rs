//! NFS version 3 (RFC 1813 sections 2 and 3).

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

/// The RPC program number.
pub const PROGRAM: u32 = 100_003;
/// The version.
pub const VERSION: u32 = 3;
/// The registered port over TCP.
pub const PORT_TCP: u16 = 2049;
/// The registered port over RDMA (RFC 8267 section 3.4).
pub const PORT_RDMA: u16 = 20049;
/// The most bytes of a file handle (NFS3_FHSIZE).
pub const MAX_HANDLE: usize = 64;
/// The most bytes of a name that is decoded. The protocol sets no limit; a file system's own limit (`name_max`) is
/// smaller and is answered with [`Status::NameTooLong`].
pub const MAX_NAME: usize = 4096;
/// The most bytes of a path (symbolic link text) that is decoded.
pub const MAX_PATH: usize = 4096;
/// The most bytes of READ or WRITE data that are decoded. Nothing is allocated for it: the bytes must be there.
pub const MAX_DATA: usize = 1 << 30;

/// An opaque verifier: of a directory scan, of a server's instance (WRITE, COMMIT), of an exclusive CREATE.
pub type Verifier = [u8; 8];

xdr_enum! {
    /// The procedures (RFC 1813 section 3.3).
    pub enum Procedure {
        /// Do nothing.
        Null = 0,
        /// Get attributes.
        Getattr = 1,
        /// Set attributes.
        Setattr = 2,
        /// Look a name up.
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
        /// Read a directory with attributes and handles.
        Readdirplus = 17,
        /// Get volatile file system facts.
        Fsstat = 18,
        /// Get static file system facts.
        Fsinfo = 19,
        /// Get POSIX facts.
        Pathconf = 20,
        /// Make written data stable.
        Commit = 21,
    }
}

impl Procedure {
    /// Its name as RFC 1813 writes it.
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

    /// Whether executing it again after it was executed gives the same result and state (when nobody else acts
    /// between). Others need a duplicate request cache when a client retransmits. WRITE of the same bytes counts as
    /// idempotent here, CREATE and SETATTR do not, because of their guarded forms.
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
