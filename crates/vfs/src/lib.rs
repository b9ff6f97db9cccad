//! The handle-based, asynchronous [`FileSystem`] trait and its implementations.
//!
//! Data is passed by reference ([`millrace_buffer::Views`]). Calls return [`MaybeReady`]: a file system that
//! keeps its data in memory completes at once without allocating; others return a `'static` future that owns
//! its state. No call blocks the calling thread.

#[cfg(feature = "rustix")]
mod errno;
mod error;
pub mod memory;
mod types;

use std::sync::Arc;

pub use error::{FsError, FsResult};
pub use millrace_buffer::{Arena, Views};
pub use millrace_runtime::MaybeReady;
pub use types::{
    Access, Attr, CreateHow, Created, DirEntry, DirPage, FileKind, FsInfo, FsStat, Handle, Identity, NewNode,
    Read, SetAttr, SetTime, Stability, Time, Wcc, WccAttr, Written,
};

/// Result of a file system call.
pub type Op<T> = MaybeReady<'static, FsResult<T>>;

/// A file system accessed by handles; the backend of an export.
///
/// Each call passes the caller's [`Identity`] (after the export's squashing) and checks permissions as POSIX
/// does; uid 0 is privileged. Names are bytes. Implementations reject `/`, NUL, empty names and names longer
/// than [`FsInfo::name_max`], and handle `.` and `..` as described in RFC 1813 section 3.3. `..` of the root
/// is the root. Errors are those of RFC 1813 for the procedure of the same name. Calls may come from several
/// threads at once; each is atomic unless its documentation says otherwise.
pub trait FileSystem: Send + Sync + 'static {
    /// Handle of the root directory.
    fn root(&self) -> Handle;

    /// Static properties.
    fn info(&self) -> FsInfo;

    /// Space and file counts.
    fn stat(&self) -> Op<FsStat>;

    /// Returns the attributes of `file`.
    fn getattr(&self, file: &Handle) -> Op<Attr>;

    /// Sets attributes. With `guard`, only if the file's ctime equals it ([`FsError::NotSync`] otherwise). A
    /// size change truncates the file or extends it with a hole.
    fn setattr(&self, caller: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc>;

    /// Looks up `name` in `dir`.
    fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)>;

    /// Returns which of the `wanted` rights `caller` has (advisory), and the attributes.
    fn access(&self, caller: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)>;

    /// Returns the target of a symbolic link.
    fn readlink(&self, caller: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)>;

    /// Reads up to `count` bytes at `offset`. The data is returned by reference if it is in memory, otherwise
    /// in buffers of the file system's arena. Fewer bytes are returned only at the end of the file.
    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read>;

    /// Writes `data` at `offset`. The file system may keep the views as file content instead of copying. With
    /// [`Stability::FileSync`] or [`Stability::DataSync`] the data is durable when the call completes.
    fn write(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        stable: Stability,
    ) -> Op<Written>;

    /// Makes earlier unstable writes to `offset..offset + count` durable (`count` 0: to the end of the file).
    fn commit(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Wcc>;

    /// The write verifier; changes whenever unstable writes may have been lost (RFC 1813 section 3.3.21).
    fn write_verifier(&self) -> [u8; 8];

    /// Creates a regular file. `Exclusive` stores the verifier durably, and succeeds again for the same
    /// verifier.
    fn create(&self, caller: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created>;

    /// Creates a directory, symbolic link or special file. [`FsError::Exist`] if the name exists.
    fn create_node(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        node: &NewNode,
        set: &SetAttr,
    ) -> Op<Created>;

    /// Removes a name other than a directory ([`FsError::IsDir`]). Handles become stale when the last link is
    /// removed.
    fn remove(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc>;

    /// Removes an empty directory.
    fn rmdir(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc>;

    /// Renames atomically, replacing an existing target. Returns the changes of both directories.
    fn rename(
        &self,
        caller: &Identity,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Op<(Wcc, Wcc)>;

    /// Creates a hard link. Returns the file's attributes and the change of the directory.
    fn link(&self, caller: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)>;

    /// Lists the entries of `dir` after `cookie` (0: from the start, `.` and `..` first): at most
    /// `max_entries`, and until the names add up to `max_name_bytes` (but at least one entry if there is
    /// one). With `plus`, attributes and handles are included. Cookies are never 0 and stay valid while the
    /// directory changes: an entry that exists during the whole scan is listed exactly once. `verifier` is
    /// the one returned with the first page (zero with cookie 0); [`FsError::BadCookie`] if it is no longer
    /// valid.
    fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage>;
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
