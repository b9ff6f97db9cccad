//! The values that file systems take and give.

use std::fmt;

use millrace_buffer::Views;
use smallvec::SmallVec;

/// A file handle of one file system: opaque bytes, at most [`Handle::MAX`], stable for the life of the object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Handle {
    /// The most bytes (the server adds its own 16 to make an NFS handle of at most 64).
    pub const MAX: usize = 48;

    /// A handle of these bytes, or `None` if they are too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut out = Self { len: u8::try_from(bytes.len()).ok()?, bytes: [0; Self::MAX] };
        out.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(out)
    }

    /// A handle of these bytes, whose number is known to be small enough when this is compiled.
    pub fn from_array<const N: usize>(bytes: [u8; N]) -> Self {
        const { assert!(N <= Self::MAX, "too many bytes for a handle") };
        let mut out = Self { len: N as u8, bytes: [0; Self::MAX] };
        out.bytes[..N].copy_from_slice(&bytes);
        out
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle(")?;
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        f.write_str(")")
    }
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Further groups.
    pub gids: SmallVec<[u32; 16]>,
}

impl Identity {
    /// The superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, gids: SmallVec::new() }
    }

    /// Whether `gid` is one of the caller's groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.gids.contains(&gid)
    }
}

/// A time: seconds (may be before 1970) and nanoseconds (below 10^9) since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanos: u32,
}

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    Block,
    /// Character device.
    Character,
    /// Socket.
    Socket,
    /// Named pipe.
    Fifo,
}

/// Attributes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, set-id bits and sticky bit (07777).
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes of storage.
    pub used: u64,
    /// Device numbers (major, minor) of a device.
    pub rdev: (u32, u32),
    /// The file system.
    pub fsid: u64,
    /// The object's number in it.
    pub fileid: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
}

/// The attributes that tell whether an object changed (`wcc_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WccAttr {
    /// Bytes.
    pub size: u64,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
}

impl From<&Attr> for WccAttr {
    fn from(a: &Attr) -> Self {
        Self { size: a.size, mtime: a.mtime, ctime: a.ctime }
    }
}

/// An object before and after an operation (weak cache consistency). `before` only if it was taken atomically with
/// the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wcc {
    /// Before.
    pub before: Option<WccAttr>,
    /// After.
    pub after: Option<Attr>,
}

/// How to set a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// The server's present time.
    Now,
    /// This time.
    To(Time),
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size: Option<u64>,
    /// Access time.
    pub atime: SetTime,
    /// Modification time.
    pub mtime: SetTime,
}

/// Rights, with the bit values of RFC 1813 section 3.3.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(pub u32);

impl Access {
    /// Read a file or list a directory.
    pub const READ: u32 = 0x01;
    /// Look names up in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Change existing data or entries.
    pub const MODIFY: u32 = 0x04;
    /// Write new data or add entries.
    pub const EXTEND: u32 = 0x08;
    /// Remove entries.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// How durable a write must be, or was made (`stable_how`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// May be lost until it is committed.
    Unstable,
    /// Data is durable.
    DataSync,
    /// Data and all attributes are durable.
    FileSync,
}

/// What a read gave.
#[derive(Debug, Clone)]
pub struct Read {
    /// The bytes.
    pub data: Views,
    /// Whether they reach the end of the file.
    pub eof: bool,
    /// The file's attributes.
    pub attr: Attr,
}

/// What a write did.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Bytes written (at least 1 unless none were given).
    pub count: u32,
    /// How durable they are: at least what was asked.
    pub committed: Stability,
    /// The file's change.
    pub wcc: Wcc,
}

/// How to create a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// An existing file is fine; only `size` of the attributes is applied to it.
    Unchecked(SetAttr),
    /// The name must be free.
    Guarded(SetAttr),
    /// The name must be free, or have been created with this verifier.
    Exclusive([u8; 8]),
}

/// What was created.
#[derive(Debug, Clone, Copy)]
pub struct Created {
    /// The new object.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
    /// The directory's change.
    pub dir: Wcc,
}

/// What [`crate::FileSystem::make`] makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewNode {
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A block device (major, minor).
    Block(u32, u32),
    /// A character device (major, minor).
    Character(u32, u32),
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
}

/// One directory entry.
#[derive(Debug, Clone)]
pub struct DirEntry {
    /// The object's number.
    pub fileid: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// Where to continue after this entry.
    pub cookie: u64,
    /// Handle and attributes, when asked for and at hand.
    pub plus: Option<(Handle, Attr)>,
}

/// A page of a directory.
#[derive(Debug, Clone)]
pub struct DirPage {
    /// The entries, in cookie order.
    pub entries: Vec<DirEntry>,
    /// Whether no entry follows.
    pub eof: bool,
    /// To be sent with the next cookie.
    pub verifier: [u8; 8],
    /// The directory's attributes.
    pub attr: Attr,
}

/// Space and file counts of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsStat {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Bytes free for an ordinary caller.
    pub available_bytes: u64,
    /// Files in all.
    pub total_files: u64,
    /// Files that can still be made.
    pub free_files: u64,
    /// The same for an ordinary caller.
    pub available_files: u64,
}

/// Fixed properties of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsInfo {
    /// The largest file, in bytes.
    pub max_file_size: u64,
    /// The longest name, in bytes.
    pub name_max: u32,
    /// The most hard links.
    pub link_max: u32,
    /// Granularity of times, in nanoseconds.
    pub time_delta_nanos: u32,
}
