//! Sources and targets of copies.

use std::{future::Future, ops::Range};

use millrace_buffer::Views;
use millrace_client::nfs3;

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
    /// Seconds; negative before 1970. NFSv3 clamps to its range, 1970 to 2106.
    pub seconds: i64,
    /// Nanoseconds, 0 to 999 999 999.
    pub nanos: u32,
}

/// The attributes that a copy uses. `From<&std::fs::Metadata>` and `From<&millrace_nfs::v3::Fattr>` create
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
    /// Number of hard links.
    pub nlink: u32,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last modification of the content.
    pub mtime: Timestamp,
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

/// An object to copy.
#[derive(Debug, Clone)]
pub struct Item<N> {
    /// Path in reports and events. For objects below a directory, the path of the directory is the prefix.
    pub path: String,
    /// Its name at the target; [`is_valid_name`](crate::is_valid_name) must hold.
    pub name: Vec<u8>,
    /// The object.
    pub node: N,
    /// Its attributes.
    pub meta: Metadata,
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

    /// Returns all entries of a directory except `.` and `..`.
    ///
    /// # Errors
    /// The directory cannot be read, or an entry has a name for which [`is_valid_name`](crate::is_valid_name) is false.
    fn list(&self, dir: &Self::Node) -> impl Future<Output = Result<Vec<Entry<Self::Node>>, Error>> + Send;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_link(&self, link: &Self::Node) -> impl Future<Output = Result<Vec<u8>, Error>> + Send;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open(&self, file: &Self::Node) -> impl Future<Output = Result<Self::Reader, Error>> + Send;

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
    fn exported(&self, _file: &Self::Reader) -> Option<nfs3::File> {
        None
    }

    /// The largest size in bytes of one read or write.
    fn preferred_record(&self) -> usize;
}

/// A directory tree that can be written. A file is written under a temporary name and renamed when it is
/// complete.
pub trait Target: Source {
    /// A file that is being written.
    type Writer: Clone + Send + Sync + 'static;

    /// Creates a directory that its owner can write, or returns the existing one.
    ///
    /// # Errors
    /// It cannot be created, or the name belongs to an object that is not a directory (a symbolic link is not
    /// followed).
    fn make_dir(
        &self,
        dir: &Self::Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Self::Node, Error>> + Send;

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
        _from: &nfs3::File,
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

    /// Opens the temporary file for reading.
    ///
    /// # Errors
    /// It cannot be opened.
    fn read_back(&self, file: &Self::Writer) -> impl Future<Output = Result<Self::Reader, Error>> + Send;

    /// Sets the attributes of the temporary file and renames it to its final name.
    ///
    /// # Errors
    /// The attributes cannot be set, or the file cannot be renamed.
    fn publish(
        &self,
        file: &Self::Writer,
        meta: &Metadata,
        preserve: Preserve,
    ) -> impl Future<Output = Result<Self::Node, Error>> + Send;

    /// Removes the temporary file. Errors are ignored.
    fn discard(&self, file: &Self::Writer) -> impl Future<Output = ()> + Send;

    /// Creates a symbolic link `name` to `text`; replaces an existing object.
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

    /// Creates a hard link `name` to `file`; replaces an existing object.
    ///
    /// # Errors
    /// It cannot be created.
    fn link(
        &self,
        file: &Self::Node,
        dir: &Self::Node,
        name: &[u8],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Sets mode and times of a directory, and its owner with [`Preserve::owner`].
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
    fn random_numbers_of_temporary_names_differ() {
        assert_ne!(random(), random());
    }
}
