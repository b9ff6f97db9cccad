//! The FUSE operations of a directory with one file.

use std::{future::Future, io, sync::Arc, time::Duration};

use millrace_fuse_session::{
    channel::{Call, Handler, WriteData},
    dispatch::Dispatcher,
    interrupt::{End, cancel_at},
    protocol::{
        Attributes, DirectoryEntries, DirectoryEntry, Entry, FileRange, InitFlags, OpenFlags, Opened,
        Operation, ROOT, ReadDirectory, ReadRequest, Reply, SetAttributes, Statistics, Time, WriteRequest,
    },
    settings::BLOCK,
};
use millrace_iscsi_initiator::{BlockDevice, Error};
use millrace_runtime::{RuntimeRef, Uncancelled};
use parking_lot::Mutex;
use rustix::{
    fs::{FallocateFlags, FileType, OFlags},
    io::Errno,
    process::{getgid, getuid},
};
use slab::Slab;
use tokio::{
    runtime::Handle,
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
};

use crate::{
    NAME,
    file::{DiskFile, Opened as Opening},
};

/// Node ID and inode number of the file.
const FILE: u64 = 2;
/// Time that the kernel may cache the size: a reconnect may find a larger device.
const TTL: Duration = Duration::from_secs(1);
/// Memory for the data of requests, in KiB: half of the device's default (`Options::memory`), because the data of a
/// request that is not a power of two occupies up to twice its length.
const MEMORY_KIB: usize = 128 << 10;
/// How the file is opened: see the documentation of the module.
const OPENED: OpenFlags =
    OpenFlags::DIRECT_IO.union(OpenFlags::PARALLEL_DIRECT_WRITES).union(OpenFlags::NOFLUSH);

/// The size of the file system is unknown, as that of procfs.
const STATISTICS: Statistics = Statistics {
    block_size: 512,
    blocks: 0,
    free_blocks: 0,
    available_blocks: 0,
    files: 0,
    free_files: 0,
    name_max: 255,
};

/// The state that requests share.
pub(super) struct Disk {
    pub(super) file: DiskFile,
    pub(super) rt: RuntimeRef,
    /// Notified twice a second.
    pub(super) ticks: Notify,
    dispatcher: Dispatcher,
    /// KiB that requests may still use.
    memory: Arc<Semaphore>,
    open: Mutex<Slab<Arc<Opening>>>,
    /// All times of the directory and the file.
    time: Time,
    read_only: bool,
}

impl Disk {
    pub(super) fn new(device: BlockDevice, (rt, workers): (RuntimeRef, usize), read_only: bool) -> Self {
        let now = rt.wall_clock();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let time = Time { seconds, nanoseconds: now.subsec_nanos() };
        Self {
            file: DiskFile::new(device),
            ticks: Notify::new(),
            dispatcher: Dispatcher::new(&rt, workers),
            memory: Arc::new(Semaphore::new(MEMORY_KIB)),
            open: Mutex::default(),
            time,
            rt,
            read_only,
        }
    }

    fn attributes(&self, node: u64) -> Result<Attributes, Errno> {
        let (kind, size, permissions, links) = match node {
            ROOT => (FileType::Directory, 0, 0o500, 2),
            FILE => (FileType::RegularFile, self.file.device().capacity(), 0o600, 1),
            _ => return Err(Errno::NOENT),
        };
        let permissions = if self.read_only { permissions & 0o555 } else { permissions };
        Ok(Attributes {
            inode: node,
            size,
            blocks: size / 512,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            mode: kind.as_raw_mode() | permissions,
            links,
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
            device: 0,
            block_size: BLOCK,
        })
    }

    fn opened(&self, handle: u64) -> Result<Arc<Opening>, Errno> {
        self.open.lock().get(handle as usize).cloned().ok_or(Errno::BADF)
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

    /// Runs `op` on the executor, then `done` with its result. If it fails, or the caller is killed, the call fails; `op`
    /// is completed also then, because writes hold locks until the device has executed them.
    fn run<T: Send + 'static>(
        &self,
        call: Call,
        op: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(Call, T) + Send + 'static,
    ) {
        let disk = Arc::clone(&self.disk);
        let op = Uncancelled::new(&disk.rt, "disk request", op);
        let whole = async move {
            let caller = (call.tid(), call.interruption());
            match cancel_at(End::Kill, (&disk.rt, &disk.ticks), caller, op).await.unwrap_or(Err(Errno::INTR))
            {
                Ok(result) => done(call, result),
                Err(e) => call.error(e),
            }
        };
        self.disk.dispatcher.run(Box::pin(whole));
    }

    fn run_empty(&self, call: Call, op: impl Future<Output = Result<(), Error>> + Send + 'static) {
        self.run(call, async { op.await.map_err(|e| errno(&e)) }, |call, ()| call.finish(Ok(())));
    }

    fn lookup(&self, call: Call, name: &[u8]) {
        let is_file = call.node() == ROOT && name == NAME.as_bytes();
        match is_file.then(|| self.disk.attributes(FILE)) {
            Some(Ok(attributes)) => call.reply(&Reply::Entry(Entry {
                node: FILE,
                generation: 0,
                name_ttl: TTL,
                attributes_ttl: TTL,
                attributes,
            })),
            _ => call.error(Errno::NOENT),
        }
    }

    fn get_attributes(&self, call: Call) {
        match self.disk.attributes(call.node()) {
            Ok(attributes) => call.reply(&Reply::Attributes(attributes, TTL)),
            Err(e) => call.error(e),
        }
    }

    /// Times are accepted and ignored.
    fn set_attributes(&self, call: Call, set: &SetAttributes) {
        let resizes = set.size.is_some_and(|size| size != self.disk.file.device().capacity());
        if resizes || set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            return call.error(Errno::PERM);
        }
        self.get_attributes(call);
    }

    fn open(&self, call: Call) {
        if call.node() != FILE {
            return call.error(Errno::ISDIR);
        }
        let handle = self.disk.open.lock().insert(Arc::new(self.disk.file.open())) as u64;
        call.reply(&Reply::Opened(Opened { handle, flags: OPENED }));
    }

    fn read(&self, call: Call, ReadRequest { offset, size, .. }: ReadRequest) {
        let disk = Arc::clone(&self.disk);
        let op = async move {
            let memory = disk.reserve(size as usize).await?;
            let data = disk.file.read(offset, size).await.map_err(|e| errno(&e))?;
            Ok((data, memory))
        };
        self.run(call, op, |call, (data, _memory)| call.reply(&Reply::Data(&data)));
    }

    fn write_data(&self, call: Call, write: &WriteRequest, data: &[u8]) {
        let offset = write.offset;
        // The thread waits, because `data` is in its own buffer. The requests that hold the memory do not need it.
        let prepared = self.executor.block_on(self.disk.reserve(data.len())).and_then(|memory| {
            let write = self.disk.file.prepare(offset, data).map_err(|e| errno(&e))?;
            Ok((write.ok_or(Errno::NOSPC)?, memory))
        });
        let (pending, memory) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => return call.error(e),
        };
        let is_sync = OFlags::from_bits_retain(write.flags).contains(OFlags::DSYNC);
        let disk = Arc::clone(&self.disk);
        let op = async move {
            let written = async {
                let length = disk.file.write(pending).await?;
                if is_sync {
                    disk.file.device().flush().await?;
                }
                Ok(length as u32)
            };
            let written = written.await.map_err(|e: Error| errno(&e));
            drop(memory);
            written
        };
        self.run(call, op, |call, length| call.reply(&Reply::Written(length)));
    }

    fn fsync(&self, call: Call, handle: u64) {
        let disk = Arc::clone(&self.disk);
        match disk.opened(handle) {
            Ok(opened) => self.run_empty(call, async move { disk.file.sync(&opened).await }),
            Err(e) => call.error(e),
        }
    }

    fn release(&self, call: Call, handle: u64) {
        self.disk.open.lock().try_remove(handle as usize);
        call.finish(Ok(()));
    }

    /// The modes of a block device (`blkdev_fallocate` of Linux).
    fn fallocate(&self, call: Call, range: &FileRange, mode: u32) {
        let mode = FallocateFlags::from_bits_retain(mode);
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let kind = mode.difference(FallocateFlags::KEEP_SIZE);
        let punches = kind == FallocateFlags::PUNCH_HOLE && keeps_size;
        if !punches && kind != FallocateFlags::ZERO_RANGE {
            return call.error(Errno::OPNOTSUPP);
        }
        let bytes = range.bytes();
        if bytes.end > self.disk.file.device().capacity() && !keeps_size {
            return call.error(Errno::NOSPC);
        }
        let disk = Arc::clone(&self.disk);
        self.run_empty(call, async move { disk.file.zero(bytes, punches).await });
    }
}

fn read_directory(call: Call, list: &ReadDirectory) {
    let files = [
        (ROOT, FileType::Directory, "."),
        (ROOT, FileType::Directory, ".."),
        (FILE, FileType::RegularFile, NAME),
    ];
    let mut entries = DirectoryEntries::new(list.size);
    for ((inode, kind, name), offset) in files.into_iter().zip(1..).skip(list.offset as usize) {
        let entry = DirectoryEntry { inode, offset, mode: kind.as_raw_mode(), name: name.as_bytes() };
        if !entries.push(&entry) {
            break;
        }
    }
    call.reply(&entries.reply());
}

impl Handler for DiskHandler {
    fn capabilities(&self, _offered: InitFlags) -> InitFlags {
        InitFlags::DIRECT_IO_ALLOW_MMAP
    }

    fn write(&self, call: Call, write: WriteRequest, data: WriteData<'_>) {
        self.write_data(call, &write, &data);
    }

    fn handle(&self, call: Call, operation: Operation<'_>) {
        use Operation as O;
        match operation {
            O::Lookup { name } => self.lookup(call, name),
            O::GetAttributes => self.get_attributes(call),
            O::SetAttributes(set) => self.set_attributes(call, &set),
            O::Open { .. } => self.open(call),
            O::Read(read) => self.read(call, read),
            O::Fsync { handle } => self.fsync(call, handle),
            O::Release { handle } => self.release(call, handle),
            O::Fallocate { range, mode } => self.fallocate(call, &range, mode),
            O::OpenDirectory => call.reply(&Reply::Opened(Opened::default())),
            O::ReadDirectory(list) => read_directory(call, &list),
            O::ReleaseDirectory { .. } => call.finish(Ok(())),
            O::Statistics => call.reply(&Reply::Statistics(STATISTICS)),
            O::Symlink { .. } | O::Link { .. } => call.error(Errno::PERM),
            _ => call.error(Errno::NOSYS),
        }
    }
}
