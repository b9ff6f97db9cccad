//! The FUSE operations of a directory with one file.

use std::{
    ffi::OsStr,
    future::Future,
    io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use millrace_block::{BlockDevice, Error};
use millrace_runtime::{RuntimeRef, Uncancelled};
use parking_lot::Mutex;
use rustix::{
    fs::{FallocateFlags, OFlags},
    io::Errno,
    process::{getgid, getuid},
};
use slab::Slab;
use tokio::{
    runtime::Handle,
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
};

use super::{
    NAME,
    file::{DiskFile, Opened},
};
use crate::{
    convert::{BLOCK, number},
    dispatch::Dispatcher,
    interrupt::cancel_if_killed,
    session::negotiate,
};

/// Inode number of the file.
const FILE: INodeNo = INodeNo(2);
/// Time that the kernel may cache the size: a reconnect may find a larger device.
const TTL: Duration = Duration::from_secs(1);
/// Memory for the data of requests, in KiB: half of the device's default (`Options::memory`), because the data of a
/// request that is not a power of two occupies up to twice its length.
const MEMORY_KIB: usize = 128 << 10;
/// How the file is opened: see the documentation of the module.
const OPENED: FopenFlags = FopenFlags::FOPEN_DIRECT_IO
    .union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES)
    .union(FopenFlags::FOPEN_NOFLUSH);

/// The state that requests share.
pub(super) struct Disk {
    pub(super) file: DiskFile,
    pub(super) rt: RuntimeRef,
    /// Notified twice a second.
    pub(super) ticks: Notify,
    dispatcher: Dispatcher,
    /// KiB that requests may still use.
    memory: Arc<Semaphore>,
    open: Mutex<Slab<Arc<Opened>>>,
    /// All times of the directory and the file.
    time: SystemTime,
    read_only: bool,
}

impl Disk {
    pub(super) fn new(device: BlockDevice, (rt, workers): (RuntimeRef, usize), read_only: bool) -> Self {
        Self {
            file: DiskFile::new(device),
            ticks: Notify::new(),
            dispatcher: Dispatcher::new(&rt, workers),
            memory: Arc::new(Semaphore::new(MEMORY_KIB)),
            open: Mutex::default(),
            time: UNIX_EPOCH + rt.wall_clock(),
            rt,
            read_only,
        }
    }

    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, size, mode, links) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0, 0o500, 2),
            FILE => (FileType::RegularFile, self.file.device().capacity(), 0o600, 1),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            crtime: UNIX_EPOCH,
            kind,
            perm: if self.read_only { mode & 0o555 } else { mode },
            nlink: links,
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        })
    }

    fn opened(&self, fh: FileHandle) -> Result<Arc<Opened>, Errno> {
        self.open.lock().get(fh.0 as usize).cloned().ok_or(Errno::BADF)
    }

    /// Waits until there is memory for the data of a request, which has at most the size of the largest transfer.
    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Errno> {
        let kib = u32::try_from(bytes.div_ceil(1024)).map_err(|_| Errno::INVAL)?;
        // The semaphore is never closed.
        Arc::clone(&self.memory).acquire_many_owned(kib).await.map_err(|_| Errno::IO)
    }
}

/// The errno of a failed operation, which is logged.
fn errno(e: &Error) -> Errno {
    use io::ErrorKind as K;
    tracing::warn!("{e}");
    match e.kind() {
        K::InvalidInput => Errno::INVAL,
        K::OutOfMemory => Errno::NOMEM,
        K::TimedOut => Errno::TIMEDOUT,
        K::StorageFull => Errno::NOSPC,
        K::ReadOnlyFilesystem => Errno::ROFS,
        K::ResourceBusy => Errno::BADE,
        K::Unsupported => Errno::OPNOTSUPP,
        K::StaleNetworkFileHandle => Errno::NODEV,
        _ => Errno::IO,
    }
}

pub(super) struct DiskHandler {
    disk: Arc<Disk>,
    executor: Handle,
}

impl DiskHandler {
    pub(super) fn new(disk: Arc<Disk>, executor: Handle) -> Self {
        Self { disk, executor }
    }

    /// Runs `op` on the executor, then `done` with its result, or with EINTR if the caller is killed; `op` is completed
    /// also then, because writes hold locks until the device has executed them.
    fn run<T: Send + 'static>(
        &self,
        req: &Request,
        op: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let (disk, tid) = (Arc::clone(&self.disk), req.pid());
        let op = Uncancelled::new(&disk.rt, "disk request", op);
        let whole = async move {
            done(cancel_if_killed((&disk.rt, &disk.ticks), tid, op).await.unwrap_or(Err(Errno::INTR)))
        };
        self.disk.dispatcher.run(Box::pin(whole));
    }

    fn run_empty(
        &self,
        req: &Request,
        op: impl Future<Output = Result<(), Error>> + Send + 'static,
        reply: ReplyEmpty,
    ) {
        self.run(req, async { op.await.map_err(|e| errno(&e)) }, |done| match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(number(e)),
        });
    }
}

#[allow(clippy::too_many_arguments)] // The signature is the trait's.
impl Filesystem for DiskHandler {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, &[InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP]);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = (parent == INodeNo::ROOT && name == NAME).then(|| self.disk.attributes(FILE)).flatten();
        match found {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(fuser::Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.disk.attributes(ino) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(fuser::Errno::ENOENT),
        }
    }

    /// Times are accepted and ignored.
    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let resizes = size.is_some_and(|size| size != self.disk.file.device().capacity());
        if resizes || mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(fuser::Errno::EPERM);
        }
        self.getattr(req, ino, fh, reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if ino != FILE {
            return reply.error(fuser::Errno::EISDIR);
        }
        let opened = Arc::new(self.disk.file.open());
        reply.opened(FileHandle(self.disk.open.lock().insert(opened) as u64), OPENED);
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let disk = Arc::clone(&self.disk);
        let op = async move {
            let memory = disk.reserve(size as usize).await?;
            let data = disk.file.read(offset, size).await.map_err(|e| errno(&e))?;
            Ok((data, memory))
        };
        self.run(req, op, |read| match read {
            Ok((data, _memory)) => reply.data(&data),
            Err(e) => reply.error(number(e)),
        });
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // The thread waits, because `data` is in its own buffer. The requests that hold the memory do not need it.
        let prepared = self.executor.block_on(self.disk.reserve(data.len())).and_then(|memory| {
            let write = self.disk.file.prepare(offset, data).map_err(|e| errno(&e))?;
            Ok((write.ok_or(Errno::NOSPC)?, memory))
        });
        let (write, memory) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => return reply.error(number(e)),
        };
        let is_sync = OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::DSYNC);
        let disk = Arc::clone(&self.disk);
        let op = async move {
            let written = async {
                let length = disk.file.write(write).await?;
                if is_sync {
                    disk.file.device().flush().await?;
                }
                Ok(length as u32)
            };
            let written = written.await.map_err(|e: Error| errno(&e));
            drop(memory);
            written
        };
        self.run(req, op, |written| match written {
            Ok(length) => reply.written(length),
            Err(e) => reply.error(number(e)),
        });
    }

    fn fsync(&self, req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let disk = Arc::clone(&self.disk);
        match disk.opened(fh) {
            Ok(opened) => self.run_empty(req, async move { disk.file.sync(&opened).await }, reply),
            Err(e) => reply.error(number(e)),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.disk.open.lock().try_remove(fh.0 as usize);
        reply.ok();
    }

    /// The modes of a block device (`blkdev_fallocate` of Linux).
    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let kind = mode.difference(FallocateFlags::KEEP_SIZE);
        let punches = kind == FallocateFlags::PUNCH_HOLE && keeps_size;
        if !punches && kind != FallocateFlags::ZERO_RANGE {
            return reply.error(fuser::Errno::EOPNOTSUPP);
        }
        let end = offset.saturating_add(length);
        if end > self.disk.file.device().capacity() && !keeps_size {
            return reply.error(fuser::Errno::ENOSPC);
        }
        let disk = Arc::clone(&self.disk);
        self.run_empty(req, async move { disk.file.zero(offset..end, punches).await }, reply);
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, NAME),
        ];
        for ((ino, kind, name), next) in entries.into_iter().zip(1..).skip(offset as usize) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
