//! Parameters and results of file system calls.

use std::fmt;

use millrace_buffer::Views;
use smallvec::SmallVec;

use crate::{FsError, FsResult, ReadDirLimits};

/// A file handle of one file system: opaque bytes, at most [`Handle::MAX`], constant for the life of the
/// object.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Handle {
    /// Maximum length in bytes (the server adds 16 bytes to form an NFS handle of at most 64).
    pub const MAX: usize = 48;

    /// Creates a handle; `None` if `bytes` is too long.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut out = Self { len: u8::try_from(bytes.len()).ok()?, bytes: [0; Self::MAX] };
        out.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(out)
    }

    /// Creates a handle from an array, whose length is checked at compile time.
    pub fn from_array<const N: usize>(bytes: [u8; N]) -> Self {
        const { assert!(N <= Self::MAX, "handle too long") };
        let mut out = Self { len: N as u8, bytes: [0; Self::MAX] };
        out.bytes[..N].copy_from_slice(&bytes);
        out
    }

    /// The bytes of the handle.
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

/// Credentials of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User ID.
    pub uid: u32,
    /// Primary group ID.
    pub gid: u32,
    /// Supplementary group IDs.
    pub gids: SmallVec<[u32; 16]>,
}

impl Identity {
    /// Credentials of the superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, gids: SmallVec::new() }
    }

    /// Whether `gid` is the primary or a supplementary group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.gids.contains(&gid)
    }
}

/// A time relative to the Unix epoch: seconds (negative before 1970) and nanoseconds (below 10^9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanos: u32,
}

impl Time {
    const NANOS_PER_SECOND: u64 = 1_000_000_000;

    /// The number that represents this time as [`Attr::change`]: the nanoseconds since the epoch.
    pub const fn change(self) -> u64 {
        self.seconds.cast_unsigned().wrapping_mul(Self::NANOS_PER_SECOND).wrapping_add(self.nanos as u64)
    }

    /// The time that [`change`](Self::change) represents as a number.
    pub const fn of_change(change: u64) -> Self {
        let nanos = (change % Self::NANOS_PER_SECOND) as u32;
        Self { seconds: (change / Self::NANOS_PER_SECOND).cast_signed(), nanos }
    }
}

/// Type of an object.
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
    /// Type.
    pub kind: FileKind,
    /// Permission bits, set-ID bits and sticky bit (07777).
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
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// File system ID.
    pub fsid: u64,
    /// Inode number.
    pub fileid: u64,
    /// Time of last access.
    pub atime: Time,
    /// Time of last modification of the content.
    pub mtime: Time,
    /// Time of last change of content or attributes.
    pub ctime: Time,
    /// A number that differs after each change of content or attributes (`change` of NFSv4, RFC 8881 section 5.8.1.4):
    /// a counter ([`FsInfo::change_counter`]), or [`Time::change`] of ctime.
    pub change: u64,
}

impl Attr {
    /// Attributes of an empty object of uid and gid 0, with one link and all times at the epoch.
    pub fn new(kind: FileKind, mode: u32) -> Self {
        let time = Time { seconds: 0, nanos: 0 };
        let (nlink, uid, gid, size, used, rdev) = (1, 0, 0, 0, 0, (0, 0));
        let (fsid, fileid, atime, mtime, ctime) = (0, 0, time, time, time);
        let change = ctime.change();
        Self { kind, mode, nlink, uid, gid, size, used, rdev, fsid, fileid, atime, mtime, ctime, change }
    }
}

/// Attributes that show whether an object has changed (`wcc_attr`, RFC 1813 section 2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WccAttr {
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification of the content.
    pub mtime: Time,
    /// Time of last change of content or attributes.
    pub ctime: Time,
    /// [`Attr::change`].
    pub change: u64,
}

impl From<&Attr> for WccAttr {
    fn from(a: &Attr) -> Self {
        Self { size: a.size, mtime: a.mtime, ctime: a.ctime, change: a.change }
    }
}

/// Attributes before and after an operation (weak cache consistency data). `before` only if it is atomic with
/// the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wcc {
    /// Attributes before the operation.
    pub before: Option<WccAttr>,
    /// Attributes after the operation.
    pub after: Option<Attr>,
}

/// How to set a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Do not change.
    #[default]
    Keep,
    /// Set to the server's current time.
    Now,
    /// Set to this time.
    To(Time),
}

/// Attributes to set; `None` leaves an attribute unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Permission bits that a creation removes from `mode`, unless the directory has a default ACL (RFC 8275).
    pub umask: u32,
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

/// Access rights, with the bit values of RFC 1813 section 3.3.4.
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

/// Durability of a write (`stable_how`, RFC 1813 section 3.3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// May be lost until committed.
    Unstable,
    /// Data is durable.
    DataSync,
    /// Data and metadata are durable.
    FileSync,
}

/// The content that [`crate::FileSystem::seek`] finds (`data_content4`, RFC 7862 section 15.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SeekTarget {
    /// A byte that is not in a hole.
    Data,
    /// A byte in a hole, or the end of the file.
    Hole,
}

/// Result of a read.
#[derive(Debug, Clone)]
pub struct Read {
    /// The data.
    pub data: Views,
    /// Whether the data reaches the end of the file.
    pub eof: bool,
    /// Attributes of the file.
    pub attr: Attr,
}

/// Result of a write.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Number of bytes written; 0 only for an empty write.
    pub count: u32,
    /// Durability of the data, at least as requested.
    pub committed: Stability,
    /// Attributes of the file before and after.
    pub wcc: Wcc,
}

/// Result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Number of bytes copied.
    pub count: u64,
    /// Durability of the data.
    pub committed: Stability,
}

/// Checks the ranges of [`FileSystem::copy`](crate::FileSystem::copy).
///
/// # Errors
/// [`FsError::Inval`] if an end exceeds `u64::MAX`, or the ranges are in one file and overlap.
pub fn check_copy(source: (&Handle, u64), destination: (&Handle, u64), length: u64) -> FsResult<()> {
    let source_end = source.1.checked_add(length).ok_or(FsError::Inval)?;
    let destination_end = destination.1.checked_add(length).ok_or(FsError::Inval)?;
    let overlap = source.0 == destination.0 && source.1 < destination_end && destination.1 < source_end;
    if overlap { Err(FsError::Inval) } else { Ok(()) }
}

/// How to create a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// Opens an existing file; only `size` is applied to it.
    Unchecked(SetAttr),
    /// Fails if the name exists.
    Guarded(SetAttr),
    /// Fails if the name exists, unless it was created with this verifier. The attributes are those of the new file, and
    /// the mode is 0600 without one. The times are [`SetTime::Keep`] if [`FsInfo::verifier_in_times`].
    Exclusive([u8; 8], SetAttr),
}

/// Result of creating an object.
#[derive(Debug, Clone, Copy)]
pub struct Created {
    /// Handle of the new object.
    pub handle: Handle,
    /// Attributes of the new object.
    pub attr: Attr,
    /// Attributes of the directory before and after.
    pub dir: Wcc,
}

/// The object that [`crate::FileSystem::create_node`] creates.
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

/// A directory entry.
#[derive(Debug, Clone)]
pub struct DirEntry {
    /// Inode number.
    pub fileid: u64,
    /// Name.
    pub name: Vec<u8>,
    /// Cookie to continue after this entry.
    pub cookie: u64,
    /// Handle and attributes, if requested and available. Clients look up the name of an entry without them.
    pub plus: Option<(Handle, Attr)>,
}

/// A page of directory entries.
#[derive(Debug, Clone)]
pub struct DirPage {
    /// Entries in cookie order.
    pub entries: Vec<DirEntry>,
    /// Whether this is the last page.
    pub eof: bool,
    /// Verifier to pass with the next cookie.
    pub verifier: [u8; 8],
    /// Attributes of the directory.
    pub attr: Attr,
}

impl DirPage {
    /// A page of a directory that does not change. `all` are its entries in a fixed order, `.` and `..`
    /// included. The cookie of an entry is its position, counted from 1, and the verifier is 0.
    pub fn of_constant<'a>(
        attr: Attr,
        all: impl IntoIterator<Item = (&'a [u8], (Handle, Attr))>,
        cookie: u64,
        limits: ReadDirLimits,
    ) -> Self {
        let mut page = Self { entries: Vec::new(), eof: true, verifier: [0; 8], attr };
        let mut name_bytes = 0;
        let start = usize::try_from(cookie).unwrap_or(usize::MAX);
        for (cookie, (name, (handle, attr))) in (1..).zip(all).skip(start) {
            name_bytes += name.len();
            let full = page.entries.len() >= limits.max_entries || name_bytes > limits.max_name_bytes;
            if full && !page.entries.is_empty() {
                page.eof = false;
                break;
            }
            let plus = limits.plus.then_some((handle, attr));
            page.entries.push(DirEntry { fileid: attr.fileid, name: name.to_vec(), cookie, plus });
        }
        page
    }
}

/// Space and file counts of a file system. All are 0 if they are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsStat {
    /// Total size in bytes.
    pub total_bytes: u64,
    /// Free space in bytes.
    pub free_bytes: u64,
    /// Free space available to unprivileged users, in bytes.
    pub available_bytes: u64,
    /// Total number of files.
    pub total_files: u64,
    /// Number of files that can be created.
    pub free_files: u64,
    /// Number of files that unprivileged users can create.
    pub available_files: u64,
}

/// Static properties of a file system. The default is that of a small read-only file system: files of up to
/// 2^63 - 1 bytes, names of up to 255 bytes, one link to each file, times in nanoseconds, no symbolic links, no
/// calls on ranges of sparse files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsInfo {
    /// Maximum file size in bytes.
    pub max_file_size: u64,
    /// Maximum name length in bytes.
    pub name_max: u32,
    /// Maximum number of hard links.
    pub link_max: u32,
    /// Granularity of times in nanoseconds.
    pub time_delta_nanos: u32,
    /// Whether objects can be created and changed.
    pub writable: bool,
    /// Whether files can have hard links (`FSF3_LINK`, RFC 1813 section 3.3.19).
    pub hard_links: bool,
    /// Whether symbolic links can exist (`FSF3_SYMLINK`).
    pub symlinks: bool,
    /// Whether [`allocate`](crate::FileSystem::allocate), [`deallocate`](crate::FileSystem::deallocate),
    /// [`zero`](crate::FileSystem::zero), [`seek`](crate::FileSystem::seek) and
    /// [`copy`](crate::FileSystem::copy) are implemented.
    pub sparse_files: bool,
    /// Whether files and directories can have extended attributes ([`xattr`](crate::FileSystem::xattr)).
    pub xattrs: bool,
    /// Alignment of [`clone_range`](crate::FileSystem::clone_range) in bytes; 0 if it is not supported.
    pub clone_block: u32,
    /// Whether each operation that changes an object increases [`Attr::change`] of it by one
    /// (`NFS4_CHANGE_TYPE_IS_VERSION_COUNTER`, RFC 7862 section 12.2.3), and its ctime, also if the clock stands still or
    /// goes back. Otherwise two changes within the clock's granularity may have the same ctime and the same change.
    pub change_counter: bool,
    /// Whether [`CreateHow::Exclusive`] stores the verifier in atime and mtime, which the client then sets. This is the
    /// default, because clients that set the times without need do no harm.
    pub verifier_in_times: bool,
}

/// Maximum length of the value of an extended attribute in bytes (`XATTR_SIZE_MAX` of Linux).
pub const XATTR_SIZE_MAX: usize = 64 << 10;
/// Maximum length of the list of an object's extended attributes in bytes: their names, with a terminator for each
/// (`XATTR_LIST_MAX` of Linux).
pub const XATTR_LIST_MAX: usize = 64 << 10;

/// Whether [`set_xattr`](crate::FileSystem::set_xattr) creates or replaces an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// Either.
    Either,
    /// It must not exist ([`FsError::Exist`]).
    Create,
    /// It must exist ([`FsError::NoXattr`]).
    Replace,
}

impl FsInfo {
    /// Requires a valid name: not empty, without `/` and NUL, and at most [`Self::name_max`] bytes long.
    ///
    /// # Errors
    /// [`FsError::Inval`], or [`FsError::NameTooLong`].
    pub fn check_name(&self, name: &[u8]) -> FsResult<()> {
        if name.is_empty() || name.contains(&0) || name.contains(&b'/') {
            return Err(FsError::Inval);
        }
        if name.len() > self.name_max as usize { Err(FsError::NameTooLong) } else { Ok(()) }
    }
}

impl Default for FsInfo {
    fn default() -> Self {
        Self {
            max_file_size: i64::MAX as u64,
            name_max: 255,
            link_max: 1,
            time_delta_nanos: 1,
            writable: false,
            hard_links: false,
            symlinks: false,
            sparse_files: false,
            xattrs: false,
            clone_block: 0,
            change_counter: false,
            verifier_in_times: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_time() {
        let ctime = Time { seconds: 1_700_000_000, nanos: 999_999_999 };
        assert_eq!(Time::of_change(ctime.change()), ctime);
        assert_eq!(Time::of_change(ctime.change() + 1), Time { seconds: 1_700_000_001, nanos: 0 });
    }
}
