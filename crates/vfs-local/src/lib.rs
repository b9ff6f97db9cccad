//! A local directory as a [`FileSystem`].
//!
//! **Confinement.** An export is one directory on one mount. Names are single components, opened relative to
//! an open directory without following symbolic links; `..` is handled here and stops at the root; mount
//! points inside the export are the directories that they cover or, without `CAP_SYS_ADMIN`, are rejected
//! ([`FsError::Access`](millrace_vfs::FsError::Access)). A handle
//! contains a message authentication code and is rejected
//! ([`FsError::BadHandle`](millrace_vfs::FsError::BadHandle)) unless this export issued it; a directory
//! opened by handle is also verified to be beneath the root. Limitation: an object that a local process moves
//! out of the export stays accessible through handles issued before (a directory until it is closed, a file
//! permanently), as with knfsd's `no_subtree_check`.
//!
//! **Handles** ([`HandleMode`]) are kernel file handles where the file system and the process's privileges
//! (`CAP_DAC_READ_SEARCH`) allow: they survive restarts and all renames. The authentication key is persistent
//! too, in an extended attribute of the root or in a file ([`KeySource`]). Otherwise a handle contains an
//! inode number and birth time, and an index maps it to a location; the index is rebuilt by walking the
//! export when necessary. See `index` for its limits.
//!
//! **Identity** ([`IdentityMode`]). As root, the server sets the caller's user, group and supplementary
//! groups on the executing thread for each call, so that the kernel's rules apply, including ACLs; root
//! without the capability to do so is rejected. As another user, or if configured, all calls use the server's
//! credentials, and new objects belong to the server's user. Callers other than that user and uid 0 are
//! checked first, by mode bits and the POSIX rules for chown, chmod and mknod. In both cases an owner may
//! read and write its file regardless of the mode, as with other NFS servers. A permission to read or write
//! is cached for a second.
//!
//! **Durability.** Stable writes use `RWF_SYNC` or `RWF_DSYNC`, COMMIT is `fsync`, and with
//! [`LocalConfig::sync_metadata`] changes of names and attributes are synced before the call completes. When
//! the kernel reports lost data, the write verifier changes, so that clients resend it. To get that report, a
//! descriptor with unstable writes stays open until it is synced (`data_file`).
//!
//! **Sparse files.** Ranges are deallocated and zeroed with fallocate(2); where the file system has no
//! `FALLOC_FL_ZERO_RANGE` (tmpfs), zeros are written, and without `FALLOC_FL_PUNCH_HOLE` deallocation fails with
//! [`FsError::NotSupp`](millrace_vfs::FsError::NotSupp).
//!
//! **Open files without links.** A file that NFSv4 clients have open stays usable when its last name is removed through
//! this server (`holds`). Each such file keeps a descriptor; their number is limited, and beyond the limit the file is
//! gone, as when a local process removes it, or the server restarts.
//!
//! **Weak cache consistency.** Local processes may change the files too, so `before` attributes would not be
//! atomic with the change and are never returned (RFC 1813 section 2.6, `wcc_data`). For the same reason the
//! guard of SETATTR is atomic only with respect to other calls of this server.
//!
//! No call blocks its caller: file data goes through io_uring (or threads, if it is not available),
//! everything else through a small thread pool.

mod attr;
mod copy;
mod cred;
mod data;
mod data_file;
mod descriptors;
mod dir;
mod engine;
mod handle;
mod holds;
mod index;
mod kept;
mod key;
mod mac;
mod names;
mod node;
mod object;
mod pool;
mod ranges;
mod setup;
mod sys;
#[cfg(test)]
mod tests;
mod transfer;
mod tree;
mod uring;
mod xattr;

use std::{ops::Range, sync::Arc};

use data::Purpose;
pub use key::secret_file;
use millrace_vfs::{
    Access, Attr, Copied, CreateHow, Created, DirPage, FileSystem, FsInfo, FsResult, FsStat, Handle, Hold,
    Identity, MaybeReady, NewNode, Op, Read, ReadDirLimits, SeekTarget, SetAttr, SetXattr, Stability, Time,
    Views, Wcc, Written,
};
use setup::Export;
pub use setup::{HandleMode, IdentityMode, IoMode, KeySource, LocalConfig, LocalError};
use transfer::{Operation, RangeChange};

/// An exported local directory.
pub struct LocalFs {
    export: Arc<Export>,
}

impl LocalFs {
    /// Opens the directory of `config` and starts the threads.
    ///
    /// # Errors
    /// The directory cannot be opened, or a required feature is not available.
    pub fn open(config: LocalConfig) -> Result<Arc<Self>, LocalError> {
        Ok(Arc::new(Self { export: Arc::new(Export::open(config)?) }))
    }

    /// Whether handles are kernel file handles (otherwise inode numbers with an index).
    pub fn uses_kernel_handles(&self) -> bool {
        self.export.tree.by_kernel()
    }

    /// Whether file data goes through io_uring (otherwise blocking threads).
    pub fn uses_io_uring(&self) -> bool {
        self.export.engine.is_io_uring()
    }

    /// Whether calls use the callers' credentials (otherwise the server's, after a check).
    pub fn uses_caller_credentials(&self) -> bool {
        self.export.creds.by_kernel()
    }

    /// Number of open objects.
    pub fn open_objects(&self) -> usize {
        self.export.tree.cache.len()
    }

    /// Runs `f` on a pool thread.
    fn blocking<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Export) -> FsResult<T> + Send + 'static,
    ) -> MaybeReady<'static, FsResult<T>> {
        let export = Arc::clone(&self.export);
        MaybeReady::wait(self.export.pool.run(move || f(&export)))
    }
}

impl FileSystem for LocalFs {
    fn root(&self) -> Handle {
        self.export.tree.root().handle()
    }

    fn info(&self) -> FsInfo {
        self.export.info
    }

    fn stat(&self) -> Op<FsStat> {
        self.blocking(Export::space)
    }

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        if let Some(out) = self.export.getattr_now(file) {
            return MaybeReady::Ready(out);
        }
        let file = *file;
        self.blocking(move |e| e.getattr(&file))
    }

    fn setattr(&self, caller: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc> {
        let (caller, file, set) = (caller.clone(), *file, *set);
        self.blocking(move |e| e.setattr(&caller, &file, &set, guard))
    }

    fn clone_range(
        &self,
        caller: &Identity,
        source: &Handle,
        source_offset: u64,
        destination: &Handle,
        destination_offset: u64,
        length: u64,
    ) -> Op<Wcc> {
        let (export, caller) = (Arc::clone(&self.export), caller.clone());
        let (from, to) = ((*source, source_offset), (*destination, destination_offset));
        MaybeReady::wait(copy::clone_range(export, caller, from, to, length))
    }

    fn xattr(&self, caller: &Identity, file: &Handle, name: &[u8]) -> Op<Vec<u8>> {
        let (caller, file, name) = (caller.clone(), *file, name.to_vec());
        self.blocking(move |e| e.xattr(&caller, &file, &name))
    }

    fn set_xattr(
        &self,
        caller: &Identity,
        file: &Handle,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Op<Wcc> {
        let (caller, file, name, value) = (caller.clone(), *file, name.to_vec(), value.to_vec());
        self.blocking(move |e| e.change_xattr(&caller, &file, &name, Some((&value, how))))
    }

    fn list_xattrs(&self, caller: &Identity, file: &Handle) -> Op<Vec<Vec<u8>>> {
        let (caller, file) = (caller.clone(), *file);
        self.blocking(move |e| e.list_xattrs(&caller, &file))
    }

    fn remove_xattr(&self, caller: &Identity, file: &Handle, name: &[u8]) -> Op<Wcc> {
        let (caller, file, name) = (caller.clone(), *file, name.to_vec());
        self.blocking(move |e| e.change_xattr(&caller, &file, &name, None))
    }

    fn hold(&self, file: &Handle) -> Op<Option<Hold>> {
        if let Some(out) = self.export.hold_now(file) {
            return MaybeReady::Ready(out);
        }
        let (export, file) = (Arc::clone(&self.export), *file);
        MaybeReady::wait(self.export.pool.run(move || export.hold(&file)))
    }

    fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        let (caller, dir, name) = (caller.clone(), *dir, name.to_vec());
        self.blocking(move |e| e.lookup(&caller, &dir, &name))
    }

    fn access(&self, caller: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)> {
        let (caller, file) = (caller.clone(), *file);
        self.blocking(move |e| e.access(&caller, &file, wanted))
    }

    fn readlink(&self, caller: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)> {
        let (caller, link) = (caller.clone(), *link);
        self.blocking(move |e| e.readlink(&caller, &link))
    }

    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        let (export, caller, file) = (Arc::clone(&self.export), caller.clone(), *file);
        MaybeReady::wait(async move {
            let fd = data::open(&export, caller, file, Purpose::Read).await?;
            let out = export.engine.submit(fd, offset, Operation::Read { count }).await?;
            export.finish_read(offset, count, out)
        })
    }

    fn write(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        stable: Stability,
    ) -> Op<Written> {
        let (export, caller, file) = (Arc::clone(&self.export), caller.clone(), *file);
        MaybeReady::wait(async move {
            let fd = data::open(&export, caller, file, Purpose::Write).await?;
            let via = data::writer(&export, &fd, stable).await?;
            let out = export.engine.submit(Arc::clone(&via), offset, Operation::Write { data, stable }).await;
            fd.keep_spare(via);
            export.finish_write(stable, out?)
        })
    }

    fn commit(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Wcc> {
        let (export, caller, file) = (Arc::clone(&self.export), caller.clone(), *file);
        MaybeReady::wait(async move {
            let fd = data::open(&export, caller, file, Purpose::Sync).await?;
            let guard = Some(fd.start_sync().await);
            let out = export.engine.submit(fd, offset, Operation::Sync { count, guard }).await?;
            export.after(&out.stat)
        })
    }

    fn allocate(&self, caller: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        let (export, caller, file) = (Arc::clone(&self.export), caller.clone(), *file);
        MaybeReady::wait(ranges::change(export, caller, file, offset, length, RangeChange::Allocate))
    }

    fn deallocate(&self, caller: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        let (export, caller, file) = (Arc::clone(&self.export), caller.clone(), *file);
        MaybeReady::wait(ranges::change(export, caller, file, offset, length, RangeChange::Deallocate))
    }

    fn zero(&self, caller: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        let (export, caller, file) = (Arc::clone(&self.export), caller.clone(), *file);
        MaybeReady::wait(ranges::change(export, caller, file, offset, length, RangeChange::Zero))
    }

    fn seek(
        &self,
        caller: &Identity,
        file: &Handle,
        range: Range<u64>,
        target: SeekTarget,
    ) -> Op<Option<u64>> {
        let (export, caller, file) = (Arc::clone(&self.export), caller.clone(), *file);
        MaybeReady::wait(ranges::seek(export, caller, file, range, target))
    }

    fn copy(
        &self,
        caller: &Identity,
        source: &Handle,
        source_offset: u64,
        destination: &Handle,
        destination_offset: u64,
        length: u64,
    ) -> Op<Copied> {
        let (export, caller) = (Arc::clone(&self.export), caller.clone());
        let (from, to) = ((*source, source_offset), (*destination, destination_offset));
        MaybeReady::wait(copy::copy(export, caller, from, to, length))
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.export.verifier.bytes()
    }

    fn create(&self, caller: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created> {
        let (caller, dir, name, how) = (caller.clone(), *dir, name.to_vec(), *how);
        self.blocking(move |e| e.create(&caller, &dir, &name, &how))
    }

    fn create_node(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        node: &NewNode,
        set: &SetAttr,
    ) -> Op<Created> {
        let (caller, dir, name, node, set) = (caller.clone(), *dir, name.to_vec(), node.clone(), *set);
        self.blocking(move |e| e.create_node(&caller, &dir, &name, &node, &set))
    }

    fn remove(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        let (caller, dir, name) = (caller.clone(), *dir, name.to_vec());
        self.blocking(move |e| e.unlink(&caller, &dir, &name, false))
    }

    fn rmdir(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        let (caller, dir, name) = (caller.clone(), *dir, name.to_vec());
        self.blocking(move |e| e.unlink(&caller, &dir, &name, true))
    }

    fn rename(
        &self,
        caller: &Identity,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Op<(Wcc, Wcc)> {
        let (caller, from_dir, from, to_dir, to) =
            (caller.clone(), *from_dir, from.to_vec(), *to_dir, to.to_vec());
        self.blocking(move |e| e.rename(&caller, (&from_dir, &from), (&to_dir, &to)))
    }

    fn link(&self, caller: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)> {
        let (caller, file, dir, name) = (caller.clone(), *file, *dir, name.to_vec());
        self.blocking(move |e| e.link(&caller, &file, &dir, &name))
    }

    fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        let (caller, dir) = (caller.clone(), *dir);
        self.blocking(move |e| e.readdir(&caller, &dir, cookie, verifier, limits))
    }
}
