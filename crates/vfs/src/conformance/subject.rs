//! The file system under test and what it supports.

use std::{any::Any, collections::BTreeSet, fmt};

use millrace_runtime::RuntimeRef;

use crate::{Arena, FileSystemRef};

/// A capability that a file system may support, or the host of the test may permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// Objects can be created and changed ([`FsInfo::writable`](crate::FsInfo::writable)).
    Changes,
    /// Hard links ([`FsInfo::hard_links`](crate::FsInfo::hard_links)).
    HardLinks,
    /// Symbolic links ([`FsInfo::symlinks`](crate::FsInfo::symlinks)).
    Symlinks,
    /// Named pipes and sockets.
    SpecialFiles,
    /// Block and character devices.
    Devices,
    /// Objects belong to the caller that creates them, and callers have the rights of the mode bits.
    Permissions,
    /// Consecutive changes have different times. Without it, times are accurate to 10 milliseconds.
    FineTimes,
    /// Ranges of files can be deallocated, zeroed and searched
    /// ([`FsInfo::sparse_files`](crate::FsInfo::sparse_files)).
    SparseFiles,
    /// Files stay usable without links while they are held ([`FileSystem::hold`](crate::FileSystem::hold)).
    Holds,
    /// Extended attributes ([`FsInfo::xattrs`](crate::FsInfo::xattrs)).
    Xattrs,
    /// Files that share storage ([`FsInfo::clone_block`](crate::FsInfo::clone_block)).
    Clones,
    /// Each change is counted ([`FsInfo::change_counter`](crate::FsInfo::change_counter)).
    ChangeCounter,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changes => "changes",
            Self::HardLinks => "hard links",
            Self::Symlinks => "symbolic links",
            Self::SpecialFiles => "named pipes and sockets",
            Self::Devices => "devices",
            Self::Permissions => "permissions",
            Self::FineTimes => "fine-grained times",
            Self::SparseFiles => "sparse files",
            Self::ChangeCounter => "change counters",
            Self::Clones => "clones",
            Self::Xattrs => "extended attributes",
            Self::Holds => "held files",
        })
    }
}

/// The resources that a file system uses.
pub struct Resources {
    /// Memory for file data. Data of writes is in this arena.
    pub arena: Arena,
    /// Time, randomness, and threads for work that blocks.
    pub runtime: RuntimeRef,
}

/// A new file system, to be tested by one case.
pub struct Subject {
    pub(super) fs: FileSystemRef,
    pub(super) missing: BTreeSet<Capability>,
    pub(super) stress_calls: usize,
    pub(super) resource: Box<dyn Any + Send + Sync>,
}

impl Subject {
    /// A file system with all capabilities, except those that [`FileSystem::info`](crate::FileSystem::info)
    /// declares as unsupported. If it is writable, it is empty.
    pub fn new(fs: FileSystemRef) -> Self {
        let info = fs.info();
        let declared = [
            (info.writable, Capability::Changes),
            (info.hard_links, Capability::HardLinks),
            (info.symlinks, Capability::Symlinks),
            (info.sparse_files, Capability::SparseFiles),
            (info.xattrs, Capability::Xattrs),
            (info.clone_block > 0, Capability::Clones),
            (info.change_counter, Capability::ChangeCounter),
        ];
        let missing = declared.into_iter().filter(|(supported, _)| !supported).map(|(_, c)| c).collect();
        Self { fs, missing, stress_calls: 1000, resource: Box::new(()) }
    }

    /// Skips what needs `capability`.
    #[must_use]
    pub fn without(mut self, capability: Capability) -> Self {
        self.missing.insert(capability);
        self
    }

    /// Number of calls of each of the four threads in the stress case (1000 by default).
    #[must_use]
    pub fn stress_calls(mut self, calls: usize) -> Self {
        self.stress_calls = calls;
        self
    }

    /// Drops `resource` after the file system, for example a temporary directory.
    #[must_use]
    pub fn keep(mut self, resource: impl Any + Send + Sync) -> Self {
        self.resource = Box::new(resource);
        self
    }
}
