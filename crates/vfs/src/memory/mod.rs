//! In-memory file system.
//!
//! Content is stored in blocks of [`BLOCK_BYTES`] and pages of 4 KiB in the server's arena (`content`). A
//! read returns views of this memory; a write of whole blocks keeps the memory in which the data was
//! received. Nothing survives the process: COMMIT is a no-op, and after a restart all handles are stale.
//!
//! Zeros that a client writes with `zero` take no memory, as holes: the call deallocates, and later writes may
//! fail for lack of space.
//!
//! One arena quota covers all memory: slots of content, and heap memory of objects and names (`space`) and of blocks
//! that share slots (`content::shared`). It limits the memory of this file system and also reserves it: neither network
//! buffers nor other file systems can use it up.
//!
//! Reads do not update atime (as with `noatime`), so they need only a shared lock.
//!
//! # Locks
//!
//! There is no global lock. Each inode has one reader-writer lock for its attributes and its body, so each
//! operation on it is atomic, and operations on different files do not contend; finding an inode by handle
//! briefly takes one of 64 read locks of the inode table. An operation on several inodes locks directories
//! before their entries, ancestors before descendants, and two non-directories in the order of their index.
//! Only rename locks two unrelated directories, and renames are serialized (`rename_lock`), which also keeps
//! the ancestors of every directory constant during a rename. Locks are held only for the duration of one in-memory
//! operation or step.
//!
//! # Steps
//!
//! Calls complete at once ([`MaybeReady::Ready`]) unless they visit more than a thousand blocks. Such a call works in
//! steps, and other calls run between them:
//!
//! - A truncation removes the last blocks first: others see the size decrease, and the other attributes change in the last
//!   step. Deallocation and zeroing go from the start of the range to its end.
//! - CLONE stays atomic (`clone`).
//! - A removed file is gone at once; REMOVE and RENAME complete when its memory is free. After the last CLOSE a task frees
//!   it.

mod attributes;
mod clone;
mod content;
mod copy;
mod data;
mod directory;
mod freeing;
mod hold;
mod inode;
mod listing;
mod namespace;
mod permission;
mod rename;
mod space;
mod table;
#[cfg(test)]
mod tests;
mod xattr;
mod xattrs;

use std::{
    ops::{ControlFlow, Range},
    sync::{Arc, OnceLock, Weak},
};

use content::STEP;
use data::RangeChange;
use directory::Directory;
use freeing::Freeing;
use inode::{Body, Inode, InodeId, InodeState};
use millrace_buffer::{Arena, BLOCK_BYTES, Quota, View, Views};
use millrace_runtime::{MaybeReady, RuntimeExt, RuntimeRef, sync::Mutex, yield_now};
use space::ObjectCount;
use table::Table;

use crate::{
    Access, Attr, Copied, CreateHow, Created, DirPage, FileKind, FileSystem, FsError, FsInfo, FsResult,
    FsStat, Handle, Hold, Identity, NewNode, Op, Read, ReadDirLimits, SeekTarget, SetAttr, SetXattr,
    Stability, Time, Wcc, Written,
};

/// Maximum name length in bytes.
const NAME_MAX: usize = 255;
/// Maximum length of a symbolic link target in bytes.
const TARGET_MAX: usize = 4096;
/// Maximum file size: file offsets are signed in all clients.
const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// Configuration of a [`MemoryFs`].
#[derive(Clone)]
pub struct MemoryConfig {
    /// Maximum memory in bytes: content, in units of 4 KiB pages, and objects and names (about 630 bytes for
    /// an empty file, and 304 plus its length for each further name). Beyond it, calls fail with
    /// [`FsError::NoSpc`].
    pub capacity_bytes: u64,
    /// Maximum number of objects, including the root.
    pub max_files: u64,
    /// Arena for content. It must be the arena in which write data is received, since that memory is kept.
    /// `capacity_bytes` is in addition to the arena's limit.
    pub arena: Arena,
    /// File system ID ([`Attr::fsid`]).
    pub fsid: u64,
    /// Source of the time of day and of random numbers.
    pub runtime: RuntimeRef,
    /// Mode of the root directory (07777).
    pub root_mode: u32,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// Maximum number of hard links.
    pub link_max: u32,
}

impl MemoryConfig {
    /// Defaults: the capacity is the limit of `arena`, the number of files is limited only by space, 65,000
    /// links, and root directory mode 1777 like `/tmp`, since no user of the server could change it.
    pub fn new(arena: Arena, runtime: RuntimeRef) -> Self {
        Self {
            capacity_bytes: arena.stats().limit as u64,
            max_files: u64::from(u32::MAX),
            arena,
            fsid: 1,
            runtime,
            root_mode: 0o1777,
            root_owner: (0, 0),
            link_max: 65_000,
        }
    }
}

/// An in-memory file system.
pub struct MemoryFs {
    /// Itself, for holds.
    this: Weak<Self>,
    config: MemoryConfig,
    table: Table,
    root: InodeId,
    quota: Quota,
    objects: ObjectCount,
    /// Held during a rename.
    rename_lock: Mutex<()>,
    /// Random; distinguishes handles from those of other instances, including earlier ones.
    instance: u64,
    verifier: [u8; 8],
    /// [`BLOCK_BYTES`] zeros, for reads of holes.
    zeros: OnceLock<View>,
}

impl MemoryFs {
    /// Creates an empty file system.
    pub fn new(config: MemoryConfig) -> Arc<Self> {
        let mut verifier = [0; 8];
        config.runtime.fill_random(&mut verifier);
        let table = Table::new();
        let now = time_of(&config.runtime);
        let root = table.insert(|id| {
            let state = InodeState {
                mode: config.root_mode & 0o7777,
                nlink: 2,
                holds: 0,
                uid: config.root_owner.0,
                gid: config.root_owner.1,
                atime: now,
                mtime: now,
                ctime: now,
                change: now.change(),
                body: Body::Directory(Box::new(Directory::new(id))),
                xattrs: None,
            };
            Inode::new(id, FileKind::Directory, state)
        });
        let fs = |this: &Weak<Self>| Self {
            this: this.clone(),
            root: root.map_or(InodeId { index: 0, generation: 1 }, |r| r.id),
            table,
            // The quota includes the block of zeros.
            quota: config.arena.quota(config.capacity_bytes.saturating_add(BLOCK_BYTES as u64)),
            objects: ObjectCount::new(config.max_files.max(1)),
            rename_lock: Mutex::new(()),
            instance: config.runtime.random_u64(),
            verifier,
            zeros: OnceLock::new(),
            config,
        };
        // The root counts as an object. The zeros are allocated here if memory is available, otherwise at the
        // first read of a hole.
        let fs = Arc::new_cyclic(fs);
        let _ = fs.objects.add();
        let _ = fs.zeros();
        fs
    }

    fn now(&self) -> Time {
        time_of(&self.config.runtime)
    }

    fn inode(&self, handle: &Handle) -> FsResult<Arc<Inode>> {
        self.table.get(InodeId::of_handle(handle, self.instance)?)
    }

    fn handle(&self, inode: &Inode) -> Handle {
        inode.id.handle(self.instance)
    }

    fn attr(&self, inode: &Inode, st: &InodeState) -> Attr {
        inode.attr(st, self.config.fsid)
    }

    /// [`BLOCK_BYTES`] zeros.
    fn zeros(&self) -> FsResult<View> {
        if let Some(v) = self.zeros.get() {
            return Ok(v.clone());
        }
        let mut block = self.quota.alloc(BLOCK_BYTES).map_err(|_| FsError::Jukebox)?;
        block.fill(0);
        Ok(self.zeros.get_or_init(|| block.freeze()).clone())
    }

    /// The operation whose first step is done. `rest` returns the function of the further steps, between which other calls
    /// run. Each gets the value with which the step before continues.
    fn in_steps<T, C, S>(&self, first: FsResult<ControlFlow<T, C>>, rest: impl FnOnce() -> S) -> Op<T>
    where
        T: Send + 'static,
        C: Send + 'static,
        S: FnMut(&Self, C) -> FsResult<ControlFlow<T, C>> + Send + 'static,
    {
        let mut at = match first {
            Ok(ControlFlow::Break(out)) => return MaybeReady::Ready(Ok(out)),
            Ok(ControlFlow::Continue(at)) => at,
            Err(e) => return MaybeReady::Ready(Err(e)),
        };
        let (this, mut step) = (self.this.clone(), rest());
        MaybeReady::wait(async move {
            loop {
                yield_now().await;
                match step(&*this.upgrade().ok_or(FsError::Stale)?, at)? {
                    ControlFlow::Break(out) => return Ok(out),
                    ControlFlow::Continue(next) => at = next,
                }
            }
        })
    }

    /// Changes a range in steps.
    fn change_range(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        length: u64,
        change: RangeChange,
    ) -> Op<Wcc> {
        let (mut limit, end) = (STEP, offset.saturating_add(length));
        self.in_steps(self.range_now(caller, file, offset, length, change, &mut limit), || {
            let (caller, file) = (caller.clone(), *file);
            move |fs, at| {
                let mut limit = STEP;
                let step = fs.range_now(&caller, &file, at, end - at, change, &mut limit)?;
                Ok(step.map_break(after_steps))
            }
        })
    }

    /// Frees the body of a removed object before the call completes.
    fn free<T: Send + 'static>(&self, done: FsResult<(T, Option<Body>)>) -> Op<T> {
        let (out, body) = match done {
            Ok(done) => done,
            Err(e) => return MaybeReady::Ready(Err(e)),
        };
        match body.and_then(|body| Freeing::of_body(body, &self.config.runtime)) {
            None => MaybeReady::Ready(Ok(out)),
            Some(freeing) => MaybeReady::wait(async move {
                freeing.run().await;
                Ok(out)
            }),
        }
    }

    fn stat_now(&self) -> FsStat {
        let total = self.config.capacity_bytes;
        let free = self.quota.limit().saturating_sub(self.quota.used()).min(total);
        // The limit on objects depends on the free space, as in file systems that allocate inodes
        // dynamically.
        let free_files = self.objects.free().min(free / space::MIN_OBJECT_BYTES);
        FsStat {
            total_bytes: total,
            free_bytes: free,
            available_bytes: free,
            total_files: self.objects.count() + free_files,
            free_files,
            available_files: free_files,
        }
    }
}

/// The result of a call in steps: others may have changed the file between them.
fn after_steps(wcc: Wcc) -> Wcc {
    Wcc { before: None, ..wcc }
}

fn time_of(runtime: &RuntimeRef) -> Time {
    let t = runtime.wall_clock();
    Time { seconds: i64::try_from(t.as_secs()).unwrap_or(i64::MAX), nanos: t.subsec_nanos() }
}

impl FileSystem for MemoryFs {
    fn root(&self) -> Handle {
        self.root.handle(self.instance)
    }

    fn info(&self) -> FsInfo {
        FsInfo {
            max_file_size: MAX_FILE_SIZE,
            name_max: NAME_MAX as u32,
            link_max: self.config.link_max,
            time_delta_nanos: 1,
            writable: true,
            hard_links: true,
            symlinks: true,
            sparse_files: true,
            xattrs: true,
            clone_block: BLOCK_BYTES as u32,
            change_counter: true,
            verifier_in_times: false,
        }
    }

    fn stat(&self) -> Op<FsStat> {
        MaybeReady::Ready(Ok(self.stat_now()))
    }

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        MaybeReady::Ready(self.getattr_now(file))
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
        let (from, to) = ((source, source_offset), (destination, destination_offset));
        let clone = match self.clone_now(caller, from, to, length) {
            Ok(ControlFlow::Break(wcc)) => return MaybeReady::Ready(Ok(wcc)),
            Ok(ControlFlow::Continue(clone)) => clone,
            Err(e) => return MaybeReady::Ready(Err(e)),
        };
        let this = self.this.clone();
        MaybeReady::wait(async move { this.upgrade().ok_or(FsError::Stale)?.clone_long(clone).await })
    }

    fn xattr(&self, caller: &Identity, file: &Handle, name: &[u8]) -> Op<Vec<u8>> {
        MaybeReady::Ready(self.xattr_now(caller, file, name))
    }

    fn set_xattr(
        &self,
        caller: &Identity,
        file: &Handle,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Op<Wcc> {
        MaybeReady::Ready(self.set_xattr_now(caller, file, name, value, how))
    }

    fn list_xattrs(&self, caller: &Identity, file: &Handle) -> Op<Vec<Vec<u8>>> {
        MaybeReady::Ready(self.list_xattrs_now(caller, file))
    }

    fn remove_xattr(&self, caller: &Identity, file: &Handle, name: &[u8]) -> Op<Wcc> {
        MaybeReady::Ready(self.remove_xattr_now(caller, file, name))
    }

    fn hold(&self, file: &Handle) -> Op<Option<Hold>> {
        MaybeReady::Ready(self.hold_now(file))
    }

    fn setattr(&self, caller: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc> {
        self.in_steps(self.setattr_now(caller, file, set, guard), || {
            let (caller, file, set) = (caller.clone(), *file, *set);
            // The first step has compared and changed ctime.
            move |fs, ()| Ok(fs.setattr_now(&caller, &file, &set, None)?.map_break(after_steps))
        })
    }

    fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        MaybeReady::Ready(self.lookup_now(caller, dir, name))
    }

    fn access(&self, caller: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)> {
        MaybeReady::Ready(self.access_now(caller, file, wanted))
    }

    fn readlink(&self, _who: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)> {
        MaybeReady::Ready(self.readlink_now(link))
    }

    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        MaybeReady::Ready(self.read_now(caller, file, offset, count))
    }

    fn write(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        _stable: Stability,
    ) -> Op<Written> {
        MaybeReady::Ready(self.write_now(caller, file, offset, data))
    }

    fn commit(&self, caller: &Identity, file: &Handle, _offset: u64, _count: u32) -> Op<Wcc> {
        MaybeReady::Ready(self.commit_now(caller, file))
    }

    fn allocate(&self, caller: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        self.change_range(caller, file, offset, length, RangeChange::Allocate)
    }

    fn deallocate(&self, caller: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        self.change_range(caller, file, offset, length, RangeChange::Deallocate)
    }

    fn zero(&self, caller: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        self.change_range(caller, file, offset, length, RangeChange::Zero)
    }

    fn seek(
        &self,
        caller: &Identity,
        file: &Handle,
        range: Range<u64>,
        target: SeekTarget,
    ) -> Op<Option<u64>> {
        let end = range.end;
        self.in_steps(self.seek_now(caller, file, range, target), || {
            let (caller, file) = (caller.clone(), *file);
            move |fs, at| fs.seek_now(&caller, &file, at..end, target)
        })
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
        let (from, to) = ((source, source_offset), (destination, destination_offset));
        MaybeReady::Ready(self.copy_now(caller, from, to, length))
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.verifier
    }

    fn create(&self, caller: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created> {
        self.in_steps(self.create_now(caller, dir, name, how), || {
            let (caller, dir, name, how) = (caller.clone(), *dir, name.to_vec(), *how);
            move |fs, ()| fs.create_now(&caller, &dir, &name, &how)
        })
    }

    fn create_node(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        node: &NewNode,
        set: &SetAttr,
    ) -> Op<Created> {
        MaybeReady::Ready(self.create_node_now(caller, dir, name, node, set))
    }

    fn remove(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        self.free(self.remove_now(caller, dir, name))
    }

    fn rmdir(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        MaybeReady::Ready(self.rmdir_now(caller, dir, name))
    }

    fn rename(
        &self,
        caller: &Identity,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Op<(Wcc, Wcc)> {
        self.free(self.rename_now(caller, from_dir, from, to_dir, to))
    }

    fn link(&self, caller: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)> {
        MaybeReady::Ready(self.link_now(caller, file, dir, name))
    }

    fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        MaybeReady::Ready(self.readdir_now(caller, dir, cookie, verifier, limits))
    }
}
