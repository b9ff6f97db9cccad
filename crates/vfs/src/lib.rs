//! The handle-based, asynchronous [`FileSystem`] trait and the in-memory file system.
//!
//! Data is passed by reference ([`millrace_buffer::Views`]). Calls return [`MaybeReady`]: a file system that
//! keeps its data in memory completes at once without allocating; others return a `'static` future that owns
//! its state. No call blocks the calling thread.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod defaults;
#[cfg(feature = "rustix")]
mod errno;
mod error;
mod forward;
pub mod memory;
mod permission;
mod types;

use std::{ops::Range, sync::Arc};

pub use error::{FsError, FsResult};
pub use millrace_buffer::{Arena, Views};
pub use millrace_runtime::MaybeReady;
pub use types::{
    Access, Attr, Copied, CreateHow, Created, DirEntry, DirPage, FileKind, FsInfo, FsStat, Handle, Identity,
    NewNode, Read, SeekTarget, SetAttr, SetTime, SetXattr, Stability, Time, Wcc, WccAttr, Written,
    XATTR_LIST_MAX, XATTR_SIZE_MAX, check_copy,
};

/// Keeps a file; see [`FileSystem::hold`]. Dropping it does not block.
pub type Hold = Box<dyn std::any::Any + Send + Sync>;

/// Result of a file system call.
pub type Op<T> = MaybeReady<'static, FsResult<T>>;

/// A file system accessed by handles; the backend of an export.
///
/// Each call passes the caller's [`Identity`] (after the export's squashing) and checks permissions as POSIX
/// does ([`Attr::rights`]); uid 0 is privileged. Names are bytes. Implementations reject `/`, NUL, empty names
/// and names longer than [`FsInfo::name_max`], and handle `.` and `..` as described in RFC 1813 section 3.3.
/// `..` of the root is the root. Errors are those of RFC 1813 for the procedure of the same name. Calls may
/// come from several threads at once; each is atomic unless its documentation states otherwise.
///
/// # Required and default methods
///
/// A read-only file system implements the first five methods. [`FsInfo`] declares what else it supports, and
/// the conformance suite (Cargo feature `conformance`) tests it accordingly. A file system that forwards calls
/// to another one forwards all methods, those that it does not change with [`forward!`](crate::forward!).
///
/// | method | default |
/// |---|---|
/// | [`root`](Self::root), [`getattr`](Self::getattr), [`lookup`](Self::lookup), [`read`](Self::read), [`readdir`](Self::readdir) | required |
/// | [`info`](Self::info) | [`FsInfo::default`]: read-only, no links |
/// | [`stat`](Self::stat) | all counts 0, which means unknown |
/// | [`access`](Self::access) | [`Attr::rights`]; without the rights to change if not [`FsInfo::writable`] |
/// | [`readlink`](Self::readlink) | [`FsError::Inval`]: the object is not a symbolic link |
/// | [`setattr`](Self::setattr), [`write`](Self::write), [`commit`](Self::commit), [`create`](Self::create), [`create_node`](Self::create_node), [`remove`](Self::remove), [`rmdir`](Self::rmdir), [`rename`](Self::rename), [`link`](Self::link) | [`FsError::RoFs`]; [`FsError::NotSupp`] if [`FsInfo::writable`] |
/// | [`allocate`](Self::allocate), [`deallocate`](Self::deallocate), [`zero`](Self::zero), [`copy`](Self::copy), [`clone_range`](Self::clone_range) | as `write` |
/// | [`seek`](Self::seek) | [`FsError::NotSupp`] |
/// | [`xattr`](Self::xattr), [`list_xattrs`](Self::list_xattrs) | [`FsError::NotSupp`] |
/// | [`set_xattr`](Self::set_xattr), [`remove_xattr`](Self::remove_xattr) | as `write` |
/// | [`hold`](Self::hold) | `None`: no file is kept |
/// | [`write_verifier`](Self::write_verifier) | different in each process |
///
/// No default makes data durable: a file system that implements [`write`](Self::write) either completes every
/// write with [`Stability::FileSync`] or implements [`commit`](Self::commit) too.
pub trait FileSystem: Send + Sync + 'static {
    /// Handle of the root directory.
    fn root(&self) -> Handle;

    /// Returns the attributes of `file`.
    fn getattr(&self, file: &Handle) -> Op<Attr>;

    /// Looks up `name` in `dir`.
    fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)>;

    /// Reads up to `count` bytes at `offset`. The data is returned by reference if it is in memory, otherwise
    /// in buffers of the file system's arena. Fewer bytes are returned only at the end of the file.
    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read>;

    /// Lists the entries of `dir`, `.` and `..` included, after `cookie` (0: from the start): at most
    /// `max_entries`, and until the names add up to `max_name_bytes` (but at least one entry if there is
    /// one). With `plus`, attributes and handles are included where they are available. Cookies are never 0
    /// and stay valid while the directory changes: an entry that exists during the whole scan is listed
    /// exactly once. `verifier` is the one returned with the first page (zero with cookie 0);
    /// [`FsError::BadCookie`] if it is no longer valid.
    fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage>;

    /// Static properties.
    fn info(&self) -> FsInfo {
        FsInfo::default()
    }

    /// Space and file counts.
    fn stat(&self) -> Op<FsStat> {
        Op::Ready(Ok(FsStat::default()))
    }

    /// Returns which of the `wanted` rights `caller` has (advisory), and the attributes.
    fn access(&self, caller: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)> {
        let caller = caller.clone();
        let changes = Access::MODIFY | Access::EXTEND | Access::DELETE;
        let possible = if self.info().writable { wanted.0 } else { wanted.0 & !changes };
        self.getattr(file).map(move |attr| attr.map(|a| (Access(a.rights(&caller).0 & possible), a)))
    }

    /// Returns the target of a symbolic link.
    fn readlink(&self, _caller: &Identity, _link: &Handle) -> Op<(Vec<u8>, Attr)> {
        Op::Ready(Err(FsError::Inval))
    }

    /// Sets attributes. With `guard`, only if the file's ctime equals it ([`FsError::NotSync`] otherwise). A
    /// size change truncates the file or extends it with a hole.
    fn setattr(&self, _caller: &Identity, _file: &Handle, _set: &SetAttr, _guard: Option<Time>) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// Writes `data` at `offset`. The file system may keep the views as file content instead of copying. With
    /// [`Stability::FileSync`] or [`Stability::DataSync`] the data is durable when the call completes.
    fn write(
        &self,
        _caller: &Identity,
        _file: &Handle,
        _offset: u64,
        _data: Views,
        _stable: Stability,
    ) -> Op<Written> {
        defaults::unsupported(&self.info())
    }

    /// Makes earlier unstable writes to `offset..offset + count` durable (`count` 0: to the end of the file).
    fn commit(&self, _caller: &Identity, _file: &Handle, _offset: u64, _count: u32) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// Frees the storage of `offset..offset + length`, which then reads as zeros: `FALLOC_FL_PUNCH_HOLE` with
    /// `FALLOC_FL_KEEP_SIZE` of fallocate(2), DEALLOCATE (RFC 7862 section 15.4). The size of the file does not
    /// change; the part of the range beyond it is ignored. Storage may be freed in whole blocks only. Needs the
    /// permissions of a write, and is durable after [`commit`](Self::commit), as an unstable write. A `length`
    /// of 0 changes nothing.
    ///
    /// # Errors
    /// [`FsError::Inval`] if `offset + length` exceeds `u64::MAX`. [`FsError::NotSupp`] if the storage of this
    /// file cannot be freed. Otherwise as for [`write`](Self::write).
    fn deallocate(&self, _caller: &Identity, _file: &Handle, _offset: u64, _length: u64) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// Writes zeros to `offset..offset + length` without a transfer of data (`FALLOC_FL_ZERO_RANGE` of
    /// fallocate(2)), and extends the file as a write does. Storage stays allocated, or becomes allocated,
    /// where the file system can do this. Needs the permissions of a write, and is durable after
    /// [`commit`](Self::commit), as an unstable write. Not atomic: other calls may find a part of the range
    /// zeroed, and after an error a part may remain zeroed. A `length` of 0 changes nothing.
    ///
    /// # Errors
    /// [`FsError::Inval`] if `offset + length` exceeds `u64::MAX`; [`FsError::FBig`] if it exceeds
    /// [`FsInfo::max_file_size`]. Otherwise as for [`write`](Self::write).
    fn zero(&self, _caller: &Identity, _file: &Handle, _offset: u64, _length: u64) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// Ensures storage for `offset..offset + length`, and extends the file to the end of the range as a write
    /// does: fallocate(2) without flags, ALLOCATE (RFC 7862 section 15.1). Existing data does not change, and the
    /// rest of the range reads as zeros. A file system without reservations only extends the file. Needs the
    /// permissions of a write, and is durable after [`commit`](Self::commit), as an unstable write. Not atomic:
    /// after an error a part of the range may remain allocated, without an extension of the file beyond it. A
    /// `length` of 0 changes nothing.
    ///
    /// # Errors
    /// [`FsError::Inval`] if `offset + length` exceeds `u64::MAX`; [`FsError::FBig`] if it exceeds
    /// [`FsInfo::max_file_size`]. [`FsError::NotSupp`] if storage of this file cannot be reserved. Otherwise as
    /// for [`write`](Self::write).
    fn allocate(&self, _caller: &Identity, _file: &Handle, _offset: u64, _length: u64) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// Returns the offset of the first byte of the `target` kind in `range`: `SEEK_DATA` and `SEEK_HOLE` of
    /// lseek(2), SEEK (RFC 7862 section 15.11). `None` if there is none, or if the range does not begin below the size of
    /// the file. The end of the file is a hole. Holes read as zeros; a file system may report zeros as data. Needs the
    /// permissions of [`read`](Self::read), and fails as it does. Not atomic: the file may change during a long search.
    fn seek(
        &self,
        _caller: &Identity,
        _file: &Handle,
        _range: Range<u64>,
        _target: SeekTarget,
    ) -> Op<Option<u64>> {
        Op::Ready(Err(FsError::NotSupp))
    }

    /// Copies up to `length` bytes from `source_offset` of `source` to `destination_offset` of `destination`:
    /// copy_file_range(2), COPY (RFC 7862 section 15.2). May copy less, to bound the work of a call; copies
    /// nothing only if `length` is 0 or the source ends at or before `source_offset`. Extends the destination as a
    /// write does. Needs the permissions of [`read`](Self::read) and [`write`](Self::write). Not atomic: other
    /// calls may find a part of the range copied.
    ///
    /// # Errors
    /// [`FsError::Inval`] if both ranges are in one file and overlap, or an end exceeds `u64::MAX`;
    /// [`FsError::FBig`] if the destination's end exceeds [`FsInfo::max_file_size`]; [`FsError::XDev`] if the file
    /// system cannot copy between these files. Otherwise as for `read` and `write`.
    fn copy(
        &self,
        _caller: &Identity,
        _source: &Handle,
        _source_offset: u64,
        _destination: &Handle,
        _destination_offset: u64,
        _length: u64,
    ) -> Op<Copied> {
        defaults::unsupported(&self.info())
    }

    /// Makes `length` bytes of `destination` share the storage of `source`: FICLONERANGE of ioctl_ficlonerange(2), CLONE
    /// (RFC 7862 section 15.13). Later writes to either file do not change the other one. Offsets and length are
    /// multiples of [`FsInfo::clone_block`]; a range that ends at the end of the source may have another length, unless
    /// the destination continues after it. Extends the destination as a write does. Needs the permissions of
    /// [`read`](Self::read) and [`write`](Self::write). Atomic, and durable when it completes.
    ///
    /// # Errors
    /// [`FsError::Inval`] if the range exceeds the source, is not aligned, or overlaps in one file; [`FsError::NotSupp`] or
    /// [`FsError::XDev`] if these files cannot share storage. Otherwise as for `read` and `write`.
    fn clone_range(
        &self,
        _caller: &Identity,
        _source: &Handle,
        _source_offset: u64,
        _destination: &Handle,
        _destination_offset: u64,
        _length: u64,
    ) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// The write verifier; changes whenever unstable writes may have been lost (RFC 1813 section 3.3.21). The
    /// default is constant in a process and differs between processes. A file system that can lose unstable
    /// writes while the process runs, for example when it is closed and opened again, needs its own.
    fn write_verifier(&self) -> [u8; 8] {
        defaults::process_verifier()
    }

    /// Creates a regular file. `Exclusive` stores the verifier durably, and succeeds again for the same
    /// verifier. If the file can exist without the attributes of the creation, for example after a crash, the repetition
    /// sets them, with the rights of the caller: the times of a file, which others can read, may be its verifier.
    fn create(&self, _caller: &Identity, _dir: &Handle, _name: &[u8], _how: &CreateHow) -> Op<Created> {
        defaults::unsupported(&self.info())
    }

    /// Creates a directory, symbolic link or special file. [`FsError::Exist`] if the name exists.
    /// [`FsError::BadType`] or [`FsError::NotSupp`] for types that the file system does not support.
    fn create_node(
        &self,
        _caller: &Identity,
        _dir: &Handle,
        _name: &[u8],
        _node: &NewNode,
        _set: &SetAttr,
    ) -> Op<Created> {
        defaults::unsupported(&self.info())
    }

    /// Returns the value of an extended attribute of a file or directory: getxattr(2) in the namespace `user`, GETXATTR
    /// (RFC 8276 section 8.4.1). `name` has no prefix. Needs read permission.
    ///
    /// # Errors
    /// [`FsError::NoXattr`]; [`FsError::Inval`] or [`FsError::NameTooLong`] for an invalid name.
    fn xattr(&self, _caller: &Identity, _file: &Handle, _name: &[u8]) -> Op<Vec<u8>> {
        Op::Ready(Err(FsError::NotSupp))
    }

    /// Sets an extended attribute: setxattr(2), SETXATTR. It is a change of metadata, as by
    /// [`setattr`](Self::setattr). Needs write permission, and in a sticky directory ownership.
    ///
    /// # Errors
    /// [`FsError::Exist`] or [`FsError::NoXattr`] according to `how`; [`FsError::XattrTooBig`] for more than
    /// [`XATTR_SIZE_MAX`] bytes, or more than the file system stores; [`FsError::NoSpc`], also if the list of names exceeds
    /// [`XATTR_LIST_MAX`] bytes; [`FsError::Perm`] for an object that is neither a file nor a directory; those of an
    /// invalid name.
    fn set_xattr(
        &self,
        _caller: &Identity,
        _file: &Handle,
        _name: &[u8],
        _value: &[u8],
        _how: SetXattr,
    ) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// The names of the extended attributes, in any order: listxattr(2), LISTXATTRS. They have at most
    /// [`XATTR_LIST_MAX`] bytes together. Needs read permission.
    fn list_xattrs(&self, _caller: &Identity, _file: &Handle) -> Op<Vec<Vec<u8>>> {
        Op::Ready(Err(FsError::NotSupp))
    }

    /// Removes an extended attribute: removexattr(2), REMOVEXATTR. Needs the permissions of
    /// [`set_xattr`](Self::set_xattr).
    ///
    /// # Errors
    /// [`FsError::NoXattr`]; those of an invalid name.
    fn remove_xattr(&self, _caller: &Identity, _file: &Handle, _name: &[u8]) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// Keeps a regular file usable, also after its last link is removed by a call of this file system: its handle
    /// stays valid, and its space allocated, until the last [`Hold`] is dropped. A file that has no links may be held,
    /// too, while another hold exists. `None` if the file system, or this file, cannot be held. Holds do not survive
    /// the file system: it may lose a file without links at its next start.
    fn hold(&self, _file: &Handle) -> Op<Option<Hold>> {
        Op::Ready(Ok(None))
    }

    /// Removes a name other than a directory ([`FsError::IsDir`]). Handles become stale when the last link is
    /// removed, and the last [`Hold`] is dropped.
    fn remove(&self, _caller: &Identity, _dir: &Handle, _name: &[u8]) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// Removes an empty directory.
    fn rmdir(&self, _caller: &Identity, _dir: &Handle, _name: &[u8]) -> Op<Wcc> {
        defaults::unsupported(&self.info())
    }

    /// Renames atomically, replacing an existing target. Returns the changes of both directories.
    fn rename(
        &self,
        _caller: &Identity,
        _from_dir: &Handle,
        _from: &[u8],
        _to_dir: &Handle,
        _to: &[u8],
    ) -> Op<(Wcc, Wcc)> {
        defaults::unsupported(&self.info())
    }

    /// Creates a hard link. Returns the file's attributes and the change of the directory.
    fn link(&self, _caller: &Identity, _file: &Handle, _dir: &Handle, _name: &[u8]) -> Op<(Attr, Wcc)> {
        defaults::unsupported(&self.info())
    }
}

/// Limits of one page of [`FileSystem::readdir`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDirLimits {
    /// Maximum number of entries.
    pub max_entries: usize,
    /// Maximum total length of the names, in bytes.
    pub max_name_bytes: usize,
    /// Include attributes and handles.
    pub plus: bool,
}

/// A shared file system.
pub type FileSystemRef = Arc<dyn FileSystem>;
