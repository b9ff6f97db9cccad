//! A file system whose reads and writes take time, so that commands are in progress while others arrive.

use std::time::Duration;

use millrace_runtime::{RuntimeExt, RuntimeRef};
use millrace_vfs::{
    Attr, CreateHow, Created, DirPage, FileSystem, FileSystemRef, FsInfo, FsResult, Handle, Identity,
    MaybeReady, Read, ReadDirLimits, Stability, Views, Wcc, Written,
};

type Op<T> = MaybeReady<'static, FsResult<T>>;

/// A file system in which each read and write waits for `delay` before its result.
pub(super) struct Slow {
    pub(super) fs: FileSystemRef,
    pub(super) rt: RuntimeRef,
    pub(super) delay: Duration,
}

impl Slow {
    fn later<T: Send + 'static>(&self, operation: Op<T>) -> Op<T>
    where
        FsResult<T>: Unpin,
    {
        if self.delay.is_zero() {
            return operation;
        }
        let sleep = self.rt.sleep(self.delay);
        MaybeReady::wait(async move {
            sleep.await;
            operation.await
        })
    }
}

impl FileSystem for Slow {
    fn root(&self) -> Handle {
        self.fs.root()
    }

    fn getattr(&self, file: &Handle) -> Op<Attr> {
        self.fs.getattr(file)
    }

    fn lookup(&self, caller: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        self.fs.lookup(caller, dir, name)
    }

    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        self.later(self.fs.read(caller, file, offset, count))
    }

    fn readdir(
        &self,
        caller: &Identity,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        self.fs.readdir(caller, dir, cookie, verifier, limits)
    }

    fn info(&self) -> FsInfo {
        self.fs.info()
    }

    fn create(&self, caller: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created> {
        self.fs.create(caller, dir, name, how)
    }

    fn write(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        stable: Stability,
    ) -> Op<Written> {
        self.later(self.fs.write(caller, file, offset, data, stable))
    }

    fn commit(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Wcc> {
        self.later(self.fs.commit(caller, file, offset, count))
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.fs.write_verifier()
    }
}
