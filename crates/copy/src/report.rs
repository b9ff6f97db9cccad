//! The outcome of a copy.

use std::time::Duration;

use crate::Error;

/// The outcome of a copy.
#[derive(Debug, Default)]
pub struct Report {
    /// Regular files copied completely.
    pub files: u64,
    /// Directories created, or found at the target.
    pub directories: u64,
    /// Symbolic links created.
    pub symlinks: u64,
    /// Hard links created.
    pub hard_links: u64,
    /// Existing files and symbolic links that were not replaced ([`Options::replace`](crate::Options::replace)).
    pub skipped: u64,
    /// Objects removed at the target ([`Options::delete`](crate::Options::delete)).
    pub deleted: u64,
    /// Objects that were to be removed, and were not: something in `failed` prevents it, the copy ended before
    /// ([`Self::interrupted`], [`Self::stopped`]), or they contain what is excluded.
    pub not_deleted: u64,
    /// Bytes of the regular files copied.
    pub bytes: u64,
    /// Files whose checksum was compared and matches.
    pub verified: u64,
    /// Files and directories whose extended attributes were not copied: without [`Preserve::xattrs`](crate::Preserve), which
    /// only local sources report, or because the target has none (NFSv3).
    pub without_xattrs: u64,
    /// Local files and directories whose ACL was not copied.
    pub without_acl: u64,
    /// Files and directories whose times the target does not have, so that the nearest were set (NFSv3: 1970 to 2106).
    pub without_times: u64,
    /// The duration of the copy.
    pub elapsed: Duration,
    /// The objects that were not copied, in the order of their failure.
    pub failed: Vec<FailedFile>,
    /// The future given to [`TreeCopy::interrupted_by`](crate::TreeCopy::interrupted_by) completed before the
    /// copy.
    pub interrupted: bool,
    /// A fatal error ([`Error::is_fatal`]) stopped the copy.
    pub stopped: bool,
}

/// An object that was not copied.
#[derive(Debug)]
pub struct FailedFile {
    /// Its path, as in [`Item::path`](crate::Item::path).
    pub path: String,
    /// Reason.
    pub error: Error,
}
