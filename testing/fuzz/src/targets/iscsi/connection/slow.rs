//! A file system whose reads and writes take time, so that commands are in progress while others arrive.

use std::time::Duration;

use millrace_runtime::{RuntimeExt, RuntimeRef};
use millrace_vfs::{
    FileSystem, FileSystemRef, Handle, Identity, Op, Read, Stability, Views, Wcc, Written, forward,
};

/// A file system in which each read and write waits for `delay` before its result.
pub(super) struct Slow {
    pub(super) fs: FileSystemRef,
    pub(super) rt: RuntimeRef,
    pub(super) delay: Duration,
}

impl Slow {
    fn later<T: Send + Unpin + 'static>(&self, operation: Op<T>) -> Op<T> {
        if self.delay.is_zero() {
            return operation;
        }
        let sleep = self.rt.sleep(self.delay);
        Op::wait(async move {
            sleep.await;
            operation.await
        })
    }
}

impl FileSystem for Slow {
    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        self.later(self.fs.read(caller, file, offset, count))
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

    forward!(fs: root info stat getattr setattr lookup access readlink deallocate zero seek write_verifier
        create create_node remove rmdir rename link readdir);
}
