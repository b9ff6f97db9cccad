//! A directory of this machine as a [`FileSystem`].
//!
//! **Confinement.** An export is one directory on one mount. Names are single components, opened without following
//! anything, relative to the open directory; `..` is taken by us and stops at the root; a mount point inside the
//! export is refused ([`Access`](crate::FsError::Access)). A handle carries a keyed mark and is refused ([`BadHandle`](crate::FsError::BadHandle))
//! unless this export gave it out; a directory is also checked to lie beneath the root when it is opened by handle.
//! What is left: an object that someone on this machine moves out of the export stays reachable through handles given
//! out before (a directory until it is closed, a file for good), as with knfsd's `no_subtree_check`.
//!
//! **Handles** ([`HandleMode`]) are the kernel's file handles where the file system and our rights
//! (`CAP_DAC_READ_SEARCH`) allow: they survive restarts and renames by anyone. The key of the mark survives too, in
//! an extended attribute of the root or a file ([`KeySource`]). Elsewhere a handle names an inode number and time of
//! birth, found through an index of places that is rebuilt by walking the export when need be; see `index` for
//! its limits.
//!
//! **Identity** ([`IdentityMode`]). Run by root, the server takes the caller's user, group and groups for each call on
//! the thread that makes it, so the kernel's own rules apply, ACLs included; root without the right to do that is refused.
//! Run by another user, or by choice, every call is made as the server's user, and new objects are that user's. Callers
//! other than that user and uid 0 are checked first, by the mode bits and the rules of POSIX for chown, chmod and mknod.
//! In both cases an owner may read and write its file whatever the mode, as NFS servers do. A permission to
//! read or write is remembered for a second.
//!
//! **Durability.** Stable writes use `RWF_SYNC` or `RWF_DSYNC`, COMMIT is `fsync`, and with
//! [`LocalConfig::sync_metadata`] changes of names and attributes are synced before they are answered. When the
//! kernel reports that written data was lost, the write verifier changes, so that clients send it again. For that
//! report a descriptor with unstable writes stays open until it is synced (`data_file`).
//!
//! **Weak cache consistency.** Others change these files too, so `before` attributes would not be atomic with the
//! change and are never given (RFC 1813 section 2.6, `wcc_data`). For the same reason a guard of SETATTR is atomic
//! only with respect to other calls here.
//!
//! Nothing blocks the caller: file data goes through io_uring (or threads, where it is refused), everything else
//! through a small pool of threads.

mod attr;
mod cred;
mod data;
mod data_file;
mod descriptors;
mod dir;
mod engine;
mod errno;
mod handle;
mod index;
mod key;
mod mac;
mod names;
mod node;
mod object;
mod pool;
mod setup;
mod sys;
#[cfg(test)]
mod tests;
mod transfer;
mod tree;
mod uring;

use std::sync::Arc;

use data::Purpose;
pub use key::secret_file;
use setup::Export;
pub use setup::{HandleMode, IdentityMode, IoMode, KeySource, LocalConfig, LocalError};
use transfer::Work;

use crate::{
    Access, Attr, CreateHow, Created, DirPage, FileSystem, FsInfo, FsResult, FsStat, Handle, Identity,
    MaybeReady, NewNode, Op, Read, ReadDirLimits, SetAttr, Stability, Time, Views, Wcc, Written,
};

/// A directory of this machine, served.
pub struct LocalFs {
    export: Arc<Export>,
}

impl LocalFs {
    /// Opens the directory of `config` and starts its threads.
    ///
    /// # Errors
    /// When the directory cannot be opened, or what the configuration insists on is not to be had.
    pub fn open(config: LocalConfig) -> Result<Arc<Self>, LocalError> {
        Ok(Arc::new(Self { export: Arc::new(Export::open(config)?) }))
    }

    /// Whether handles are the kernel's (else inode numbers with an index).
    pub fn uses_kernel_handles(&self) -> bool {
        self.export.tree.by_kernel()
    }

    /// Whether file data goes through io_uring (else blocking threads).
    pub fn uses_io_uring(&self) -> bool {
        self.export.engine.is_io_uring()
    }

    /// Whether calls are made with the callers' own ids (else as the server's user, after a check).
    pub fn takes_identities(&self) -> bool {
        self.export.creds.by_kernel()
    }

    /// Objects that are open at the moment.
    pub fn open_objects(&self) -> usize {
        self.export.tree.cache.len()
    }

    /// Runs `f` on a thread that may block.
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

    fn setattr(&self, who: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc> {
        let (who, file, set) = (who.clone(), *file, *set);
        self.blocking(move |e| e.setattr(&who, &file, &set, guard))
    }

    fn lookup(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        let (who, dir, name) = (who.clone(), *dir, name.to_vec());
        self.blocking(move |e| e.lookup(&who, &dir, &name))
    }

    fn access(&self, who: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)> {
        let (who, file) = (who.clone(), *file);
        self.blocking(move |e| e.access(&who, &file, wanted))
    }

    fn readlink(&self, who: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)> {
        let (who, link) = (who.clone(), *link);
        self.blocking(move |e| e.readlink(&who, &link))
    }

    fn read(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        let (export, who, file) = (Arc::clone(&self.export), who.clone(), *file);
        MaybeReady::wait(async move {
            let fd = data::open(&export, who, file, Purpose::Read).await?;
            let out = export.engine.submit(fd, offset, Work::Read { count }).await?;
            export.finish_read(offset, count, out)
        })
    }

    fn write(
        &self,
        who: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        stable: Stability,
    ) -> Op<Written> {
        let (export, who, file) = (Arc::clone(&self.export), who.clone(), *file);
        MaybeReady::wait(async move {
            let fd = data::open(&export, who, file, Purpose::Write).await?;
            let via = data::writer(&export, &fd, stable).await?;
            let out = export.engine.submit(Arc::clone(&via), offset, Work::Write { data, stable }).await;
            fd.keep_spare(via);
            export.finish_write(stable, out?)
        })
    }

    fn commit(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Wcc> {
        let (export, who, file) = (Arc::clone(&self.export), who.clone(), *file);
        MaybeReady::wait(async move {
            let fd = data::open(&export, who, file, Purpose::Sync).await?;
            let turn = Some(fd.begin_sync().await);
            let out = export.engine.submit(fd, offset, Work::Sync { count, turn }).await?;
            export.after(&out.stat)
        })
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.export.verifier.bytes()
    }

    fn create(&self, who: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created> {
        let (who, dir, name, how) = (who.clone(), *dir, name.to_vec(), *how);
        self.blocking(move |e| e.create(&who, &dir, &name, &how))
    }

    fn make(&self, who: &Identity, dir: &Handle, name: &[u8], node: &NewNode, set: &SetAttr) -> Op<Created> {
        let (who, dir, name, node, set) = (who.clone(), *dir, name.to_vec(), node.clone(), *set);
        self.blocking(move |e| e.make(&who, &dir, &name, &node, &set))
    }

    fn remove(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        let (who, dir, name) = (who.clone(), *dir, name.to_vec());
        self.blocking(move |e| e.unlink(&who, &dir, &name, false))
    }

    fn rmdir(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        let (who, dir, name) = (who.clone(), *dir, name.to_vec());
        self.blocking(move |e| e.unlink(&who, &dir, &name, true))
    }

    fn rename(
        &self,
        who: &Identity,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Op<(Wcc, Wcc)> {
        let (who, from_dir, from, to_dir, to) = (who.clone(), *from_dir, from.to_vec(), *to_dir, to.to_vec());
        self.blocking(move |e| e.rename(&who, (&from_dir, &from), (&to_dir, &to)))
    }

    fn link(&self, who: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)> {
        let (who, file, dir, name) = (who.clone(), *file, *dir, name.to_vec());
        self.blocking(move |e| e.link(&who, &file, &dir, &name))
    }

    fn readdir(
        &self,
        who: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        let (who, dir) = (who.clone(), *dir);
        self.blocking(move |e| e.readdir(&who, &dir, cookie, verifier, limits))
    }
}
