//! A file system whose GETATTR waits for the test, and which can lose the data of each WRITE.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use millrace_vfs::*;
use tokio::sync::Semaphore;

pub struct Gate {
    inner: FileSystemRef,
    /// One permit for each GETATTR that may complete.
    pub open: Arc<Semaphore>,
    /// One permit for each GETATTR that has started.
    pub started: Arc<Semaphore>,
    /// The instance in the write verifier; each WRITE increments it before it completes.
    pub instance: Option<Arc<AtomicU64>>,
}

impl Gate {
    pub fn new(inner: FileSystemRef) -> Self {
        Self {
            inner,
            open: Arc::new(Semaphore::new(0)),
            started: Arc::new(Semaphore::new(0)),
            instance: None,
        }
    }
}

impl FileSystem for Gate {
    fn getattr(&self, file: &Handle) -> Op<Attr> {
        let (open, attr) = (Arc::clone(&self.open), self.inner.getattr(file));
        self.started.add_permits(1);
        Op::wait(async move {
            open.acquire().await.expect("the gate is never closed").forget();
            attr.await
        })
    }

    fn root(&self) -> Handle {
        self.inner.root()
    }
    fn info(&self) -> FsInfo {
        self.inner.info()
    }
    fn stat(&self) -> Op<FsStat> {
        self.inner.stat()
    }
    fn setattr(&self, who: &Identity, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Op<Wcc> {
        self.inner.setattr(who, file, set, guard)
    }
    fn lookup(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        self.inner.lookup(who, dir, name)
    }
    fn access(&self, who: &Identity, file: &Handle, wanted: Access) -> Op<(Access, Attr)> {
        self.inner.access(who, file, wanted)
    }
    fn readlink(&self, who: &Identity, link: &Handle) -> Op<(Vec<u8>, Attr)> {
        self.inner.readlink(who, link)
    }
    fn read(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        self.inner.read(who, file, offset, count)
    }
    fn write(
        &self,
        who: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        stable: Stability,
    ) -> Op<Written> {
        let written = self.inner.write(who, file, offset, data, stable);
        let Some(instance) = self.instance.clone() else { return written };
        // The first byte's offset selects an immediate or a later completion.
        if offset == 0 {
            instance.fetch_add(1, Ordering::Relaxed);
            return written;
        }
        Op::wait(async move {
            let written = written.await;
            instance.fetch_add(1, Ordering::Relaxed);
            written
        })
    }
    fn commit(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Wcc> {
        self.inner.commit(who, file, offset, count)
    }
    fn deallocate(&self, who: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        self.inner.deallocate(who, file, offset, length)
    }
    fn zero(&self, who: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        self.inner.zero(who, file, offset, length)
    }
    fn seek(&self, who: &Identity, file: &Handle, offset: u64, target: SeekTarget) -> Op<Option<u64>> {
        self.inner.seek(who, file, offset, target)
    }
    fn write_verifier(&self) -> [u8; 8] {
        match &self.instance {
            Some(instance) => instance.load(Ordering::Relaxed).to_be_bytes(),
            None => self.inner.write_verifier(),
        }
    }
    fn create(&self, who: &Identity, dir: &Handle, name: &[u8], how: &CreateHow) -> Op<Created> {
        self.inner.create(who, dir, name, how)
    }
    fn create_node(
        &self,
        who: &Identity,
        dir: &Handle,
        name: &[u8],
        node: &NewNode,
        set: &SetAttr,
    ) -> Op<Created> {
        self.inner.create_node(who, dir, name, node, set)
    }
    fn remove(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        self.inner.remove(who, dir, name)
    }
    fn rmdir(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        self.inner.rmdir(who, dir, name)
    }
    fn rename(&self, who: &Identity, a: &Handle, from: &[u8], b: &Handle, to: &[u8]) -> Op<(Wcc, Wcc)> {
        self.inner.rename(who, a, from, b, to)
    }
    fn link(&self, who: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)> {
        self.inner.link(who, file, dir, name)
    }
    fn readdir(
        &self,
        who: &Identity,
        dir: &Handle,
        cookie: u64,
        v: [u8; 8],
        limits: ReadDirLimits,
    ) -> Op<DirPage> {
        self.inner.readdir(who, dir, cookie, v, limits)
    }
}
