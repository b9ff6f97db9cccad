//! A file system whose GETATTR waits for the test, and which can lose the data of each WRITE.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use millrace_vfs::*;
use tokio::sync::Semaphore;

pub(crate) struct Gate {
    inner: FileSystemRef,
    /// One permit for each GETATTR that may complete.
    pub(crate) open: Arc<Semaphore>,
    /// One permit for each GETATTR that has started.
    pub(crate) started: Arc<Semaphore>,
    /// The instance in the write verifier; each WRITE increments it before it completes.
    pub(crate) instance: Option<Arc<AtomicU64>>,
}

impl Gate {
    pub(crate) fn new(inner: FileSystemRef) -> Self {
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

    fn write_verifier(&self) -> [u8; 8] {
        match &self.instance {
            Some(instance) => instance.load(Ordering::Relaxed).to_be_bytes(),
            None => self.inner.write_verifier(),
        }
    }

    forward!(inner: root info stat setattr lookup access readlink read commit allocate deallocate zero seek copy hold create
        create_node remove rmdir rename link readdir);
}
