//! A file system whose files can have holes.

use std::sync::Arc;

use millrace_buffer::ArenaConfig;
use millrace_crashtest::Disk;
use millrace_iscsi_initiator::{Arena, Views};
use millrace_vfs::{FileSystem, FsInfo, Handle, Identity, Op, Stability, Wcc, forward};

/// The disk, with the deallocation of ranges. Zeros are unstable data.
pub(crate) struct Sparse {
    inner: Arc<Disk>,
    arena: Arena,
}

impl Sparse {
    pub(crate) fn new(inner: Arc<Disk>) -> Arc<Self> {
        Arc::new(Self { inner, arena: Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false }) })
    }
}

impl FileSystem for Sparse {
    fn info(&self) -> FsInfo {
        FsInfo { sparse_files: true, ..self.inner.info() }
    }

    fn deallocate(&self, caller: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        self.zero(caller, file, offset, length)
    }

    fn zero(&self, caller: &Identity, file: &Handle, offset: u64, length: u64) -> Op<Wcc> {
        let mut zeros = self.arena.alloc(length as usize).unwrap();
        zeros.fill(0);
        let data: Views = zeros.freeze().into();
        self.inner
            .write(caller, file, offset, data, Stability::Unstable)
            .map(|written| written.map(|written| written.wcc))
    }

    forward!(inner: root stat getattr lookup read write commit create remove rename readdir write_verifier);
}
