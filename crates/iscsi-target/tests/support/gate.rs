//! A file system whose reads wait.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use futures::task::AtomicWaker;
use millrace_vfs::{
    Attr, DirPage, FileSystem, FileSystemRef, FsInfo, FsResult, Handle, Identity, MaybeReady, Read,
    ReadDirLimits, Stability, Views, Written,
};

type Op<T> = MaybeReady<'static, FsResult<T>>;

/// Whether reads complete.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) closed: AtomicBool,
    pub(crate) waiting: AtomicU64,
    waker: AtomicWaker,
}

impl Gate {
    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// A file system whose reads wait at a gate.
pub(crate) struct Gated(pub(crate) FileSystemRef, pub(crate) Arc<Gate>);

impl FileSystem for Gated {
    fn root(&self) -> Handle {
        self.0.root()
    }

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        self.0.getattr(file)
    }

    fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        self.0.lookup(caller, dir, name)
    }

    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        let read = self.0.read(caller, file, offset, count);
        let gate = Arc::clone(&self.1);
        if !gate.closed.load(Ordering::Relaxed) {
            return read;
        }
        gate.waiting.fetch_add(1, Ordering::Relaxed);
        MaybeReady::wait(async move {
            std::future::poll_fn(|cx| {
                gate.waker.register(cx.waker());
                if gate.closed.load(Ordering::Relaxed) {
                    std::task::Poll::Pending
                } else {
                    std::task::Poll::Ready(())
                }
            })
            .await;
            gate.waiting.fetch_sub(1, Ordering::Relaxed);
            read.await
        })
    }

    fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        self.0.readdir(caller, dir, cookie, verifier, limits)
    }

    fn info(&self) -> FsInfo {
        self.0.info()
    }

    fn create(
        &self,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
        how: &millrace_vfs::CreateHow,
    ) -> Op<millrace_vfs::Created> {
        self.0.create(caller, dir, name, how)
    }

    fn write(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        stable: Stability,
    ) -> Op<Written> {
        self.0.write(caller, file, offset, data, stable)
    }
}
