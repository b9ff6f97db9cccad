//! A file system whose reads wait.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use futures::task::AtomicWaker;
use millrace_vfs::{FileSystem, FileSystemRef, Handle, Identity, Op, Read, forward};

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
    fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        let read = self.0.read(caller, file, offset, count);
        let gate = Arc::clone(&self.1);
        if !gate.closed.load(Ordering::Relaxed) {
            return read;
        }
        gate.waiting.fetch_add(1, Ordering::Relaxed);
        Op::wait(async move {
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

    forward!(0: root info stat getattr setattr lookup access readlink write commit allocate deallocate zero seek
        write_verifier create create_node remove rmdir rename link readdir);
}
