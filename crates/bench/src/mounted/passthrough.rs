//! A user-space file system that passes each operation to a local directory; measures the cost of FUSE
//! itself.
//!
//! For benchmarks only. It uses the same channel and options as a mount of an export, with the default timeouts.
//! Because its operations block, threads read the requests, one for each processor. Each operation is one or two
//! system calls on the directory (openat, fstatat, pread, pwrite, getdents), made by the thread that read the
//! request. It is unrelated to the kernel's FUSE passthrough (`FUSE_PASSTHROUGH`), in which data does not enter
//! user space, and unsuitable for general use: names can be looked up, listed and created, but not changed or
//! removed, and all operations use the credentials of the process.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::FileExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use millrace_fuse::MountOptions;
use millrace_fuse_session::{
    MountError,
    channel::{Call, Handler, WriteData},
    device::MountRequest,
    mountpoint::check,
    protocol::{
        Attributes, DirectoryEntries, DirectoryEntry, Entry, InitFlags, OpenFlags, Opened, Operation, ROOT,
        ReadDirectory, ReadRequest, Reply, SetAttributes, Statistics, Time, WriteRequest,
    },
    settings::{BLOCK, TREE, raise_kernel_read_ahead, start, threads},
};
use parking_lot::{Mutex, RwLock};
use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, Stat, fstat, fsync, ftruncate, openat, statat},
    io::{Errno, pread},
    mount::MountFlags,
};
use slab::Slab;

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
    let session = start(passthrough, &request, &path, threads(), false).map_err(broken)?;
    let serving = std::thread::Builder::new().name("millrace-mount".into()).spawn(move || session.run());
    let serving = serving.map_err(broken)?;
    raise_kernel_read_ahead(&path);
    ready();
    serving.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))).map_err(broken)
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
            paths: RwLock::new(HashMap::from([(ROOT, PathBuf::from("."))])),
            root,
            files: Mutex::default(),
            directories: Mutex::default(),
            timeouts: (Duration::from_secs(o.acregmin.into()), Duration::from_secs(o.acdirmin.into())),
        })
    }

    fn path(&self, node: u64) -> Result<PathBuf, Errno> {
        self.paths.read().get(&node).cloned().ok_or(Errno::STALE)
    }

    fn attributes(&self, node: u64) -> Result<Attributes, Errno> {
        let stat = statat(&self.root, self.path(node)?, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Attributes { inode: node, ..attributes(&stat) })
    }

    /// Looks up a name and records its path.
    fn entry(&self, dir: &Path, name: &[u8]) -> Result<Entry, Errno> {
        let path = dir.join(OsStr::from_bytes(name));
        let attributes = attributes(&statat(&self.root, &path, AtFlags::SYMLINK_NOFOLLOW)?);
        self.paths.write().insert(attributes.inode, path);
        let (attributes_ttl, name_ttl) = self.timeouts;
        Ok(Entry { node: attributes.inode, generation: 0, name_ttl, attributes_ttl, attributes })
    }

    fn open(&self, path: &Path, flags: u32, mode: u32) -> Result<Opened, Errno> {
        let unused = OFlags::APPEND | OFlags::DIRECT | OFlags::EXCL | OFlags::NOCTTY;
        let flags = OFlags::from_bits_retain(flags).difference(unused) | OFlags::CLOEXEC;
        let fd = openat(&self.root, path, flags, Mode::from_raw_mode(mode & 0o7777))?;
        let handle = self.files.lock().insert(Arc::new(File::from(fd))) as u64;
        Ok(Opened { handle, flags: OpenFlags::empty() })
    }

    fn create(&self, dir: u64, name: &[u8], mode: u32, flags: u32) -> Result<(Entry, Opened), Errno> {
        let dir = self.path(dir)?;
        let path = dir.join(OsStr::from_bytes(name));
        let opened = self.open(&path, flags | OFlags::CREATE.bits(), mode)?;
        Ok((self.entry(&dir, name)?, opened))
    }

    /// Supports only the size.
    fn set_attributes(&self, node: u64, set: &SetAttributes) -> Result<Attributes, Errno> {
        if let Some(size) = set.size {
            let file = openat(&self.root, self.path(node)?, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            ftruncate(&file, size)?;
        }
        self.attributes(node)
    }

    fn file(&self, handle: u64) -> Result<Arc<File>, Errno> {
        self.files.lock().get(handle as usize).cloned().ok_or(Errno::BADF)
    }

    fn read(&self, call: Call, read: &ReadRequest) {
        let size = read.size as usize;
        MEMORY.with_borrow_mut(|memory| {
            if memory.len() < size {
                memory.resize(size, 0);
            }
            let memory = &mut memory[..size];
            match self.file(read.handle).and_then(|file| fill(&file, read.offset, memory)) {
                Ok(done) => call.reply(&Reply::Data(&memory[..done])),
                Err(e) => call.error(e),
            }
        });
    }

    fn write_data(&self, write: &WriteRequest, data: &[u8]) -> Result<u32, Errno> {
        let written = self.file(write.handle)?.write_all_at(data, write.offset);
        written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        Ok(write.size)
    }

    fn open_directory(&self, node: u64) -> Result<Opened, Errno> {
        let fd = openat(&self.root, self.path(node)?, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let handle = self.directories.lock().insert(Arc::new(Mutex::new(Dir::new(fd)?))) as u64;
        Ok(Opened { handle, flags: OpenFlags::empty() })
    }

    /// Passes the entries from an offset to `push`, until it returns `false` (the reply is full) or an error.
    fn list(
        &self,
        list: &ReadDirectory,
        mut push: impl FnMut(&mut DirectoryEntries, &DirectoryEntry<'_>) -> Result<bool, Errno>,
    ) -> Result<DirectoryEntries, Errno> {
        let dir = self.directories.lock().get(list.handle as usize).cloned().ok_or(Errno::BADF)?;
        let mut dir = dir.lock();
        let mut entries = DirectoryEntries::new(list.size);
        dir.seek(list.offset.cast_signed())?;
        while let Some(entry) = dir.read() {
            let entry = entry?;
            let found = DirectoryEntry {
                inode: entry.ino(),
                offset: entry.offset().cast_unsigned(),
                mode: entry.file_type().as_raw_mode(),
                name: entry.file_name().to_bytes(),
            };
            if !push(&mut entries, &found)? {
                break;
            }
        }
        Ok(entries)
    }

    fn list_plus(&self, node: u64, list: &ReadDirectory) -> Result<DirectoryEntries, Errno> {
        let dir = self.path(node)?;
        self.list(list, |entries, found| {
            let entry = match found.name {
                b"." | b".." => {
                    let attributes = Attributes { inode: found.inode, ..attributes(&fstat(&self.root)?) };
                    Entry { node: found.inode, attributes, ..Entry::default() }
                }
                name => self.entry(&dir, name)?,
            };
            Ok(entries.push_plus(&entry, found))
        })
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

fn attributes(s: &Stat) -> Attributes {
    let time = |seconds, nanoseconds: u64| Time { seconds, nanoseconds: nanoseconds as u32 };
    Attributes {
        inode: s.st_ino,
        size: s.st_size as u64,
        blocks: s.st_blocks as u64,
        atime: time(s.st_atime, s.st_atime_nsec),
        mtime: time(s.st_mtime, s.st_mtime_nsec),
        ctime: time(s.st_ctime, s.st_ctime_nsec),
        mode: s.st_mode,
        links: s.st_nlink as u32,
        uid: s.st_uid,
        gid: s.st_gid,
        device: 0,
        block_size: BLOCK,
    }
}

/// Sends a result as the reply that `success` makes of it.
fn answer<T>(call: Call, result: Result<T, Errno>, success: impl FnOnce(&T) -> Reply<'_>) {
    match result {
        Ok(value) => call.reply(&success(&value)),
        Err(e) => call.error(e),
    }
}

impl Handler for Passthrough {
    fn capabilities(&self, _offered: InitFlags) -> InitFlags {
        TREE | InitFlags::AUTO_INVAL_DATA
    }

    fn write(&self, call: Call, write: WriteRequest, data: WriteData<'_>) {
        answer(call, self.write_data(&write, &data), |written| Reply::Written(*written));
    }

    fn handle(&self, call: Call, operation: Operation<'_>) {
        use Operation as O;
        let (node, ttl) = (call.node(), self.timeouts.0);
        match operation {
            O::Lookup { name } => {
                let found = self.path(node).and_then(|dir| self.entry(&dir, name));
                answer(call, found, |entry| Reply::Entry(*entry));
            }
            O::GetAttributes => answer(call, self.attributes(node), |a| Reply::Attributes(*a, ttl)),
            O::SetAttributes(set) => {
                answer(call, self.set_attributes(node, &set), |a| Reply::Attributes(*a, ttl));
            }
            O::Create { name, mode, flags } => {
                answer(call, self.create(node, name, mode, flags), |(e, o)| Reply::Created(*e, *o));
            }
            O::Open { flags } => {
                let opened = self.path(node).and_then(|path| self.open(&path, flags, 0));
                answer(call, opened, |opened| Reply::Opened(*opened));
            }
            O::Read(read) => self.read(call, &read),
            O::Flush { .. } => call.finish(Ok(())),
            O::Fsync { handle } => call.finish(self.file(handle).and_then(|file| fsync(&file))),
            O::Release { handle } => {
                self.files.lock().try_remove(handle as usize);
                call.finish(Ok(()));
            }
            O::OpenDirectory => answer(call, self.open_directory(node), |opened| Reply::Opened(*opened)),
            O::ReadDirectory(list) => {
                let entries = self.list(&list, |entries, found| Ok(entries.push(found)));
                answer(call, entries, DirectoryEntries::reply);
            }
            O::ReadDirectoryPlus(list) => answer(call, self.list_plus(node, &list), DirectoryEntries::reply),
            O::ReleaseDirectory { handle } => {
                self.directories.lock().try_remove(handle as usize);
                call.finish(Ok(()));
            }
            O::Statistics => call.reply(&Reply::Statistics(Statistics::default())),
            _ => call.error(Errno::NOSYS),
        }
    }
}
