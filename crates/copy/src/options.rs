//! Options of a copy.

use crate::Exclude;

/// Options of a copy.
#[derive(Debug, Clone)]
pub struct Options {
    /// Copy directories with their contents. Without it a directory fails with
    /// [`Error::IsDirectory`](crate::Error::IsDirectory).
    pub recursive: bool,
    /// Read each file back from the target and compare SHA-256 checksums, before a new file gets its final name.
    pub verify: bool,
    /// Replace an existing file by a new one with a rename, instead of writing it in place.
    pub atomic: bool,
    /// The existing files and symbolic links that the copy replaces.
    pub replace: Replace,
    /// Remove what the directories of the target have and those of the source lack, unless an object could not be read,
    /// copied or removed: first what has another type than the copy of its name, when all others are copied, and the
    /// rest at the end. Symbolic links are not followed, and mount points that the source lacks are kept with their
    /// content. The objects to copy must have different names, and one without a name must be the only one
    /// ([`Error::SharedTarget`](crate::Error::SharedTarget)). The directory given to
    /// [`TreeCopy::run`](crate::TreeCopy::run) needs its [`Directory::id`](crate::Directory::id).
    pub delete: bool,
    /// What below the copied directories is neither copied nor removed.
    pub exclude: Exclude,
    /// Change nothing; report and count what the copy would do.
    pub dry_run: bool,
    /// Reproduce hard links between the copied files. Without it each name becomes a separate file.
    pub hard_links: bool,
    /// The attributes to set on copies besides mode and times.
    pub preserve: Preserve,
    /// Maximum number of files in flight, and of directories that are created; 0 counts as 1.
    pub parallel: usize,
    /// Maximum number of records in flight, over all files; 0 counts as 1.
    pub outstanding: usize,
    /// Size of one read or write in bytes, at most the preferred size of both sides; `None`: that size.
    pub record: Option<usize>,
}

impl Default for Options {
    /// Recursive, without verification, 16 files and 32 records in flight.
    fn default() -> Self {
        Self {
            recursive: true,
            verify: false,
            atomic: false,
            replace: Replace::Always,
            delete: false,
            exclude: Exclude::default(),
            dry_run: false,
            hard_links: false,
            preserve: Preserve::default(),
            parallel: 16,
            outstanding: 32,
            record: None,
        }
    }
}

/// The existing files and symbolic links that a copy replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replace {
    /// All.
    #[default]
    Always,
    /// None.
    Never,
    /// Those with an earlier modification time than the source.
    Older,
    /// Files that differ in type, size or modification time (of which a file system may omit what is below a
    /// microsecond), and symbolic links that differ in their target. Equal files and existing directories get the mode
    /// and times of the source, and its owner with [`Preserve::owner`].
    Different,
}

/// The attributes to set on copies besides mode and times, which are always set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Preserve {
    /// Owner and group. Without it the set-user-ID and set-group-ID bits of local copies are cleared.
    pub owner: bool,
    /// The extended attributes of users, of files and directories. Without it, [`Report`](crate::Report) counts the local
    /// objects that have some.
    pub xattrs: bool,
}
