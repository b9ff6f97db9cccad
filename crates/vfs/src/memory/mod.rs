//! A file system in memory.
//!
//! Content lives in blocks of [`BLOCK_BYTES`] and pages of 4 KiB in the server's arena (`content`).
//! A read gives views of this memory itself; a write of whole blocks keeps the memory in which the data arrived. Nothing
//! survives the process: commit has nothing to do, and after a restart every handle is stale.
//!
//! One quota of the arena pays for everything: content by its slots, objects and names on the heap by their bytes
//! (`space`). It bounds the memory of this file system, and guarantees it: neither the network's buffers nor other file
//! systems can use it up.
//!
//! Reads do not change atime (as with the mount option `noatime`), so that they only share the file's lock.
//!
//! # Locks
//!
//! There is no lock around the whole file system. Each inode has one reader-writer lock for its attributes and its
//! body, so an operation on it is atomic, and operations on different files do not meet; finding an inode by handle
//! takes one of 64 read locks of the inode table for an instant. An operation that needs several inodes locks
//! directories before what is in them, ancestors before descendants, and two objects that are not directories by
//! index. Two directories neither of which holds the other are locked together by rename alone, and renames run one
//! at a time (`rename_lock`); that also keeps the ancestors of every directory fixed while a rename looks at them.
//! All calls answer at once ([`MaybeReady::Ready`]): no lock is held for longer than one operation in memory takes.

mod attributes;
mod content;
mod data;
mod directory;
mod inode;
mod listing;
mod namespace;
mod permission;
mod rename;
mod space;
mod table;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use directory::Directory;
use inode::{Body, Inode, InodeId, State};
use millrace_buffer::{Arena, BLOCK_BYTES, Quota, View, Views};
use millrace_runtime::{MaybeReady, RuntimeExt, RuntimeRef};
use parking_lot::Mutex;
use space::Objects;
use table::Table;

use crate::{
    Access, Attr, CreateHow, Created, DirPage, FileKind, FileSystem, FsError, FsInfo, FsResult, FsStat,
    Handle, Identity, NewNode, Op, Read, ReadDirLimits, SetAttr, Stability, Time, Wcc, Written,
};

/// The longest name, in bytes.
const NAME_MAX: usize = 255;
/// The longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = 4096;
/// The largest file: file offsets are signed in every client.
const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// How a [`MemoryFs`] is made.
#[derive(Clone)]
pub struct MemoryConfig {
    /// The most bytes of memory: content, by pages of 4 KiB, and objects and names (some 630 bytes for an empty file,
    /// and 304 and its length for each further name). Beyond it, calls fail with [`FsError::NoSpc`].
    pub capacity_bytes: u64,
    /// The most objects, the root included.
    pub max_files: u64,
    /// Where content lives: the arena that written data arrives in too, since its memory is kept. `capacity_bytes` come
    /// on top of the arena's limit.
    pub arena: Arena,
    /// The file system's number ([`Attr::fsid`]).
    pub fsid: u64,
    /// Gives the time of day and random numbers.
    pub runtime: RuntimeRef,
    /// The root directory's mode (07777).
    pub root_mode: u32,
    /// The root directory's owner and group.
    pub root_owner: (u32, u32),
    /// The most hard links of an object that is not a directory.
    pub link_max: u32,
}

impl MemoryConfig {
    /// As large as the limit of `arena`, as many files as fit, up to 65,000 links of a file, and a root directory with the
    /// permissions of `/tmp` (mode 1777), since no user of the server could set up others.
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

/// A file system in memory.
pub struct MemoryFs {
    config: MemoryConfig,
    table: Table,
    root: InodeId,
    quota: Quota,
    objects: Objects,
    /// Held by a rename from start to end.
    rename_lock: Mutex<()>,
    /// Sets this file system's handles apart from those of every other one, earlier ones included.
    instance: u64,
    verifier: [u8; 8],
    /// [`BLOCK_BYTES`] zeros, which holes are read from.
    zeros: OnceLock<View>,
}

impl MemoryFs {
    /// An empty file system.
    pub fn new(config: MemoryConfig) -> Arc<Self> {
        let mut verifier = [0; 8];
        config.runtime.fill_random(&mut verifier);
        let table = Table::new();
        let now = time_of(&config.runtime);
        let root = table.insert(|id| {
            let state = State {
                mode: config.root_mode & 0o7777,
                nlink: 2,
                uid: config.root_owner.0,
                gid: config.root_owner.1,
                atime: now,
                mtime: now,
                ctime: now,
                body: Body::Directory(Box::new(Directory::new(id))),
            };
            Inode::new(id, FileKind::Directory, state)
        });
        let fs = Self {
            root: root.map_or(InodeId { index: 0, generation: 1 }, |r| r.id),
            table,
            // The block of zeros comes on top.
            quota: config.arena.quota(config.capacity_bytes.saturating_add(BLOCK_BYTES as u64)),
            objects: Objects::new(config.max_files.max(1)),
            rename_lock: Mutex::new(()),
            instance: config.runtime.random_u64(),
            verifier,
            zeros: OnceLock::new(),
            config,
        };
        // The root counts as an object. The zeros are made here if the system has memory; if not, the first hole asks
        // again.
        let _ = fs.objects.add();
        let _ = fs.zeros();
        Arc::new(fs)
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

    fn attr(&self, inode: &Inode, st: &State) -> Attr {
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

    fn stat_now(&self) -> FsStat {
        let total = self.config.capacity_bytes;
        let free = self.quota.limit().saturating_sub(self.quota.used()).min(total);
        // As many as fit; the number of all objects varies with the space that they leave, as in file systems that
        // allocate inodes as needed.
        let free_files = self.objects.free().min(free / space::SMALLEST_OBJECT);
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
        }
    }

    fn stat(&self) -> Op<FsStat> {
        MaybeReady::Ready(Ok(self.stat_now()))
    }

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        MaybeReady::Ready(self.getattr_now(file))
    }

    fn setattr(&self, who: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc> {
        MaybeReady::Ready(self.setattr_now(who, file, set, guard))
    }

    fn lookup(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        MaybeReady::Ready(self.lookup_now(who, dir, name))
    }

    fn access(&self, who: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)> {
        MaybeReady::Ready(self.access_now(who, file, wanted))
    }

    fn readlink(&self, _who: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)> {
        MaybeReady::Ready(self.readlink_now(link))
    }

    fn read(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        MaybeReady::Ready(self.read_now(who, file, offset, count))
    }

    fn write(
        &self,
        who: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        _stable: Stability,
    ) -> Op<Written> {
        MaybeReady::Ready(self.write_now(who, file, offset, data))
    }

    fn commit(&self, who: &Identity, file: &Handle, _offset: u64, _count: u32) -> Op<Wcc> {
        MaybeReady::Ready(self.commit_now(who, file))
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.verifier
    }

    fn create(&self, who: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created> {
        MaybeReady::Ready(self.create_now(who, dir, name, how))
    }

    fn make(&self, who: &Identity, dir: &Handle, name: &[u8], node: &NewNode, set: &SetAttr) -> Op<Created> {
        MaybeReady::Ready(self.make_now(who, dir, name, node, set))
    }

    fn remove(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        MaybeReady::Ready(self.remove_now(who, dir, name))
    }

    fn rmdir(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        MaybeReady::Ready(self.rmdir_now(who, dir, name))
    }

    fn rename(
        &self,
        who: &Identity,
        from_dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Op<(Wcc, Wcc)> {
        MaybeReady::Ready(self.rename_now(who, from_dir, from, to_dir, to))
    }

    fn link(&self, who: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)> {
        MaybeReady::Ready(self.link_now(who, file, dir, name))
    }

    fn readdir(
        &self,
        who: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        MaybeReady::Ready(self.readdir_now(who, dir, cookie, verifier, limits))
    }
}
