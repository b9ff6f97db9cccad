//! Implements the FUSE operations: parses requests, runs them on the executor, sends replies.

use std::{
    ffi::OsStr,
    future::Future,
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, Version, WriteFlags,
};
use millrace_client::nfs3::{Client, Object, SeekTarget};
use millrace_nfs::v3::{MknodWhat, Sattr, WccData};
use rustix::{
    fs::{FileType as Kind, OFlags},
    io::Errno,
};
use tokio::sync::oneshot;

use crate::{
    convert::{BLOCK, absent, attr, kind, number, set_time, spec},
    dir_stream::{CallTime, DirStream},
    directory::{DirReader, handle_and_attributes},
    fs::{Entry, Fs},
    inode::{AttrReply, PendingLookups},
    interrupt::{cancel_if_interrupted, cancel_if_killed},
    locks::{OwnedRange, lock_kind, tested},
    namespace::NewNode,
    open_file::OpenFile,
    session::{TREE, negotiate},
    write::WritePosition,
};

/// NFS has no equivalent of `RENAME_NOREPLACE` and the other flags.
const NO_FLAGS: RenameFlags = RenameFlags::empty();

/// First FUSE protocol version that can expire names (FUSE_EXPIRE_ONLY).
const EXPIRE_ONLY_VERSION: Version = Version(7, 38);

/// `whence` of lseek(2) for data and for holes.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

pub(crate) struct FuseHandler {
    fs: Arc<Fs>,
    /// Write-back caching by the kernel (`writeback`).
    writeback: bool,
    /// The capabilities for the kinds of locks that are at the server.
    locks: Vec<InitFlags>,
}

/// The caller of a request: its client and thread.
struct Caller {
    client: Client,
    tid: u32,
}

impl FuseHandler {
    pub(crate) fn new(fs: Arc<Fs>, writeback: bool, locks: Vec<InitFlags>) -> Self {
        Self { fs, writeback, locks }
    }

    /// Returns the file system and the caller of a request.
    fn context(&self, req: &Request) -> (Arc<Fs>, Caller) {
        let client = self.fs.credentials.get(req.uid(), req.gid(), req.pid());
        (Arc::clone(&self.fs), Caller { client, tid: req.pid() })
    }

    /// Like [`Self::context`], with the name that the request refers to.
    fn context_with_name(&self, req: &Request, name: &OsStr) -> (Arc<Fs>, Caller, Vec<u8>) {
        let (fs, caller) = self.context(req);
        (fs, caller, name.as_bytes().to_vec())
    }

    /// Runs `op` on the executor, then `done` with its result, or with EINTR if the caller is killed.
    fn run<T: Send + 'static>(
        &self,
        tid: u32,
        op: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let op = Box::pin(op); // `op` has several KiB, which would otherwise be moved from one future into the next.
        let fs = Arc::clone(&self.fs);
        let whole = async move {
            done(cancel_if_killed((&fs.rt, &fs.ticks), tid, op).await.unwrap_or(Err(Errno::INTR)))
        };
        self.fs.dispatcher.run(Box::pin(whole));
    }

    /// Like [`Self::run`], but `op` completes even if its caller is killed, so that no written data is
    /// dropped and no operation of several calls is left incomplete.
    fn run_detached<T: Send + 'static>(
        &self,
        tid: u32,
        op: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let (tx, rx) = oneshot::channel();
        self.fs.rt.spawn("mount request", Box::pin(async move { drop(tx.send(op.await)) }));
        self.run(tid, async move { rx.await.unwrap_or(Err(Errno::IO)) }, done);
    }

    /// Like [`Self::run`], for requests with which the kernel looks up a path or opens a file.
    fn run_lookup<T: Send + 'static>(
        &self,
        (tid, ino): (u32, u64),
        op: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let fs = Arc::clone(&self.fs);
        self.run(tid, op, move |result| {
            done(result.inspect_err(|e| fs.note_error(tid, ino, *e)));
        });
    }

    fn run_entry(
        &self,
        tid: u32,
        op: impl Future<Output = Result<Entry, Errno>> + Send + 'static,
        reply: ReplyEntry,
    ) {
        self.run(tid, op, |created| match created {
            Ok(e) => reply_entry(&e, reply),
            Err(e) => reply.error(number(e)),
        });
    }

    fn run_attr(
        &self,
        tid: u32,
        ino: u64,
        op: impl Future<Output = Result<AttrReply, Errno>> + Send + 'static,
        reply: ReplyAttr,
    ) {
        self.run_lookup((tid, ino), op, move |attrs| match attrs {
            Ok(attrs) => reply.attr(&attrs.ttl, &attr(ino, &attrs.attributes)),
            Err(e) => reply.error(number(e)),
        });
    }

    /// Whether the version of NFS has operations on space and holes, and copies.
    fn has_v4_2_operations(&self) -> bool {
        self.fs.credentials.default_client().version() == millrace_client::Version::V4_2
    }

    fn dir_stream(&self, fh: FileHandle) -> Option<Arc<DirStream>> {
        self.fs.directories.lock().get(fh.0 as usize).cloned()
    }

    /// Completes a write asynchronously, with data already copied out of fuser's buffer.
    fn write_async(
        &self,
        tid: u32,
        file: Arc<OpenFile>,
        (position, data): (WritePosition, Vec<u8>),
        direct: bool,
        reply: ReplyWrite,
    ) {
        let fs = Arc::clone(&self.fs);
        let len = data.len() as u32;
        let op = async move { fs.write_deferred(&file, position, &data, direct).await };
        self.run(tid, op, move |done| reply_written(done, len, reply));
    }
}

fn reply_written(done: Result<(), Errno>, len: u32, reply: ReplyWrite) {
    match done {
        Ok(()) => reply.written(len),
        Err(e) => reply.error(number(e)),
    }
}

fn reply_empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(number(e)),
    }
}

fn reply_entry(e: &Entry, reply: ReplyEntry) {
    let attributes = attr(e.inode.number, &e.attrs.attributes);
    reply.entry_with_ttls(&e.attrs.ttl, &e.ttl, &attributes, Generation(e.inode.generation));
}

/// Whether a request bypasses the page cache. Only then does the kernel pass a lock owner (`fuse_direct_io`).
/// A write with O_DIRECT whose pages the kernel could not drop goes through the page cache, and holds the
/// page locks until the reply.
fn is_direct(flags: OpenFlags, lock_owner: Option<LockOwner>) -> bool {
    has(flags, OFlags::DIRECT) && lock_owner.is_some()
}

fn has(flags: OpenFlags, flag: OFlags) -> bool {
    OFlags::from_bits_retain(flags.0 as u32).contains(flag)
}

fn open_flags(keep: bool) -> FopenFlags {
    if keep { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() }
}

#[allow(clippy::too_many_arguments)] // The signature is the trait's.
impl Filesystem for FuseHandler {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut more = TREE.to_vec();
        // LOOKUP of "." and ".." by inode number, for open_by_handle_at(2) and nfsd.
        more.push(InitFlags::FUSE_EXPORT_SUPPORT);
        more.extend(&self.locks);
        if self.writeback {
            more.push(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        if !self.fs.timeouts.caches_file_attrs() {
            // The kernel revalidates at each read and drops pages when the mtime has changed, also by local
            // writes. Otherwise the mount decides: see `pages.rs`.
            more.push(InitFlags::FUSE_AUTO_INVAL_DATA);
        }
        // The server clears set-ID bits when data changes (RFC 1813 section 4.4). Without this flag the
        // kernel sends a SETATTR as the writer, which only the owner may do. Version 2 avoids a GETXATTR
        // before each write (Linux 5.11).
        let v2 = InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        let has_v2 = config.capabilities().contains(v2);
        more.push(if has_v2 { v2 } else { InitFlags::FUSE_HANDLE_KILLPRIV });
        negotiate(config, &more);
        self.fs.can_expire_names.store(config.kernel_abi() >= EXPIRE_ONLY_VERSION, Ordering::Relaxed);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (fs, Caller { client, tid }, name) = self.context_with_name(req, name);
        let op = async move {
            match &name[..] {
                b"." => fs.lookup_by_number(&client, parent.0).await.map(Ok),
                b".." => fs.lookup_parent(&client, parent.0).await.map(Ok),
                _ => fs.lookup(&client, parent.0, &name, tid).await,
            }
        };
        self.run_lookup((tid, parent.0), op, |found| match found {
            Ok(Ok(e)) => reply_entry(&e, reply),
            Ok(Err(ttl)) if !ttl.is_zero() => reply.entry(&ttl, &absent(), Generation(0)),
            Ok(Err(_)) => reply.error(number(Errno::NOENT)),
            Err(e) => reply.error(number(e)),
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.fs.inodes.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        if let Some(attrs) = self.fs.cached_attributes(ino.0, (req.uid(), req.gid())) {
            reply.attr(&attrs.ttl, &attr(ino.0, &attrs.attributes));
            return;
        }
        let (fs, Caller { client, tid }) = self.context(req);
        self.run_attr(tid, ino.0, async move { fs.getattr(&client, ino.0).await }, reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (fs, Caller { mut client, tid }) = self.context(req);
        // ftruncate(2) acts with the credentials of the open.
        if size.is_some()
            && let Some(file) = fh.and_then(|fh| fs.open_file(fh.0).ok())
        {
            client = file.client.clone();
        }
        // With `writeback` the kernel sends its own mtime with a size, which only the owner may set. The
        // server sets the mtime itself.
        let mtime = mtime.filter(|_| size.is_none());
        let mode = mode.map(|m| m & 0o7777);
        let set = Sattr { mode, uid, gid, size, atime: set_time(atime), mtime: set_time(mtime) };
        self.run_attr(tid, ino.0, async move { fs.setattr(&client, ino.0, set).await }, reply);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let (fs, Caller { client, tid }) = self.context(req);
        let op = async move { fs.readlink(&client, ino.0).await };
        self.run_lookup((tid, ino.0), op, |text| match text {
            Ok(text) => reply.data(&text),
            Err(e) => reply.error(number(e)),
        });
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (fs, Caller { client, tid }, name) = self.context_with_name(req, name);
        let set = Sattr { mode: Some(mode & 0o7777), ..Sattr::default() };
        let make = match Kind::from_raw_mode(mode) {
            Kind::RegularFile => NewNode::File(set),
            Kind::Fifo => NewNode::Special(MknodWhat::Fifo(set)),
            Kind::Socket => NewNode::Special(MknodWhat::Socket(set)),
            Kind::CharacterDevice => NewNode::Special(MknodWhat::Character(set, spec(rdev))),
            Kind::BlockDevice => NewNode::Special(MknodWhat::Block(set, spec(rdev))),
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        self.run_entry(tid, async move { fs.create_node(&client, parent.0, &name, make).await }, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let (fs, Caller { client, tid }, name) = self.context_with_name(req, name);
        let make = NewNode::Directory(Sattr { mode: Some(mode & 0o7777), ..Sattr::default() });
        self.run_entry(tid, async move { fs.create_node(&client, parent.0, &name, make).await }, reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (fs, Caller { client, tid }, name) = self.context_with_name(req, name);
        let make = NewNode::Symlink(target.as_os_str().as_bytes().to_vec());
        self.run_entry(tid, async move { fs.create_node(&client, parent.0, &name, make).await }, reply);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let (fs, Caller { client, tid }, name) = self.context_with_name(req, newname);
        let op = async move { fs.link(&client, ino.0, (newparent.0, &name), tid).await };
        self.run_entry(tid, op, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, Caller { client, tid }, name) = self.context_with_name(req, name);
        self.run_detached(tid, async move { fs.unlink(&client, parent.0, &name).await }, |done| {
            reply_empty(done, reply)
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, Caller { client, tid }, name) = self.context_with_name(req, name);
        self.run(tid, async move { fs.rmdir(&client, parent.0, &name).await }, |done| {
            reply_empty(done, reply)
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags != NO_FLAGS {
            return reply.error(fuser::Errno::EINVAL);
        }
        let (fs, Caller { client, tid }) = self.context(req);
        let (name, new) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec());
        let op = async move { fs.rename(&client, (parent.0, &name), (newparent.0, &new)).await };
        self.run_detached(tid, op, |done| reply_empty(done, reply));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, Caller { client, tid }) = self.context(req);
        let op = async move { fs.open(client, ino.0, flags.0 as u32, tid).await };
        self.run_lookup((tid, ino.0), op, |opened| match opened {
            Ok((fh, keep)) => reply.opened(FileHandle(fh), open_flags(keep)),
            Err(e) => reply.error(number(e)),
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (fs, Caller { client, tid }, name) = self.context_with_name(req, name);
        let op = async move { fs.create(client, parent.0, &name, mode & 0o7777, flags as u32).await };
        self.run(tid, op, |created| match created {
            Ok((e, fh, keep)) => {
                let attributes = attr(e.inode.number, &e.attrs.attributes);
                let generation = Generation(e.inode.generation);
                reply.created(&e.attrs.ttl, &attributes, generation, FileHandle(fh), open_flags(keep));
            }
            Err(e) => reply.error(number(e)),
        });
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let fs = Arc::clone(&self.fs);
        let file = match fs.open_file(fh.0) {
            Ok(file) => file,
            Err(e) => return reply.error(number(e)),
        };
        let direct = is_direct(flags, lock_owner);
        let op = async move { fs.read(&file, offset, size as usize, direct).await };
        self.run(req.pid(), op, |data| match data {
            Ok(data) => reply.data(&data),
            Err(e) => reply.error(number(e)),
        });
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (fs, tid, len) = (&self.fs, req.pid(), data.len() as u32);
        let file = match fs.open_file(fh.0) {
            Ok(file) => file,
            Err(e) => return reply.error(number(e)),
        };
        let direct = is_direct(flags, lock_owner);
        // The parts of a direct write arrive in any order, and written-back pages at any offset.
        let appends =
            has(flags, OFlags::APPEND) && !direct && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let position = if appends { WritePosition::Append(offset) } else { WritePosition::Offset(offset) };
        if appends && file.inode.needs_revalidation(&fs.timeouts) {
            return self.write_async(tid, file, (position, data.to_vec()), direct, reply);
        }
        match fs.accept_write(&file, (position, data), direct) {
            Ok(None) => reply.written(len),
            Ok(Some(completion)) => {
                let fs = Arc::clone(fs);
                let op = async move { fs.complete_write(&file, completion).await };
                self.run(tid, op, move |done| reply_written(done, len, reply));
            }
            Err(Errno::NOMEM) => self.write_async(tid, file, (position, data.to_vec()), direct, reply),
            Err(e) => reply.error(number(e)),
        }
    }

    fn flush(&self, req: &Request, _ino: INodeNo, fh: FileHandle, lock_owner: LockOwner, reply: ReplyEmpty) {
        let fs = Arc::clone(&self.fs);
        let op = async move {
            let file = fs.open_file(fh.0)?;
            let flushed = fs.flush(&file).await;
            // A close releases all locks of the process.
            flushed.and(fs.unlock_all(&file.inode, lock_owner.0).await)
        };
        self.run_detached(req.pid(), op, |done| reply_empty(done, reply));
    }

    fn fsync(&self, req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let fs = Arc::clone(&self.fs);
        let op = async move { fs.fsync(&*fs.open_file(fh.0)?).await };
        self.run_detached(req.pid(), op, |done| reply_empty(done, reply));
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        flock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let fs = Arc::clone(&self.fs);
        let release = async move {
            if let (Some(owner), Ok(file)) = (flock_owner, fs.open_file(fh.0)) {
                let _ = fs.unlock_all(&file.inode, owner.0).await; // No caller waits for the result.
            }
            fs.release(fh.0).await;
            reply.ok();
        };
        self.fs.rt.spawn("mount release", Box::pin(release));
    }

    fn getlk(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        let Ok(Some(kind)) = lock_kind(typ) else { return reply.error(fuser::Errno::EINVAL) };
        let (fs, range) = (Arc::clone(&self.fs), OwnedRange::new(lock_owner.0, start, end));
        let tested_range = range.clone();
        let op = async move { fs.test_lock(&*fs.open_file(fh.0)?, range, kind).await };
        self.run(req.pid(), op, move |conflict| match conflict {
            Ok(conflict) => {
                let (start, end, typ) = tested(conflict, &tested_range);
                reply.locked(start, end, typ, 0); // The protocol does not name the process.
            }
            Err(e) => reply.error(number(e)),
        });
    }

    fn setlk(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        _pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let (fs, tid, range) = (Arc::clone(&self.fs), req.pid(), OwnedRange::new(lock_owner.0, start, end));
        match lock_kind(typ) {
            Ok(None) => {
                let op = async move { fs.unlock(&fs.open_file(fh.0)?.inode, range).await };
                self.run_detached(tid, op, |done| reply_empty(done, reply));
            }
            Ok(Some(kind)) => {
                let op = async move {
                    let file = fs.open_file(fh.0)?;
                    let lock = fs.lock(&file, range, kind, sleep);
                    cancel_if_interrupted((&fs.rt, &fs.ticks), tid, lock).await.unwrap_or(Err(Errno::INTR))
                };
                self.run(tid, op, |done| reply_empty(done, reply));
            }
            Err(e) => reply.error(number(e)),
        }
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let (fs, Caller { client, tid }) = self.context(req);
        let op = async move { fs.opendir(client, ino.0).await };
        self.run(tid, op, |opened| match opened {
            Ok(fh) => reply.opened(FileHandle(fh), FopenFlags::empty()),
            Err(e) => reply.error(number(e)),
        });
    }

    fn readdir(&self, req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(stream) = self.dir_stream(fh) else { return reply.error(fuser::Errno::EBADF) };
        let fs = Arc::clone(&self.fs);
        let op = async move {
            let mut reader = DirReader::open(&fs, &stream, offset).await;
            let mut some = false;
            loop {
                match reader.peek().await {
                    Ok(Some((e, _))) => {
                        let kind = e.attributes.map_or(fuser::FileType::RegularFile, |a| kind(a.file_type));
                        let ino = if e.fileid == 0 { u64::MAX } else { e.fileid };
                        if !reader.is_silly_name(&e.name)
                            && reply.add(INodeNo(ino), e.cookie, kind, OsStr::from_bytes(&e.name))
                        {
                            break;
                        }
                    }
                    Ok(None) => break,
                    Err(_) if some => break,
                    Err(e) => return Ok(Err((e, reply))),
                }
                some = true;
                reader.advance();
            }
            Ok(Ok(reply))
        };
        self.run(req.pid(), op, |filled| match filled {
            Ok(Ok(reply)) => reply.ok(),
            Ok(Err((e, reply))) => reply.error(number(e)),
            Err(_) => {} // `reply` was dropped with the operation, which sends EIO to the killed process.
        });
    }

    fn readdirplus(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let Some(stream) = self.dir_stream(fh) else { return reply.error(fuser::Errno::EBADF) };
        let fs = Arc::clone(&self.fs);
        let op = async move {
            let (mut some, mut lookups) = (false, PendingLookups::new(&fs.inodes));
            let mut reader = DirReader::open(&fs, &stream, offset).await;
            let failed = loop {
                match reader.peek().await {
                    Ok(Some((e, _))) if reader.is_silly_name(&e.name) => {}
                    Ok(Some((e, issued))) => {
                        match add_plus(&fs, &stream, &e, issued, &mut lookups, &mut reply).await {
                            Ok(true) => break None,
                            Ok(false) => some = true,
                            Err(e) => break Some(e),
                        }
                    }
                    Ok(None) => break None,
                    Err(e) => break Some(e),
                }
                reader.advance();
            };
            // There is no await between here and the reply, so it is sent.
            lookups.commit();
            Ok((failed.filter(|_| !some), reply))
        };
        self.run(req.pid(), op, |filled| match filled {
            Ok((None, reply)) => reply.ok(),
            Ok((Some(e), reply)) => reply.error(number(e)),
            Err(_) => {} // As in `readdir`.
        });
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs.directories.lock().try_remove(fh.0 as usize);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok(); // NFS servers commit directory changes before they reply.
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let (fs, Caller { client, tid }) = self.context(req);
        self.run(tid, async move { fs.statfs(&client).await }, |stat| match stat {
            Ok((s, name_max)) => {
                let blocks = |bytes: u64| bytes / u64::from(BLOCK);
                let (free, available) = (blocks(s.free_bytes), blocks(s.available_bytes));
                let total = blocks(s.total_bytes);
                reply.statfs(total, free, available, s.total_files, s.free_files, BLOCK, name_max, BLOCK);
            }
            Err(e) => reply.error(number(e)),
        });
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (fs, Caller { client, tid }) = self.context(req);
        let op = async move { fs.access(&client, ino.0, mask.bits() as u32).await };
        self.run(tid, op, |done| reply_empty(done, reply));
    }

    /// NFS has no ioctls; programs use this to test for a terminal.
    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(fuser::Errno::ENOTTY);
    }

    // After ENOSYS the kernel no longer sends these three: it fails them with EOPNOTSUPP or emulates them.
    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if !self.has_v4_2_operations() {
            return reply.error(fuser::Errno::ENOSYS);
        }
        let (fs, range) = (Arc::clone(&self.fs), offset..offset.saturating_add(length));
        let op = async move { fs.fallocate(&*fs.open_file(fh.0)?, range, mode).await };
        self.run_detached(req.pid(), op, |done| reply_empty(done, reply));
    }

    fn lseek(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let target = match whence {
            SEEK_DATA => SeekTarget::Data,
            SEEK_HOLE => SeekTarget::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let (true, Ok(offset)) = (self.has_v4_2_operations(), u64::try_from(offset)) else {
            return reply.error(fuser::Errno::ENOSYS);
        };
        let fs = Arc::clone(&self.fs);
        let op = async move { fs.seek(&*fs.open_file(fh.0)?, offset, target).await };
        self.run(req.pid(), op, |found| match found {
            Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
            Err(e) => reply.error(number(e)),
        });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if !self.has_v4_2_operations() {
            return reply.error(fuser::Errno::ENOSYS);
        }
        let fs = Arc::clone(&self.fs);
        let op = async move {
            let (source, destination) = (fs.open_file(fh_in.0)?, fs.open_file(fh_out.0)?);
            fs.copy_file_range((&*source, offset_in), (&*destination, offset_out), len).await
        };
        self.run_detached(req.pid(), op, |copied| match copied {
            Ok(copied) => reply.written(copied),
            Err(e) => reply.error(number(e)),
        });
    }

    // The kernel converts ENOSYS to EOPNOTSUPP and sends no further requests.
    fn setxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn removexattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }
}

/// Adds a READDIRPLUS entry. `true`: the reply is full.
async fn add_plus(
    fs: &Arc<Fs>,
    stream: &DirStream,
    e: &millrace_client::nfs3::DirEntry,
    issued: CallTime,
    lookups: &mut PendingLookups<'_>,
    reply: &mut ReplyDirectoryPlus,
) -> Result<bool, Errno> {
    let name = OsStr::from_bytes(&e.name);
    let Some((handle, attributes)) = handle_and_attributes(stream, e).await? else { return Ok(false) };
    if e.is_dot() {
        // The kernel uses only number and type, and counts no lookup.
        let a = attr(e.fileid, &attributes);
        return Ok(reply.add(a.ino, e.cookie, name, &Duration::ZERO, &a, Generation(0)));
    }
    let object = Object { handle, attributes, dir: WccData::default() };
    let made = fs.make_listed_entry(&stream.client, (&stream.dir, &e.name), issued, object).await;
    let entry = match made {
        Err(Errno::STALE) => return Ok(false), // The file no longer exists.
        made => made?,
    };
    let a = attr(entry.inode.number, &entry.attrs.attributes);
    let ttl = entry.attrs.ttl.min(entry.ttl);
    let full = reply.add(a.ino, e.cookie, name, &ttl, &a, Generation(entry.inode.generation));
    match full {
        true => fs.inodes.forget(entry.inode.number, 1),
        false => lookups.add(entry.inode.number),
    }
    Ok(full)
}
