//! Operations on open files.

use std::sync::Arc;

use millrace_fuse_session::{
    channel::{Call, WriteData},
    protocol::{Entry, OpenFlags, Opened, ReadRequest, Reply, WriteRequest},
};
use rustix::{fs::OFlags, io::Errno};

use super::{FuseHandler, done, names::entry};
use crate::{open::WriteKind, open_file::OpenFile, write::WritePosition};

/// Whether a request bypasses the page cache. Only then does the kernel pass a lock owner (`fuse_direct_io`).
/// A write with O_DIRECT whose pages the kernel could not drop goes through the page cache, and holds the
/// page locks until the reply.
fn is_direct(flags: u32, lock_owner: Option<u64>) -> bool {
    has(flags, OFlags::DIRECT) && lock_owner.is_some()
}

fn has(flags: u32, flag: OFlags) -> bool {
    OFlags::from_bits_retain(flags).contains(flag)
}

fn opened(handle: u64, keep: bool) -> Opened {
    Opened { handle, flags: if keep { OpenFlags::KEEP_CACHE } else { OpenFlags::empty() } }
}

impl FuseHandler {
    pub(super) fn open(&self, call: Call, flags: u32) {
        let ((fs, client), node, tid) = (self.context(&call), call.node(), call.tid());
        let op = async move { fs.open(client.await, node, flags, tid).await };
        self.run_lookup(call, op, |call, (handle, keep)| call.reply(&Reply::Opened(opened(handle, keep))));
    }

    pub(super) fn create(&self, call: Call, name: &[u8], (mode, flags): (u32, u32)) {
        let ((fs, client), parent, name) = (self.context(&call), call.node(), name.to_vec());
        let tid = call.tid();
        let op = async move { fs.create((client.await, tid), parent, &name, mode & 0o7777, flags).await };
        self.run(call, op, |call, (created, handle, keep)| {
            // The kernel caches the name as long as the attributes.
            let created = Entry { name_ttl: created.attrs.ttl, ..entry(&created) };
            call.reply(&Reply::Created(created, opened(handle, keep)));
        });
    }

    pub(super) fn read(&self, call: Call, read: ReadRequest) {
        let ReadRequest { handle, offset, size, flags, lock_owner } = read;
        let fs = Arc::clone(&self.fs);
        let file = match fs.open_file(handle) {
            Ok(file) => file,
            Err(e) => return call.error(e),
        };
        let reader = (!is_direct(flags, lock_owner)).then(|| call.tid());
        let op = async move {
            let data = fs.read(&file, offset, size as usize, reader).await?;
            if data.len() < size as usize {
                file.inode.note_end(offset + data.len() as u64);
            }
            Ok(data)
        };
        self.run(call, op, |call, data| call.reply(&Reply::Data(&data)));
    }

    pub(super) fn write_data(&self, call: Call, write: WriteRequest, mut data: WriteData<'_>) {
        let WriteRequest { handle, offset, size, flags, lock_owner, is_from_cache } = write;
        let fs = &self.fs;
        let file = match fs.open_file(handle) {
            Ok(file) => file,
            Err(e) => return call.error(e),
        };
        let kind = match (is_direct(flags, lock_owner), is_from_cache) {
            (true, _) => WriteKind::Direct,
            (false, true) => WriteKind::WriteBack,
            (false, false) => WriteKind::WriteThrough { tid: call.tid() },
        };
        // The parts of a direct write arrive in any order, and written-back pages at any offset.
        let appends = has(flags, OFlags::APPEND) && matches!(kind, WriteKind::WriteThrough { .. });
        let position = if appends { WritePosition::Append(offset) } else { WritePosition::Offset(offset) };
        if appends && file.inode.needs_revalidation(&fs.timeouts) {
            return self.write_later(call, file, (position, data.to_vec()), kind);
        }
        match fs.accept_write(&file, (position, &mut data), kind) {
            Ok(None) => call.reply(&Reply::Written(size)),
            Ok(Some(completion)) => {
                let fs = Arc::clone(fs);
                let op = async move { fs.complete_write(&file, completion).await };
                self.run(call, op, move |call, ()| call.reply(&Reply::Written(size)));
            }
            Err(Errno::NOMEM) => self.write_later(call, file, (position, data.to_vec()), kind),
            Err(e) => call.error(e),
        }
    }

    /// Completes a write asynchronously, with data already copied out of the request.
    fn write_later(
        &self,
        call: Call,
        file: Arc<OpenFile>,
        (position, data): (WritePosition, Vec<u8>),
        kind: WriteKind,
    ) {
        let (fs, length) = (Arc::clone(&self.fs), data.len() as u32);
        let op = async move { fs.write_deferred(&file, position, &data, kind).await };
        self.run(call, op, move |call, ()| call.reply(&Reply::Written(length)));
    }

    pub(super) fn flush(&self, call: Call, handle: u64, lock_owner: u64) {
        let fs = Arc::clone(&self.fs);
        let file = match fs.open_file(handle) {
            Ok(file) => file,
            Err(e) => return call.error(e),
        };
        let locks = file.inode.locks.end_process(lock_owner); // A close releases all locks of the process.
        let op = async move {
            let flushed = fs.flush(&file).await;
            flushed.and(fs.unlock_all(&file.inode, locks).await)
        };
        self.run_detached(call, op, done);
    }

    pub(super) fn fsync(&self, call: Call, handle: u64) {
        let fs = Arc::clone(&self.fs);
        self.run_detached(call, async move { fs.fsync(&*fs.open_file(handle)?).await }, done);
    }

    pub(super) fn release(&self, call: Call, handle: u64) {
        let fs = Arc::clone(&self.fs);
        let file = fs.open_file(handle);
        let ended = file.as_ref().map(|file| file.inode.locks.end_description(handle)).unwrap_or_default();
        let release = async move {
            if let Ok(file) = file {
                let _ = fs.unlock_all(&file.inode, ended).await; // No caller waits for the result.
            }
            fs.release(handle).await;
            call.finish(Ok(()));
        };
        self.fs.rt.spawn("mount release", Box::pin(release));
    }
}
