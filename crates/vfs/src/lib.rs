//! The [`FileSystem`] trait, handle based and asynchronous, and its implementations.
//!
//! Data goes in and out by reference ([`millrace_buffer::Views`]). Calls return [`MaybeReady`]: a file system that answers
//! from memory is ready at once and allocates nothing; one that has to wait gives a `'static` future that owns what
//! it needs. Nothing here may block the calling thread.

mod error;
pub mod local;
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

/// The outcome of a file system call.
pub type Op<T> = MaybeReady<'static, FsResult<T>>;

/// A file system reached by handles: what an export offers.
///
/// Every call takes the caller's [`Identity`] (already squashed by the export's policy) and checks permissions with
/// it, POSIX style; uid 0 may do everything. Names are bytes; implementations refuse `/`, NUL, the empty name and
/// names over [`FsInfo::name_max`], and treat `.` and `..` as RFC 1813 section 3.3 says. `..` at the root is the root.
/// Errors are those of RFC 1813 for the procedure of the same name. Calls may come from several threads at once; each
/// is atomic with respect to the others unless its documentation says otherwise.
pub trait FileSystem: Send + Sync + 'static {
    /// The root directory's handle.
    fn root(&self) -> Handle;

    /// Fixed properties.
    fn info(&self) -> FsInfo;

    /// Space and file counts.
    fn stat(&self) -> Op<FsStat>;

    /// Attributes of `file`.
    fn getattr(&self, file: &Handle) -> Op<Attr>;

    /// Changes attributes. With `guard`, only if the file's ctime still equals it ([`FsError::NotSync`] otherwise).
    /// A size change truncates or extends with a hole.
    fn setattr(&self, who: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc>;

    /// Finds `name` in `dir`.
    fn lookup(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)>;

    /// Which of the `wanted` rights `who` has, as a hint, and the attributes.
    fn access(&self, who: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)>;

    /// The target of a symbolic link.
    fn readlink(&self, who: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)>;

    /// Up to `count` bytes from `offset`, by reference where the data is in memory, else in buffers of the arena the
    /// file system was made with. Short only at the end of the file.
    fn read(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read>;

    /// Writes `data` at `offset`. The file system may keep the views as the file's content instead of copying.
    /// With [`Stability::FileSync`] or [`Stability::DataSync`] the data is durable before the outcome is ready.
    fn write(
        &self,
        who: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        stable: Stability,
    ) -> Op<Written>;

    /// Makes earlier unstable writes to `offset..offset + count` durable (`count` 0: to the end).
    fn commit(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Wcc>;

    /// The write verifier: changes whenever unstable writes may have been lost (RFC 1813 section 3.3.21).
    fn write_verifier(&self) -> [u8; 8];

    /// Creates a regular file. `Exclusive` stores the verifier durably and succeeds again for the same one.
    fn create(&self, who: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created>;

    /// Creates a directory, symbolic link or special file; [`FsError::Exist`] if the name is taken.
    fn make(&self, who: &Identity, dir: &Handle, name: &[u8], node: &NewNode, set: &SetAttr) -> Op<Created>;

    /// Removes a name that is not a directory's ([`FsError::IsDir`]). Open handles go stale when the last link goes.
    fn remove(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc>;

    /// Removes an empty directory.
    fn rmdir(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc>;

    /// Renames, replacing the target if there is one, atomically. Gives the two directories' changes.
    fn rename(
        &self,
        who: &Identity,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Op<(Wcc, Wcc)>;

    /// Makes a hard link. Gives the file's attributes and the directory's change.
    fn link(&self, who: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)>;

    /// Entries of `dir` after `cookie` (0: from the start, `.` and `..` first), at most `max_entries`, stopping once
    /// their names sum to `max_name_bytes` (at least one entry is given if there is one). With `plus`, attributes and
    /// handles come along. Cookies are never 0 and stay valid while the directory changes: an entry that exists
    /// during the whole scan appears exactly once. `verifier` is what the first page gave (all zero with cookie 0);
    /// [`FsError::BadCookie`] if it is no longer valid.
    fn readdir(
        &self,
        who: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage>;
}

/// Bounds of one page of [`FileSystem::readdir`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDirLimits {
    /// The most entries.
    pub max_entries: usize,
    /// Stop once the names given sum to this many bytes.
    pub max_name_bytes: usize,
    /// Give attributes and handles too.
    pub plus: bool,
}

/// How code holds a file system.
pub type FileSystemRef = Arc<dyn FileSystem>;
