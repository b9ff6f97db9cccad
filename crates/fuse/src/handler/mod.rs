//! Implements the FUSE operations on an export: runs them on the executor, sends replies.

mod attributes;
mod directories;
mod io;
mod locks;
mod names;
mod space;
mod xattrs;

use std::{future::Future, sync::Arc};

use millrace_buffer::Arena;
use millrace_client::handles::Client;
use millrace_fuse_session::{
    channel::{Call, Handler, WriteData},
    interrupt::{End, cancel_at},
    protocol::{InitFlags, Operation, WriteRequest},
    settings::TREE,
};
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::fs::Fs;

pub(crate) struct FuseHandler {
    fs: Arc<Fs>,
    /// Write-back caching by the kernel (`writeback`).
    writeback: bool,
    /// The capabilities for the kinds of locks that are at the server.
    locks: InitFlags,
}

impl FuseHandler {
    pub(crate) fn new(fs: Arc<Fs>, writeback: bool, locks: InitFlags) -> Self {
        Self { fs, writeback, locks }
    }

    /// Returns the file system, and a future of the client with the credentials of a caller.
    fn context(&self, call: &Call) -> (Arc<Fs>, impl Future<Output = Client> + Send + 'static) {
        let (fs, ids, tid) = (Arc::clone(&self.fs), call.ids(), call.tid());
        let client = async move { fs.credentials.get(&fs.rt, ids, tid).await };
        (Arc::clone(&self.fs), client)
    }

    /// Runs `op` on the executor, then `done` with its result. If it fails, or the caller is killed, the call fails.
    fn run<T: Send + 'static>(
        &self,
        call: Call,
        op: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(Call, T) + Send + 'static,
    ) {
        self.run_until(End::Kill, call, op, done);
    }

    /// Like [`Self::run`]; `end` is what ends a waiting call.
    fn run_until<T: Send + 'static>(
        &self,
        end: End,
        call: Call,
        op: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(Call, T) + Send + 'static,
    ) {
        let op = Box::pin(op); // `op` has several KiB, which would otherwise be moved from one future into the next.
        let fs = Arc::clone(&self.fs);
        let whole = async move {
            let caller = (call.tid(), call.interruption());
            match cancel_at(end, (&fs.rt, &fs.ticks), caller, op).await.unwrap_or(Err(Errno::INTR)) {
                Ok(result) => done(call, result),
                Err(e) => call.error(e),
            }
        };
        self.fs.dispatcher.run(Box::pin(whole));
    }

    /// Like [`Self::run`], but `op` completes even if its caller is killed, so that no written data is
    /// dropped and no operation of several calls is left incomplete.
    fn run_detached<T: Send + 'static>(
        &self,
        call: Call,
        op: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(Call, T) + Send + 'static,
    ) {
        let (tx, rx) = oneshot::channel();
        self.fs.rt.spawn("mount request", Box::pin(async move { drop(tx.send(op.await)) }));
        self.run(call, async move { rx.await.unwrap_or(Err(Errno::IO)) }, done);
    }

    /// Like [`Self::run`], for requests with which the kernel looks up a path or opens a file.
    fn run_lookup<T: Send + 'static>(
        &self,
        call: Call,
        op: impl Future<Output = Result<T, Errno>> + Send + 'static,
        done: impl FnOnce(Call, T) + Send + 'static,
    ) {
        let (fs, tid, node) = (Arc::clone(&self.fs), call.tid(), call.node());
        let op = async move { op.await.inspect_err(|e| fs.note_error(tid, node, *e)) };
        self.run(call, op, done);
    }

    /// Whether the version of NFS has operations on space and holes, and copies.
    fn has_v4_2_operations(&self) -> bool {
        self.fs.credentials.default_client().version() == millrace_client::Version::V4_2
    }
}

/// Sends a reply without a result.
fn done(call: Call, (): ()) {
    call.finish(Ok(()));
}

impl Handler for FuseHandler {
    fn capabilities(&self, offered: InitFlags) -> InitFlags {
        // LOOKUP of "." and ".." by inode number, for open_by_handle_at(2) and nfsd.
        let mut wanted = TREE | InitFlags::EXPORT_SUPPORT | self.locks;
        wanted.set(InitFlags::WRITEBACK_CACHE, self.writeback);
        // The kernel revalidates at each read and drops pages when the mtime has changed, also by local
        // writes. Otherwise the mount decides: see `pages.rs`.
        wanted.set(InitFlags::AUTO_INVAL_DATA, !self.fs.timeouts.caches_file_attrs());
        // The server clears set-ID bits when data changes (RFC 1813 section 4.4). Without this flag the
        // kernel sends a SETATTR as the writer, which only the owner may do. Version 2 avoids a GETXATTR
        // before each write (Linux 5.11).
        let v2 = InitFlags::HANDLE_KILLPRIV_V2;
        wanted | if offered.contains(v2) { v2 } else { InitFlags::HANDLE_KILLPRIV }
    }

    fn arena(&self) -> Option<&Arena> {
        Some(self.fs.credentials.default_client().arena())
    }

    fn write(&self, call: Call, write: WriteRequest, data: WriteData<'_>) {
        self.write_data(call, write, data);
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.fs.inodes.forget(node, lookups);
    }

    fn handle(&self, call: Call, operation: Operation<'_>) {
        use Operation as O;
        match operation {
            O::Lookup { name } => self.lookup(call, name),
            O::GetAttributes => self.get_attributes(call),
            O::SetAttributes(set) => self.set_attributes(call, set),
            O::ReadLink => self.read_link(call),
            O::Symlink { name, target } => self.symlink(call, name, target),
            O::MakeNode { name, mode, device } => self.make_node(call, name, (mode, device)),
            O::MakeDirectory { name, mode } => self.make_directory(call, name, mode),
            O::Unlink { name } => self.unlink(call, name),
            O::RemoveDirectory { name } => self.remove_directory(call, name),
            O::Rename { name, new_directory, new_name, flags } => {
                self.rename(call, name, (new_directory, new_name), flags);
            }
            O::Link { node, name } => self.link(call, node, name),
            O::Open { flags } => self.open(call, flags),
            O::Create { name, mode, flags } => self.create(call, name, (mode, flags)),
            O::Read(read) => self.read(call, read),
            O::Flush { handle, lock_owner } => self.flush(call, handle, lock_owner),
            O::Release { handle } => self.release(call, handle),
            O::Fsync { handle } => self.fsync(call, handle),
            O::OpenDirectory => self.open_directory(call),
            O::ReadDirectory(list) => self.read_directory(call, list),
            O::ReadDirectoryPlus(list) => self.read_directory_plus(call, list),
            O::ReleaseDirectory { handle } => self.release_directory(call, handle),
            O::FsyncDirectory => call.finish(Ok(())), // NFS servers commit directory changes before they reply.
            O::GetLock(lock) => self.get_lock(call, lock),
            O::SetLock { lock, waits } => self.set_lock(call, lock, waits),
            O::SetXattr { name, value, flags } => self.set_xattr(call, name, value, flags),
            O::GetXattr { name, size } => self.get_xattr(call, name, size),
            O::ListXattrs { size } => self.list_xattrs(call, size),
            O::RemoveXattr { name } => self.remove_xattr(call, name),
            O::Statistics => self.statistics(call),
            O::Access { mask } => self.access(call, mask),
            O::Fallocate { range, mode } => self.fallocate(call, range, mode),
            O::Seek { handle, offset, whence } => self.seek(call, handle, (offset, whence)),
            O::CopyFileRange(copy) => self.copy_file_range(call, copy),
            // NFS has no ioctls; programs use this to test for a terminal.
            O::Ioctl => call.error(Errno::NOTTY),
            // The kernel sends no further requests of this kind.
            _ => call.error(Errno::NOSYS),
        }
    }
}
