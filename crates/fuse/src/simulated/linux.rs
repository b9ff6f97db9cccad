//! A model of the Linux kernel's FUSE client in virtual time: its requests, inodes and dentries, following
//! fs/fuse.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, OnceLock},
    thread::JoinHandle,
    time::Duration,
};

use futures::{FutureExt, future::join_all};
use millrace_client::handles::Client;
use millrace_crashtest::{Random, unstable::choice};
use millrace_fuse_session::{
    channel::{Session, SessionOptions},
    protocol::InitFlags,
    settings,
};
use millrace_runtime::{RuntimeExt, RuntimeRef};
use parking_lot::Mutex;
use rustix::{fs::OFlags, io::Errno};

use super::{
    hooked_runtime::HookedRuntime,
    page_cache::{Node, PAGE},
    wire::{Body, Channel, Op, Reply, u32_at, u64_at},
};
use crate::{MountOptions, dentries::ROOT, fs::Fs, handler::FuseHandler, invalidation::Invalidator};

/// SETATTR flags (`FATTR_SIZE`, `FATTR_FH`, `FATTR_MTIME`, `FATTR_MTIME_NOW`).
pub(super) const SET_SIZE: u32 = 1 << 3;
const SET_MTIME: u32 = 1 << 5;
pub(super) const HAS_HANDLE: u32 = 1 << 6;
const MTIME_NOW: u32 = 1 << 8;
/// `FUSE_WRITE_CACHE`: data from the page cache. `FUSE_WRITE_LOCKOWNER` and `FUSE_READ_LOCKOWNER`: bypasses
/// it.
pub(super) const FROM_CACHE: u32 = 1;
pub(super) const HAS_LOCK_OWNER: u32 = 2;
/// `FUSE_WRITEBACK_CACHE`.
const WRITEBACK_CACHE: u32 = 1 << 16;
/// `FOPEN_KEEP_CACHE`.
pub(super) const KEEP_CACHE: u32 = 2;
/// `FUSE_NOTIFY_INVAL_INODE`.
const INVAL_INODE: i32 = 2;
/// `FUSE_NOTIFY_STORE`.
const STORE: i32 = 4;
/// Size of `fuse_entry_out`, and of it with the `fuse_dirent` that follows, before the name.
const ENTRY: usize = 128;
const DIRENT_PLUS: usize = ENTRY + 24;
/// Offset of the size in `fuse_entry_out` and `fuse_attr_out`.
const ENTRY_SIZE: usize = 48;
pub(super) const ATTR_SIZE: usize = 24;

/// I/O mode of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Io {
    /// Files are opened with O_DIRECT.
    Direct,
    /// Buffered; pages are written before write(2) returns.
    WriteThrough,
    /// Buffered; pages are written later (`writeback`).
    WriteBack,
}

/// An open file description.
#[derive(Clone)]
pub(crate) struct Description {
    pub(crate) node: Arc<Node>,
    pub(super) handle: u64,
    /// The thread that uses it.
    pub(super) pid: u32,
}

/// A kernel with one mounted file system.
pub(crate) struct Linux {
    pub(super) fs: Arc<Fs>,
    channel: Arc<Channel>,
    nodes: Mutex<HashMap<u64, Arc<Node>>>,
    /// Dentries of the root directory.
    names: Mutex<HashMap<String, u64>>,
    pub(crate) io: Io,
    /// Maximum size of a READ or WRITE.
    pub(super) max_transfer: u64,
    pub(crate) random: Mutex<Random>,
    rt: RuntimeRef,
    session: Option<JoinHandle<()>>,
}

/// Result of a system call.
pub(crate) type SysResult<T> = Result<T, Errno>;

pub(super) fn errno(number: i32) -> Errno {
    Errno::from_raw_os_error(number)
}

/// Splits a range into parts of at most `max_transfer` bytes.
pub(super) fn parts(range: Range<u64>, max_transfer: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(max_transfer as usize).map(move |start| start..end.min(start + max_transfer))
}

impl Linux {
    /// Mounts the export of `client`.
    pub(crate) async fn mount(
        client: Client,
        options: &MountOptions,
        io: Io,
        mut random: Random,
    ) -> Arc<Self> {
        let root = client.resolve("").await.unwrap();
        let after = Arc::new(OnceLock::new());
        let rt: RuntimeRef = Arc::new(HookedRuntime::new(client.runtime().clone(), Arc::clone(&after)));
        let fs = Arc::new(Fs::new((rt.clone(), 1), client, options, root, 255));
        let kernel = FuseHandler::new(Arc::clone(&fs), io == Io::WriteBack, InitFlags::empty());
        let (channel, device) = Channel::new(if io == Io::WriteBack { WRITEBACK_CACHE } else { 0 });
        // The mount sends 64 KiB (`wsize`) from buffers of this size, and never keeps larger ones.
        let max_write = choice(&mut random, &[64 << 10, 1 << 20]);
        let settings = SessionOptions { max_write, ..settings::options(1, None) };
        let session = Session::start(kernel, device, settings).unwrap();
        channel.wait_for_barrier();
        let _ = fs.invalidator.set(Invalidator::new(rt.clone(), session.notifier()));
        fs.start_tasks();
        let max_transfer = PAGE << random.below(3);
        let linux = Arc::new(Self {
            fs,
            channel: Arc::new(channel),
            nodes: Mutex::default(),
            names: Mutex::default(),
            io,
            max_transfer,
            random: Mutex::new(random),
            rt,
            session: Some(std::thread::spawn(move || session.run().unwrap())),
        });
        let weak = Arc::downgrade(&linux);
        let drain: Box<dyn Fn() + Send + Sync> = Box::new(move || {
            if let Some(linux) = weak.upgrade() {
                linux.handle_notifications();
            }
        });
        let _ = after.set(drain);
        linux
    }

    /// Yields for a random time, like a preempted task.
    pub(super) async fn be_preempted(&self) {
        let time = self.random.lock().below(160);
        if time >= 20 {
            return;
        }
        self.rt.sleep(Duration::from_millis(time)).await;
    }

    /// Handles notifications from the file system.
    fn handle_notifications(&self) {
        for (code, body) in self.channel.drain() {
            let Some(node) = self.nodes.lock().get(&u64_at(&body, 0)).cloned() else { continue };
            match code {
                // A negative offset invalidates only attributes.
                INVAL_INODE => node.cache.lock().invalidate(u64_at(&body, 8) as i64 >= 0),
                STORE => node.cache.lock().store(u64_at(&body, 8), &body[24..]),
                _ => {}
            }
        }
    }

    pub(super) async fn call(&self, op: Op, node: u64, pid: u32, body: Body) -> Reply {
        let reply = self.channel.request(op, node, pid, body);
        self.handle_notifications();
        reply.await.unwrap_or(Err(Errno::IO.raw_os_error()))
    }

    /// Returns the node of a `fuse_entry_out` and increments its lookup count.
    fn node(&self, entry: &[u8], name: &str) -> Arc<Node> {
        let (number, size) = (u64_at(entry, 0), u64_at(entry, ENTRY_SIZE));
        self.names.lock().insert(name.to_owned(), number);
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(number).or_insert_with(|| Arc::new(Node::new(number, size)));
        *node.lookups.lock() += 1;
        Arc::clone(node)
    }

    /// open(2) with O_CREAT, and O_TRUNC if `truncate`.
    pub(crate) async fn open(&self, pid: u32, name: &str, truncate: bool) -> SysResult<Description> {
        let cached = self.names.lock().get(name).and_then(|n| self.nodes.lock().get(n).cloned());
        let mut found = match cached.filter(|_| self.random.lock().below(2) == 0) {
            Some(node) => Ok(node),
            None => self.lookup(pid, name).await,
        };
        // After ESTALE the path is looked up once more (`do_filp_open`).
        for is_last in [false, true] {
            let node = match found {
                Ok(node) => node,
                Err(Errno::NOENT) => return self.create(pid, name).await,
                Err(e) => return Err(e),
            };
            match self.open_node(pid, &node).await {
                Err(Errno::STALE) if !is_last => found = self.lookup(pid, name).await,
                Err(e) => return Err(e),
                Ok(opened) => {
                    if truncate {
                        self.set_size(&opened, 0, false).await?;
                    }
                    return Ok(opened);
                }
            }
        }
        Err(Errno::STALE)
    }

    pub(super) async fn lookup(&self, pid: u32, name: &str) -> SysResult<Arc<Node>> {
        let entry = self.call(Op::Lookup, ROOT, pid, Body::default().name(name)).await.map_err(errno)?;
        if u64_at(&entry, 0) == 0 { Err(Errno::NOENT) } else { Ok(self.node(&entry, name)) }
    }

    fn flags(&self) -> u32 {
        let direct = if self.io == Io::Direct { OFlags::DIRECT } else { OFlags::empty() };
        (OFlags::RDWR | direct).bits()
    }

    async fn create(&self, pid: u32, name: &str) -> SysResult<Description> {
        let body = Body::default().u32(self.flags()).u32(0o100_600).u32(0).u32(0).name(name);
        let created = self.call(Op::Create, ROOT, pid, body).await.map_err(errno)?;
        let node = self.node(&created, name);
        let handle = u64_at(&created, created.len() - 16);
        Ok(Description { node, handle, pid })
    }

    /// opendir(3) of the root; returns the file handle.
    pub(super) async fn open_root(&self, pid: u32) -> SysResult<u64> {
        let opened = self.call(Op::Opendir, ROOT, pid, Body::default().u32(0).u32(0)).await.map_err(errno)?;
        Ok(u64_at(&opened, 0))
    }

    /// Reads at most `size` bytes of READDIRPLUS entries after `offset`. Returns each node with its offset.
    pub(super) async fn list_root(
        &self,
        (pid, handle): (u32, u64),
        offset: u64,
        size: u32,
    ) -> SysResult<Vec<(Arc<Node>, u64)>> {
        let body = Body::default().u64(handle).u64(offset).u32(size).u32(0).u64(0).u32(0).u32(0);
        let entries = self.call(Op::Readdirplus, ROOT, pid, body).await.map_err(errno)?;
        let (mut rest, mut found) = (&entries[..], Vec::new());
        while !rest.is_empty() {
            let (offset, len) = (u64_at(rest, ENTRY + 8), u32_at(rest, ENTRY + 16) as usize);
            let name = str::from_utf8(&rest[DIRENT_PLUS..DIRENT_PLUS + len]).unwrap();
            found.push((self.node(rest, name), offset));
            rest = &rest[(DIRENT_PLUS + len).next_multiple_of(8)..];
        }
        Ok(found)
    }

    pub(super) async fn open_node(&self, pid: u32, node: &Arc<Node>) -> SysResult<Description> {
        let body = Body::default().u32(self.flags()).u32(0);
        let opened = self.call(Op::Open, node.number, pid, body).await.map_err(errno)?;
        if u32_at(&opened, 8) & KEEP_CACHE == 0 {
            node.cache.lock().drop_clean();
        }
        Ok(Description { node: Arc::clone(node), handle: u64_at(&opened, 0), pid })
    }

    /// close(2), at random followed by the eviction of the inode.
    pub(crate) async fn close(&self, file: Description) -> SysResult<()> {
        self.close_with(file, || self.random.lock().below(2) != 0).await
    }

    /// close(2), followed by the eviction of the inode if this was the last description and `evicts` returns
    /// `true`.
    pub(super) async fn close_with(&self, file: Description, evicts: impl FnOnce() -> bool) -> SysResult<()> {
        let written = self.write_back(&file).await;
        let Description { node, handle, pid } = file;
        let flushed = match written {
            Ok(()) => {
                let flush = Body::default().u64(handle).u64(0).u64(pid.into());
                self.call(Op::Flush, node.number, pid, flush).await.map(drop).map_err(errno)
            }
            Err(e) => Err(e), // `fuse_flush` sends no request.
        };
        let release = Body::default().u64(handle).u32(self.flags()).u32(0).u64(0);
        let released = self.call(Op::Release, node.number, 0, release);
        // The kernel does not wait for the reply to RELEASE, unless it evicts the inode.
        let is_last = || Arc::strong_count(&node) == 2; // This reference and that of the table.
        if !is_last() || !evicts() {
            drop(released.now_or_never());
            return flushed;
        }
        released.await.map_err(errno)?;
        if is_last() {
            self.nodes.lock().remove(&node.number);
            let lookups = *node.lookups.lock();
            drop(self.channel.request(Op::Forget, node.number, 0, Body::default().u64(lookups)));
        }
        flushed
    }

    /// Sends READs for a range concurrently.
    pub(super) async fn get(
        &self,
        file: &Description,
        range: Range<u64>,
        read_flags: u32,
    ) -> SysResult<Vec<u8>> {
        let read = |part: Range<u64>| {
            let body = Body::default().u64(file.handle).u64(part.start).u32((part.end - part.start) as u32);
            let body = body.u32(read_flags).u64(file.pid.into()).u32(self.flags()).u32(0);
            self.call(Op::Read, file.node.number, file.pid, body)
        };
        let ranges: Vec<_> = parts(range, self.max_transfer).collect();
        let results = join_all(ranges.iter().cloned().map(read)).await;
        let mut data = Vec::new();
        for (part, result) in ranges.into_iter().zip(results) {
            let result = result.map_err(errno)?;
            data.extend(&result);
            if (result.len() as u64) < part.end - part.start {
                break;
            }
        }
        Ok(data)
    }

    /// Sends WRITEs for `data` concurrently.
    pub(super) async fn put(
        &self,
        file: &Description,
        offset: u64,
        data: &[u8],
        write_flags: u32,
    ) -> SysResult<()> {
        let write = |part: Range<u64>| {
            let bytes = &data[(part.start - offset) as usize..(part.end - offset) as usize];
            let body = Body::default().u64(file.handle).u64(part.start).u32(bytes.len() as u32);
            let body = body.u32(write_flags).u64(file.pid.into()).u32(self.flags()).u32(0).bytes(bytes);
            let (reply, len) = (self.call(Op::Write, file.node.number, file.pid, body), bytes.len() as u32);
            async move {
                match reply.await {
                    Ok(written) if u32_at(&written, 0) == len => Ok(()),
                    Ok(_) => Err(Errno::IO),
                    Err(e) => Err(errno(e)),
                }
            }
        };
        let put = join_all(parts(offset..offset + data.len() as u64, self.max_transfer).map(write)).await;
        put.into_iter().collect()
    }

    pub(super) async fn set(&self, file: &Description, valid: u32, size: u64) -> SysResult<()> {
        let body = Body::default().u32(valid).u32(0).u64(file.handle).u64(size).bytes(&[0; 64]);
        self.call(Op::Setattr, file.node.number, file.pid, body).await.map(drop).map_err(errno)
    }

    /// fsync(2).
    pub(crate) async fn fsync(&self, file: &Description) -> SysResult<()> {
        let Description { node, handle, pid } = file;
        self.write_back(file).await?;
        if self.io == Io::WriteBack {
            self.set(file, SET_MTIME | MTIME_NOW | HAS_HANDLE, 0).await?;
        }
        let body = Body::default().u64(*handle).u32(0).u32(0);
        self.call(Op::Fsync, node.number, *pid, body).await.map(drop).map_err(errno)
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        self.channel.end();
        let _ = session.join();
    }
}
