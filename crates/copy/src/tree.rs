//! Sources and targets of copies.

use std::{future::Future, ops::Range};

use millrace_buffer::Views;
use millrace_client::handles;

use crate::{Error, Preserve};

/// The type of a file system object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or named pipe.
    Special,
}

/// A time since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, 0 to 999 999 999.
    pub nanos: u32,
}

impl Timestamp {
    /// Whether this is `time` as a file system stores it, which may have units of up to a microsecond. Files that were changed
    /// within a second or a millisecond differ.
    pub(crate) fn is_rounded(self, time: Self) -> bool {
        let units = [1, 10, 100, 1000];
        self.seconds == time.seconds && units.iter().any(|unit| time.nanos / unit * unit == self.nanos)
    }
}

/// The attributes that a copy uses. `From<&std::fs::Metadata>` and `From<&millrace_client::ops::Attributes>` create
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// The type.
    pub kind: FileKind,
    /// Permission bits, 0 to 0o7777.
    pub mode: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Size of a regular file in bytes.
    pub size: u64,
    /// Bytes of storage that the file uses: fewer than `size` if it has holes.
    pub used: u64,
    /// Number of hard links.
    pub nlink: u32,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last modification of the content.
    pub mtime: Timestamp,
    /// Time of the last change of the file; not set on copies.
    pub ctime: Timestamp,
    /// File system ID and file ID: equal for hard links to one file.
    pub id: (u64, u64),
}

/// A directory entry.
#[derive(Debug, Clone)]
pub struct Entry<N> {
    /// Its name; [`is_valid_name`](crate::is_valid_name) holds.
    pub name: Vec<u8>,
    /// The object.
    pub node: N,
    /// The attributes of the object; a symbolic link is not followed.
    pub meta: Metadata,
}

/// The entries of a directory.
#[derive(Debug)]
pub struct Entries<N> {
    /// The entries, in the order of their names.
    pub found: Vec<Entry<N>>,
    /// The names of entries that are not valid (see [`is_valid_name`](crate::is_valid_name)) or whose attributes cannot be
    /// read, and the reasons.
    pub failed: Vec<(Vec<u8>, Error)>,
}

/// An object to copy.
#[derive(Debug, Clone)]
pub struct Item<N> {
    /// Path in reports and events. For objects below a directory, the path of the directory is the prefix.
    pub path: String,
    /// Its name at the target; [`is_valid_name`](crate::is_valid_name) must hold. If the name of a directory is empty, its
    /// entries are copied into the target directory, as by `cp -r DIR/.`.
    pub name: Vec<u8>,
    /// The object.
    pub node: N,
    /// Its attributes.
    pub meta: Metadata,
}

/// The extended attributes of users of an object, and what else it has that copies do not keep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Xattrs {
    /// The attributes to copy: names without the prefix `user.`, and values.
    pub kept: Vec<(Vec<u8>, Vec<u8>)>,
    /// What is not copied.
    pub lost: Lost,
}

/// Maximum size of [`Xattrs::kept`] in bytes: that of one object of an untrusted server must not exhaust the memory.
const XATTRS_MAX: usize = 16 << 20;

impl Xattrs {
    /// Adds an attribute.
    pub(crate) fn keep(&mut self, name: Vec<u8>, value: Vec<u8>) -> Result<(), Error> {
        let size: usize = self.kept.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size + name.len() + value.len() > XATTRS_MAX {
            return Err(Error::LargeXattrs);
        }
        self.kept.push((name, value));
        Ok(())
    }
}

/// What an object of a source has, and its copy lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lost {
    /// Extended attributes of users.
    pub xattrs: bool,
    /// An access control list.
    pub acl: bool,
    /// Its times: the copy has the nearest ones.
    pub times: bool,
}

/// Durability of a record written to a [`Target`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOutcome {
    /// The record is on stable storage, or [`Target::commit`] needs no verifier for it.
    pub stable: bool,
    /// The record is unstable until [`Target::commit`] returns the same verifier (RFC 1813 section 3.3.7).
    pub verifier: [u8; 8],
}

/// A directory tree that can be read.
pub trait Source: Clone + Send + Sync + 'static {
    /// Identifier of an object: a path or a file handle.
    type Node: Clone + Send + Sync + 'static;
    /// A file that is open for reading.
    type Reader: Clone + Send + Sync + 'static;

    /// Returns the entries of a directory, without `.`, `..` and those that were removed meanwhile.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn list(&self, dir: &Self::Node) -> impl Future<Output = Result<Entries<Self::Node>, Error>> + Send;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_link(&self, link: &Self::Node) -> impl Future<Output = Result<Vec<u8>, Error>> + Send;

    /// The extended attributes of users of a file or directory; with `keep`, to copy them. Otherwise only whether there are
    /// some, if that needs no call.
    ///
    /// # Errors
    /// With `keep`: they cannot be read.
    fn xattrs(
        &self,
        _object: &Self::Node,
        _keep: bool,
    ) -> impl Future<Output = Result<Xattrs, Error>> + Send {
        std::future::ready(Ok(Xattrs::default()))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open(&self, file: &Self::Node) -> impl Future<Output = Result<Self::Reader, Error>> + Send;

    /// The parts of the file below `size` that have data, in order; the others are holes. `None` if the file system does not
    /// report them.
    ///
    /// # Errors
    /// They cannot be determined.
    fn extents(
        &self,
        _file: &Self::Reader,
        _size: u64,
    ) -> impl Future<Output = Result<Option<Vec<Range<u64>>>, Error>> + Send {
        std::future::ready(Ok(None))
    }

    /// Whether the file can be read only once and in order: a pipe or a device.
    fn is_stream(&self, _file: &Self::Reader) -> bool {
        false
    }

    /// Reads `len` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(
        &self,
        file: &Self::Reader,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<Views, Error>> + Send;

    /// The file as one of an NFS export, for [`Target::copy`]; `None` if it is not.
    fn exported(&self, _file: &Self::Reader) -> Option<handles::File> {
        None
    }

    /// A name of the files for which [`Metadata::id`] is unique: equal for a source and a target of the same files. `None` if
    /// there is none.
    fn id_space(&self) -> Option<String> {
        None
    }

    /// The largest size in bytes of one read or write.
    fn preferred_record(&self) -> usize;
}

/// An existing object of a [`Target`], whose content a copy replaces.
#[derive(Debug, Clone)]
pub struct Existing<N> {
    /// The object.
    pub node: N,
    /// Its attributes.
    pub meta: Metadata,
    /// Whether the name is a symbolic link to the object.
    pub through_link: bool,
}

/// A directory of a [`Target`].
#[derive(Debug, Clone)]
pub struct Directory<N> {
    /// The directory.
    pub node: N,
    /// Whether the copy has created it.
    pub created: bool,
    /// [`Metadata::id`], if it is known.
    pub id: Option<(u64, u64)>,
}

impl<N> From<N> for Directory<N> {
    /// An existing directory.
    fn from(node: N) -> Self {
        Self { node, created: false, id: None }
    }
}

/// A directory tree that can be written. A new file is written under a temporary name and renamed when it is complete; an
/// existing one is written in place.
pub trait Target: Source {
    /// A file that is being written.
    type Writer: Clone + Send + Sync + 'static;

    /// The attributes that a copy gets from an object with `meta`: without those that the target does not keep.
    fn kept(&self, meta: &Metadata, _preserve: Preserve) -> Metadata {
        *meta
    }

    /// Creates a directory with the permissions `mode`, or returns the existing one.
    ///
    /// # Errors
    /// It cannot be created, or the name belongs to an object that is not a directory (a symbolic link is not
    /// followed).
    fn make_dir(
        &self,
        dir: &Self::Node,
        name: &[u8],
        mode: u32,
    ) -> impl Future<Output = Result<Directory<Self::Node>, Error>> + Send;

    /// The object `name` of `dir`; a symbolic link is not followed. `None` if there is none.
    ///
    /// # Errors
    /// Its attributes cannot be read.
    fn find(
        &self,
        dir: &Self::Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Option<Existing<Self::Node>>, Error>> + Send;

    /// Opens an existing file, which keeps its owner, mode, ACL and links, and removes its content; or a device or named
    /// pipe, if the target can write to them.
    ///
    /// # Errors
    /// It cannot be opened or truncated, or the target cannot write to an object of its type.
    fn open_existing(
        &self,
        existing: &Existing<Self::Node>,
    ) -> impl Future<Output = Result<Self::Writer, Error>> + Send;

    /// Whether the writes must be in order, because the file is a device or pipe.
    fn is_written_in_order(&self, _file: &Self::Writer) -> bool {
        false
    }

    /// Sets the size of the file, whose content up to it is zeros where nothing was written.
    ///
    /// # Errors
    /// The size cannot be set.
    fn set_size(&self, file: &Self::Writer, size: u64) -> impl Future<Output = Result<(), Error>> + Send;

    /// Sets extended attributes of users of the file: [`Xattrs::kept`]. `false` if the target has none.
    ///
    /// # Errors
    /// One cannot be set.
    fn set_xattrs(
        &self,
        _file: &Self::Writer,
        _xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        std::future::ready(Ok(false))
    }

    /// As [`Self::set_xattrs`], of a directory.
    ///
    /// # Errors
    /// One cannot be set.
    fn set_directory_xattrs(
        &self,
        _dir: &Self::Node,
        _xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        std::future::ready(Ok(false))
    }

    /// Writes the whole content `data` of a file, sets its attributes and gives it the name `name`, in one step. `None`,
    /// and no change, if the target cannot do so; [`Self::create`], [`Self::write`] and [`Self::publish`] do it in
    /// several. A temporary file is removed after an error.
    ///
    /// # Errors
    /// The file cannot be created, written or renamed.
    fn put(
        &self,
        _dir: &Self::Node,
        _name: &[u8],
        _data: &Views,
        _attributes: (&Metadata, Preserve),
    ) -> impl Future<Output = Result<Option<Self::Node>, Error>> + Send {
        std::future::ready(Ok(None))
    }

    /// Maximum size in bytes of a file that [`Self::put`] writes; 0: none.
    fn put_limit(&self) -> u64 {
        0
    }

    /// Creates a temporary file, which [`Self::publish`] renames to `name`.
    ///
    /// # Errors
    /// It cannot be created.
    fn create(
        &self,
        dir: &Self::Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Self::Writer, Error>> + Send;

    /// Writes all of `data` at `offset`. With `stable`, the data is stable when the future completes.
    ///
    /// # Errors
    /// It cannot be written.
    fn write(
        &self,
        file: &Self::Writer,
        offset: u64,
        data: Views,
        stable: bool,
    ) -> impl Future<Output = Result<WriteOutcome, Error>> + Send;

    /// Copies a range of `from` to the same offsets of `to` within the server. Returns the number of bytes, fewer only at the
    /// end of `from`; they are stable. `None` if the target cannot do so: then read and write.
    ///
    /// # Errors
    /// The range cannot be copied.
    fn copy(
        &self,
        _from: &handles::File,
        _to: &Self::Writer,
        _range: Range<u64>,
    ) -> impl Future<Output = Result<Option<u64>, Error>> + Send {
        std::future::ready(Ok(None))
    }

    /// Makes all writes stable. Returns the verifier, which differs from that of lost records.
    ///
    /// # Errors
    /// The data cannot be made stable.
    fn commit(&self, file: &Self::Writer) -> impl Future<Output = Result<[u8; 8], Error>> + Send;

    /// Opens the file for reading.
    ///
    /// # Errors
    /// It cannot be opened.
    fn read_back(&self, file: &Self::Writer) -> impl Future<Output = Result<Self::Reader, Error>> + Send;

    /// Sets the attributes of a temporary file and renames it to its final name. Of an existing file it sets the times, if
    /// the user may do so, and with [`Preserve::owner`] the owner.
    ///
    /// # Errors
    /// The attributes cannot be set, or the file cannot be renamed.
    fn publish(
        &self,
        file: &Self::Writer,
        meta: &Metadata,
        preserve: Preserve,
    ) -> impl Future<Output = Result<Self::Node, Error>> + Send;

    /// Removes a temporary file. Errors are ignored. An existing file keeps the data that was written.
    fn discard(&self, file: &Self::Writer) -> impl Future<Output = ()> + Send;

    /// Creates a symbolic link `name` to `text`; replaces an existing file or link.
    ///
    /// # Errors
    /// It cannot be created.
    fn symlink(
        &self,
        dir: &Self::Node,
        name: &[u8],
        text: &[u8],
        meta: &Metadata,
        preserve: Preserve,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Creates a hard link `name` to `file`; replaces an existing file or link.
    ///
    /// # Errors
    /// It cannot be created.
    fn link(
        &self,
        file: &Self::Node,
        dir: &Self::Node,
        name: &[u8],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether the directory is one on which a file system or, as a bind mount, another directory is mounted.
    ///
    /// # Errors
    /// It cannot be determined.
    fn is_mount_point(&self, _dir: &Self::Node) -> impl Future<Output = Result<bool, Error>> + Send {
        std::future::ready(Ok(false))
    }

    /// Removes the object `name` of `dir`, which is not a directory, or an empty directory. Does nothing if it is absent, and
    /// fails if `dir` is not the directory with the ID [`Directory::id`].
    ///
    /// # Errors
    /// It cannot be removed.
    fn remove(
        &self,
        dir: &Directory<Self::Node>,
        name: &[u8],
        kind: FileKind,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Sets mode and times of an existing file or directory, and its owner with [`Preserve::owner`].
    ///
    /// # Errors
    /// They cannot be set.
    fn set_meta(
        &self,
        node: &Self::Node,
        meta: &Metadata,
        preserve: Preserve,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The extents of a file without holes.
pub(crate) fn whole(size: u64) -> Vec<Range<u64>> {
    if size == 0 { Vec::new() } else { std::iter::once(0..size).collect() }
}

/// Returns a random number for [`millrace_client::temporary_name`].
pub(crate) fn random() -> u64 {
    use std::{
        hash::{BuildHasher, Hasher},
        sync::atomic::{AtomicU64, Ordering},
    };
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The standard library seeds each `RandomState` with random keys.
    let mut h = std::hash::RandomState::new().build_hasher();
    h.write_u64(NEXT.fetch_add(1, Ordering::Relaxed));
    h.write_u32(std::process::id());
    h.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_may_be_stored_in_units_of_a_microsecond_and_not_more() {
        let at = |seconds, nanos| Timestamp { seconds, nanos };
        let time = at(-5, 123_456_789);
        for stored in [123_456_789, 123_456_780, 123_456_700, 123_456_000] {
            assert!(at(-5, stored).is_rounded(time), "{stored}");
        }
        for other in
            [at(-4, 123_456_789), at(-5, 123_450_000), at(-5, 123_000_000), at(-5, 0), at(-5, 123_456_788)]
        {
            assert!(!other.is_rounded(time), "{other:?}");
        }
    }

    #[test]
    fn random_numbers_of_temporary_names_differ() {
        assert_ne!(random(), random());
    }
}
