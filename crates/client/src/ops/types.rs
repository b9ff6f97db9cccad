//! Attributes, handles, and other types of arguments and results.

use std::{fmt, hash};

/// A file handle: opaque to the client, stored inline.
#[derive(Clone, Copy)]
pub struct FileHandle {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl FileHandle {
    /// Maximum length in bytes: that of NFSv4 (RFC 8881 section 3.2, NFS4_FHSIZE). Those of NFSv3 have at most 64.
    pub const MAX: usize = 128;

    /// Creates a handle; `None` if `bytes` is longer than [`Self::MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut h = Self { len: u8::try_from(bytes.len()).ok()?, bytes: [0; Self::MAX] };
        h.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(h)
    }

    /// The bytes of the handle.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for FileHandle {}

impl hash::Hash for FileHandle {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileHandle({self})")
    }
}

/// Type of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A block device.
    Block,
    /// A character device.
    Character,
    /// A symbolic link.
    Symlink,
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
}

/// Time since the Unix epoch. NFSv3 has 1970 to 2106: it sets the nearest time instead of others, as Linux does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NfsTime {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, valid below 1,000,000,000 (servers may send others).
    pub nanoseconds: u32,
}

impl NfsTime {
    /// Whether NFSv3 has the time.
    pub fn is_in_v3(&self) -> bool {
        u32::try_from(self.seconds).is_ok()
    }
}

/// Number of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SpecData {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// Attributes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Type.
    pub file_type: FileType,
    /// Permission bits: 0x1ff rwx, 0x200 sticky, 0x400 sgid, 0x800 suid.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in bytes.
    pub used: u64,
    /// Device number of a device.
    pub rdev: SpecData,
    /// File system ID.
    pub fsid: u64,
    /// File ID, unique in its file system.
    pub fileid: u64,
    /// Time of last access.
    pub atime: NfsTime,
    /// Time of last modification of the data.
    pub mtime: NfsTime,
    /// Time of last change of data or attributes.
    pub ctime: NfsTime,
    /// The change attribute of NFSv4 ([`ChangeNumbers`]), if it was requested and proves something. NFSv3 has none.
    pub change: Option<u64>,
}

/// Attributes that show whether an object has changed (`wcc_attr`, RFC 1813 section 2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WccAttr {
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification of the data.
    pub mtime: NfsTime,
    /// Time of last change of data or attributes.
    pub ctime: NfsTime,
}

impl From<&Attributes> for WccAttr {
    fn from(a: &Attributes) -> Self {
        Self { size: a.size, mtime: a.mtime, ctime: a.ctime }
    }
}

/// The change attribute of an object before and after an operation of NFSv4, which alone has changed the object, or left it
/// unchanged. All changes of an object have different numbers (RFC 8881 section 5.8.1.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeNumbers {
    /// Before the operation.
    pub before: u64,
    /// After the operation.
    pub after: u64,
}

/// Attributes before and after an operation (weak cache consistency data), as far as the server sends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wcc {
    /// Attributes before the operation, which alone has changed them, or left them unchanged. NFSv4 has none.
    pub before: Option<WccAttr>,
    /// Attributes after the operation.
    pub after: Option<Attributes>,
    /// The change with NFSv4, in place of `before`.
    pub change: Option<ChangeNumbers>,
}

impl Wcc {
    /// Combines this operation with the `next` one. The result has no `before` attributes, or no `change`, if the object may
    /// have been changed by others between the two.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        let left = self.after.as_ref().map(WccAttr::from);
        let joined = |(a, b): (ChangeNumbers, ChangeNumbers)| {
            (a.after == b.before).then_some(ChangeNumbers { before: a.before, after: b.after })
        };
        Self {
            before: self.before.filter(|_| left.is_some() && left == next.before),
            after: next.after,
            change: self.change.zip(next.change).and_then(joined),
        }
    }
}

/// How to set a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Do not change.
    #[default]
    DontChange,
    /// Set to the server's time.
    ServerTime,
    /// Set to this time.
    ClientTime(NfsTime),
}

/// Attributes to set; `None` leaves an attribute unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes; truncates or extends the file.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: SetTime,
    /// Time of last modification.
    pub mtime: SetTime,
}

/// A verifier: of a creation, a directory, or an instance of the server.
pub type Verifier = [u8; 8];

/// Stability of written data, requested or achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StableHow {
    /// May be lost until COMMIT.
    Unstable,
    /// The data, and the metadata needed to read it, are stable.
    DataSync,
    /// Data and metadata are stable.
    FileSync,
}

/// How a creation handles an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// Use it, and set its size if given.
    Unchecked(SetAttributes),
    /// Fail.
    Guarded(SetAttributes),
    /// Fail unless it was created with this verifier.
    Exclusive(Verifier),
}

/// The object that MKNOD creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MknodWhat {
    /// A character device.
    Character(SetAttributes, SpecData),
    /// A block device.
    Block(SetAttributes, SpecData),
    /// A socket.
    Socket(SetAttributes),
    /// A named pipe.
    Fifo(SetAttributes),
}

impl MknodWhat {
    /// Type of the object.
    pub const fn file_type(&self) -> FileType {
        match self {
            Self::Character(..) => FileType::Character,
            Self::Block(..) => FileType::Block,
            Self::Socket(_) => FileType::Socket,
            Self::Fifo(_) => FileType::Fifo,
        }
    }
}

/// Result of RENAME.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RenameOk {
    /// Change of the old directory.
    pub from: Wcc,
    /// Change of the new directory.
    pub to: Wcc,
}

/// Result of LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkOk {
    /// Attributes of the file, if the server sent them.
    pub file: Option<Attributes>,
    /// Change of the directory of the new link.
    pub dir: Wcc,
}

/// Result of COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitOk {
    /// Change of the file.
    pub file: Wcc,
    /// Write verifier of the server instance; if it differs from that of WRITE, unstable data may be lost.
    pub verifier: Verifier,
}

/// Space and file counts of a file system. All are 0 if they are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsStat {
    /// Total size in bytes.
    pub total_bytes: u64,
    /// Free space in bytes.
    pub free_bytes: u64,
    /// Free space available to the caller, in bytes.
    pub available_bytes: u64,
    /// Total number of files.
    pub total_files: u64,
    /// Number of files that can be created.
    pub free_files: u64,
    /// Number of files that the caller can create.
    pub available_files: u64,
}

/// Limits and properties of a file system. Sizes are in bytes; 0 if the server does not specify one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsInfo {
    /// Maximum size of READ.
    pub read_max: u32,
    /// Preferred size of READ.
    pub read_preferred: u32,
    /// Maximum size of WRITE.
    pub write_max: u32,
    /// Preferred size of WRITE.
    pub write_preferred: u32,
    /// Preferred size of READDIR.
    pub readdir_preferred: u32,
    /// Maximum file size.
    pub max_file_size: u64,
    /// Granularity of times.
    pub time_delta: NfsTime,
    /// Whether files can have hard links.
    pub hard_links: bool,
    /// Whether symbolic links can exist.
    pub symlinks: bool,
    /// Whether [`PathConf`] is the same for all objects.
    pub homogeneous: bool,
    /// Whether the client can set times.
    pub can_set_time: bool,
}

/// Limits and properties of names and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathConf {
    /// Maximum number of hard links.
    pub link_max: u32,
    /// Maximum length of a name in bytes.
    pub name_max: u32,
    /// Whether longer names are rejected instead of truncated.
    pub no_trunc: bool,
    /// Whether only root may change the owner of a file.
    pub chown_restricted: bool,
    /// Whether names are case-insensitive.
    pub case_insensitive: bool,
    /// Whether the case of names is preserved.
    pub case_preserving: bool,
}
