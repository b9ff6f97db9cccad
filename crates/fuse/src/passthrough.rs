//! A user-space file system that passes each operation to a local directory; measures the cost of FUSE
//! itself.
//!
//! For benchmarks only. It uses the same library, threads and options as a mount of an export, with the
//! default timeouts. Each operation is one or two system calls on the directory (openat, fstatat, pread,
//! pwrite, getdents), made by the thread that read the request. It is unrelated to the kernel's FUSE
//! passthrough (`FUSE_PASSTHROUGH`), in which data does not enter user space, and unsuitable for general use:
//! names can be looked up, listed and created, but not changed or removed, and all operations use the
//! credentials of the process.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::{Mutex, RwLock};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, fsync, ftruncate, openat, statat},
    io::{Errno, pread},
    mount::MountFlags,
};
use slab::Slab;

use crate::{
    MountError, MountOptions,
    convert::number,
    device::MountRequest,
    mountpoint::check,
    session::{TREE, negotiate, raise_kernel_read_ahead, start},
};

/// Source shown in mount tables.
const NAME: &str = "millrace-passthrough";

/// Mounts the directory `of` on `at` and serves it until it is unmounted. Calls `ready` once it is usable.
///
/// # Errors
/// [`MountError`] if the directory cannot be opened, or mounting fails.
pub fn serve(of: &Path, at: &Path, ready: impl FnOnce()) -> Result<(), MountError> {
    let path = check(at)?;
    let root = openat(rustix::fs::CWD, of, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| MountError::Local(format!("cannot open {}: {e}", of.display())))?;
    let broken = |source| MountError::Kernel { path: path.clone(), source };
    let request = MountRequest {
        source: NAME.into(),
        flags: MountFlags::NOSUID | MountFlags::NODEV,
        allow_other: false,
        default_permissions: false,
    };
    let passthrough = Passthrough::new(root).map_err(|e| broken(e.into()))?;
    let session =
        start(passthrough, &request, &path).and_then(|(session, _)| session.spawn()).map_err(broken)?;
    raise_kernel_read_ahead(&path);
    ready();
    session.join().map_err(broken)
}

struct Passthrough {
    root: OwnedFd,
    /// Path of each inode relative to the root, by inode number. Never pruned: benchmarks use few files.
    paths: RwLock<HashMap<u64, PathBuf>>,
    files: Mutex<Slab<Arc<File>>>,
    directories: Mutex<Slab<Arc<Mutex<Dir>>>>,
    /// Attribute and name timeouts: the defaults of an export's mount.
    timeouts: (Duration, Duration),
}

thread_local! {
    /// Read buffer of each thread.
    static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Passthrough {
    fn new(root: OwnedFd) -> Result<Self, Errno> {
        let o = MountOptions::default();
        Ok(Self {
            paths: RwLock::new(HashMap::from([(INodeNo::ROOT.0, PathBuf::from("."))])),
            root,
            files: Mutex::default(),
            directories: Mutex::default(),
            timeouts: (Duration::from_secs(o.acregmin.into()), Duration::from_secs(o.acdirmin.into())),
        })
    }

    fn path(&self, number: INodeNo) -> Result<PathBuf, Errno> {
        self.paths.read().get(&number.0).cloned().ok_or(Errno::STALE)
    }

    fn attributes(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        let stat = statat(&self.root, self.path(number)?, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileAttr { ino: number, ..attr(&stat) })
    }

    /// Looks up a name and records its path.
    fn entry(&self, dir: &Path, name: &OsStr) -> Result<FileAttr, Errno> {
        let path = dir.join(name);
        let attributes = attr(&statat(&self.root, &path, AtFlags::SYMLINK_NOFOLLOW)?);
        self.paths.write().insert(attributes.ino.0, path);
        Ok(attributes)
    }

    fn open(&self, path: &Path, flags: OFlags, mode: u32) -> Result<FileHandle, Errno> {
        let flags = flags.difference(OFlags::APPEND | OFlags::DIRECT | OFlags::EXCL | OFlags::NOCTTY)
            | OFlags::CLOEXEC;
        let fd = openat(&self.root, path, flags, Mode::from_raw_mode(mode & 0o7777))?;
        Ok(FileHandle(self.files.lock().insert(Arc::new(File::from(fd))) as u64))
    }

    fn create(
        &self,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Result<(FileAttr, FileHandle), Errno> {
        let dir = self.path(dir)?;
        let handle =
            self.open(&dir.join(name), OFlags::from_bits_retain(flags as u32) | OFlags::CREATE, mode)?;
        Ok((self.entry(&dir, name)?, handle))
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<File>, Errno> {
        self.files.lock().get(handle.0 as usize).cloned().ok_or(Errno::BADF)
    }

    /// Passes the entries from `offset` on to `each`, until it returns `true` (the reply is full) or an
    /// error.
    fn list(
        &self,
        handle: FileHandle,
        offset: u64,
        mut each: impl FnMut(&rustix::fs::DirEntry, u64) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        let dir = self.directories.lock().get(handle.0 as usize).cloned().ok_or(Errno::BADF)?;
        let mut dir = dir.lock();
        dir.seek(offset as i64)?;
        while let Some(entry) = dir.read() {
            let entry = entry?;
            if each(&entry, entry.offset() as u64)? {
                break;
            }
        }
        Ok(())
    }
}

/// Reads from `offset` until `memory` is full or the file ends. Returns the number of bytes.
fn fill(file: &File, offset: u64, memory: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < memory.len() {
        match pread(file, &mut memory[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

fn of_io(e: &io::Error) -> fuser::Errno {
    fuser::Errno::from_i32(e.raw_os_error().unwrap_or_else(|| Errno::IO.raw_os_error()))
}

fn kind(of: FileType) -> fuser::FileType {
    match of {
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        _ => fuser::FileType::RegularFile,
    }
}

fn time(seconds: i64, nanoseconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::new(seconds.try_into().unwrap_or(0), nanoseconds as u32)
}

fn attr(s: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(s.st_ino),
        size: s.st_size as u64,
        blocks: s.st_blocks as u64,
        atime: time(s.st_atime, s.st_atime_nsec),
        mtime: time(s.st_mtime, s.st_mtime_nsec),
        ctime: time(s.st_ctime, s.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: kind(FileType::from_raw_mode(s.st_mode)),
        perm: (s.st_mode & 0o7777) as u16,
        nlink: s.st_nlink as u32,
        uid: s.st_uid,
        gid: s.st_gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

#[allow(clippy::too_many_arguments)] // The signature is the trait's.
impl Filesystem for Passthrough {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, &[&TREE[..], &[InitFlags::FUSE_AUTO_INVAL_DATA]].concat());
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.path(parent).and_then(|dir| self.entry(&dir, name)) {
            Ok(a) => reply.entry_with_ttls(&self.timeouts.0, &self.timeouts.1, &a, Generation(0)),
            Err(e) => reply.error(number(e)),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Ok(a) => reply.attr(&self.timeouts.0, &a),
            Err(e) => reply.error(number(e)),
        }
    }

    /// Supports only the size.
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let cut = |size: u64| {
            let file = openat(&self.root, self.path(ino)?, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            ftruncate(&file, size)
        };
        match size.map_or(Ok(()), cut).and_then(|()| self.attributes(ino)) {
            Ok(a) => reply.attr(&self.timeouts.0, &a),
            Err(e) => reply.error(number(e)),
        }
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create(parent, name, mode, flags) {
            Ok((a, fh)) => reply.created(&self.timeouts.0, &a, Generation(0), fh, FopenFlags::empty()),
            Err(e) => reply.error(number(e)),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let flags = OFlags::from_bits_retain(flags.0 as u32);
        match self.path(ino).and_then(|path| self.open(&path, flags, 0)) {
            Ok(fh) => reply.opened(fh, FopenFlags::empty()),
            Err(e) => reply.error(number(e)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = size as usize;
        MEMORY.with_borrow_mut(|memory| {
            if memory.len() < size {
                memory.resize(size, 0);
            }
            let memory = &mut memory[..size];
            match self.file(fh).and_then(|file| fill(&file, offset, memory)) {
                Ok(done) => reply.data(&memory[..done]),
                Err(e) => reply.error(number(e)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = match self.file(fh) {
            Ok(file) => file,
            Err(e) => return reply.error(number(e)),
        };
        match file.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(of_io(&e)),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        match self.file(fh).and_then(|file| fsync(&file)) {
            Ok(()) => reply.ok(),
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
        self.files.lock().try_remove(fh.0 as usize);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.path(ino).and_then(|path| {
            let fd = openat(&self.root, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            Ok(self.directories.lock().insert(Arc::new(Mutex::new(Dir::new(fd)?))))
        });
        match opened {
            Ok(fh) => reply.opened(FileHandle(fh as u64), FopenFlags::empty()),
            Err(e) => reply.error(number(e)),
        }
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.list(fh, offset, |e, next| {
            let name = OsStr::from_bytes(e.file_name().to_bytes());
            Ok(reply.add(INodeNo(e.ino()), next, kind(e.file_type()), name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(number(e)),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.path(ino).and_then(|dir| {
            self.list(fh, offset, |e, next| {
                let name = OsStr::from_bytes(e.file_name().to_bytes());
                if name == "." || name == ".." {
                    let a = FileAttr { ino: INodeNo(e.ino()), ..attr(&fstat(&self.root)?) };
                    return Ok(reply.add(a.ino, next, name, &Duration::ZERO, &a, Generation(0)));
                }
                let a = self.entry(&dir, name)?;
                Ok(reply.add(a.ino, next, name, &self.timeouts.0, &a, Generation(0)))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(number(e)),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.directories.lock().try_remove(fh.0 as usize);
        reply.ok();
    }

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: fuser::ReplyXattr) {
        reply.error(fuser::Errno::ENOSYS);
    }
}
